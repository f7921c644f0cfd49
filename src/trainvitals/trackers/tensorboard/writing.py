"""Writing TensorBoard's event files, without TensorFlow and torch.

An event is a time, a step and a few values; what is written here are the bytes of the protocol buffers `Event`,
`Summary` and `HParamsPluginData`. TensorBoard keeps scalars as 32-bit floats, so these have seven digits there.
Tested in tests/trackers/test_writing.py.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainvitals.journal.histograms import Histogram
from trainvitals.protobuf import double, field, number
from trainvitals.trackers.tensorboard.framing import encode_record

SUCCESS, FAILURE, RUNNING = 1, 2, 3
"""How a session of hyperparameters ended."""
_STRING = 7
"""DT_STRING"""
_RGB = 3


def _text(place: int, words: str) -> bytes:
    return field(place, words.encode("utf-8", "backslashreplace"))


@functools.lru_cache(maxsize=1 << 14)
def _tag(name: str) -> bytes:
    return _text(1, name)


# -- values of a summary


def encode_scalar(tag: str, value: float) -> bytes:
    """A number."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return field(1, _tag(tag) + b"\x15" + packed)


def encode_histogram(tag: str, histogram: Histogram) -> bytes:
    """Shown under Histograms and Distributions."""
    low, high, counts, _ = histogram
    width = (high - low) / len(counts)
    edges = [low + width * place for place in range(1, len(counts))] + [high]
    middles = [low + width * (place + 0.5) for place in range(len(counts))]
    total = sum(middle * count for middle, count in zip(middles, counts, strict=True))
    squares = sum(middle * middle * count for middle, count in zip(middles, counts, strict=True))
    content = (
        double(1, low)
        + double(2, high)
        + double(3, float(sum(counts)))
        + double(4, total)
        + double(5, squares)
        + field(6, struct.pack(f"<{len(edges)}d", *edges))
        + field(7, struct.pack(f"<{len(counts)}d", *counts))
    )
    return field(1, _tag(tag) + field(5, content))


def encode_image(tag: str, data: bytes) -> bytes:
    """The bytes of a picture's file, shown under Images."""
    width, height = measure_png(data) or (0, 0)
    content = number(1, height) + number(2, width) + number(3, _RGB) + field(4, data)
    return field(1, _tag(tag) + field(4, content))


def measure_png(data: bytes) -> tuple[int, int] | None:
    """Width and height; None for another format, which TensorBoard measures by drawing it."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return None
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def encode_text(tag: str, markdown: str) -> bytes:
    """Markdown, shown under Text."""
    tensor = number(1, _STRING) + field(2, field(2, number(1, 1))) + _text(8, markdown)
    return field(1, _tag(f"{tag}/text_summary") + field(8, tensor) + field(9, field(1, _text(1, "text"))))


def encode_session_start(values: Mapping[str, object], name: str, started: float) -> bytes:
    """The hyperparameters of the run, shown under HParams: numbers, switches and texts."""
    entries = b"".join(field(1, _text(1, key) + field(2, _encode_value(item))) for key, item in values.items())
    return _hparams("session_start_info", field(3, entries + _text(4, name) + double(5, started)))


def encode_session_end(status: int, ended: float) -> bytes:
    """How that session ended."""
    return _hparams("session_end_info", field(4, number(1, status) + double(2, ended)))


def _encode_value(value: object) -> bytes:
    if isinstance(value, bool):
        return number(4, value)
    if isinstance(value, (int, float)):
        return double(2, float(value))
    return _text(3, str(value))


def _hparams(kind: str, content: bytes) -> bytes:
    plugin = _text(1, "hparams") + field(2, number(1, 0) + content)
    return field(1, _tag(f"_hparams_/{kind}") + field(9, field(1, plugin)))


# -- events


def encode_event(moment: float, step: int, values: Iterable[bytes]) -> bytes:
    """One record with all these values of one step."""
    return encode_record(double(1, moment) + number(2, step) + field(5, b"".join(values)))


def encode_restart(moment: float, step: int) -> bytes:
    """The program continues from this step: TensorBoard drops what it has of later steps, from an earlier try."""
    return encode_record(double(1, moment) + number(2, step) + field(7, number(1, 1)))


def new_event_file(folder: Path, host: str, moment: float | None = None) -> Path:
    """Make an empty event file; TensorBoard reads those of a folder in the order of their names."""
    moment = time.time() if moment is None else moment
    taken = {path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")}
    second = int(moment)
    while f"{second:010d}" in taken:
        second += 1
    path = folder / f"events.out.tfevents.{second:010d}.{host}.{os.getpid()}.0"
    path.write_bytes(encode_record(double(1, moment) + _text(3, "brain.Event:2")))
    return path
