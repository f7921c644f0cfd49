"""What the payload of one event record says: scalars, hyperparameters, pictures, histograms, texts, restarts.

Fields by number: Event {1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log}; Summary {1 value}; Value
{1 tag, 2 simple_value, 4 image, 5 histo, 6 audio, 8 tensor, 9 metadata}. Scalars come in two forms: `simple_value`, and
a tensor of one number with the plugin `scalars` (TensorFlow 2). Tested in tests/trackers/test_tensorboard_reading.py.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from trainvitals.journal.encoding import spell_all
from trainvitals.protobuf import (
    FIXED64,
    Malformed,
    Value,
    as_bytes,
    as_double,
    as_float,
    as_int,
    as_text,
    read_fields,
    read_varint,
    signed,
)

SESSION_START = 1
_HPARAMS = "_hparams_/"
_STATUSES = {1: "finished", 2: "failed", 3: "running"}

# Numbers of a TensorProto by dtype: how one of them is packed in `tensor_content`, and the field that has them else.
_NUMBERS = {1: ("f", 5), 2: ("d", 6), 3: ("i", 7), 9: ("q", 10), 22: ("I", 16), 23: ("Q", 17), 10: ("?", 11)}
_STRING = 7


class NumberPlace(NamedTuple):
    """Where in the payload the only number of an event is."""

    offset: int
    format: str
    """`f` or `d`, as `struct` has it."""


@dataclass(slots=True)
class MediumFound:
    """An image, a histogram or a text."""

    kind: Literal["image", "histogram", "text"]
    tag: str
    data: bytes
    suffix: str


@dataclass(slots=True)
class Event:
    """One event."""

    step: int = 0
    is_session_start: bool = False
    scalars: dict[str, float] = field(default_factory=dict)
    repeated: list[tuple[str, float]] = field(default_factory=list)
    """Scalars whose tag came before in the same event."""
    media: list[MediumFound] = field(default_factory=list)
    hparams: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    status: str | None = None
    ended: float | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    number_place: NumberPlace | None = None
    """Where its number is, if it is one scalar and nothing else."""


def parse_event(payload: bytes, plugins: dict[str, str]) -> Event:
    """The event; `plugins` remembers what each tag is for, which need not be said again. Raises Malformed."""
    event = Event()
    summaries = 0
    for number, _, value, start in read_fields(payload):
        if number == 2:
            event.step = signed(as_int(value))
        elif number == 5:
            summaries += 1
            _parse_summary(as_bytes(value), start, event, plugins)
        elif number == 7:
            found = {field: value for field, _, value, _ in read_fields(as_bytes(value))}
            event.is_session_start = found.get(1) == SESSION_START
        elif number in (4, 9):
            event.left_out["graphs"] += 1
    if summaries != 1:
        event.number_place = None
    return event


def _parse_summary(data: bytes, start: int, event: Event, plugins: dict[str, str]) -> None:
    values = [(as_bytes(value), place) for number, _, value, place in read_fields(data) if number == 1]
    for value, place in values:
        found = _parse_value(value, event, plugins)
        if found is not None and len(values) == 1:
            event.number_place = NumberPlace(start + place + found.offset, found.format)


def _parse_value(data: bytes, event: Event, plugins: dict[str, str]) -> NumberPlace | None:
    tag, plugin, content = "", "", b""
    bodies: list[tuple[int, Value, int]] = []
    for number, _, value, place in read_fields(data):
        if number == 1:
            tag = as_text(value)
        elif number == 9:
            plugin, content = _parse_metadata(as_bytes(value))
        else:
            bodies.append((number, value, place))
    plugin = plugins.setdefault(tag, plugin) if plugin == "" else plugin
    if plugin and plugins.get(tag) != plugin:
        plugins[tag] = plugin
    if plugin == "hparams" or tag.startswith(_HPARAMS):
        _parse_hparams(content, event)
        return None
    place_of_number = None
    for number, value, place in bodies:
        if number == 2:
            _add_scalar(event, tag, as_float(value))
            place_of_number = NumberPlace(place, "f")
        elif number == 4:
            _add_image(event, tag, as_bytes(value))
        elif number == 5:
            event.media.append(_read_histogram(tag, as_bytes(value)))
        elif number == 6:
            event.left_out["audio"] += 1
        elif number == 8:
            found = _parse_tensor(as_bytes(value), event, tag, plugin)
            place_of_number = NumberPlace(place + found.offset, found.format) if found is not None else None
    return place_of_number


def _parse_metadata(data: bytes) -> tuple[str, bytes]:
    """(plugin, its content)."""
    plugin, content = "", b""
    for number, _, value, _ in read_fields(data):
        if number == 1:
            for inner, _, item, _ in read_fields(as_bytes(value)):
                if inner == 1:
                    plugin = as_text(item)
                elif inner == 2:
                    content = as_bytes(item)
    return plugin, content


def _add_scalar(event: Event, tag: str, value: float) -> None:
    if tag in event.scalars:
        event.repeated.append((tag, value))
    else:
        event.scalars[tag] = value


def _add_image(event: Event, tag: str, data: bytes) -> None:
    encoded = b"".join(as_bytes(value) for number, _, value, _ in read_fields(data) if number == 4)
    suffix = _picture_suffix(encoded)
    if suffix is None:
        event.left_out["images of an unknown format"] += 1
    else:
        event.media.append(MediumFound("image", tag, encoded, suffix))


def _picture_suffix(data: bytes) -> str | None:
    for start, suffix in ((b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif")):
        if data.startswith(start):
            return suffix
    return None


# -- tensors


class _Tensor(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    numbers: tuple[float, ...]
    texts: tuple[bytes, ...]
    place: NumberPlace | None
    """Of the number, if there is one and it is a float or a double."""


def _parse_tensor(data: bytes, event: Event, tag: str, plugin: str) -> NumberPlace | None:
    tensor = _read_tensor(data)
    if plugin == "text" or (plugin == "" and tensor.dtype == _STRING):
        text = b"\n\n".join(tensor.texts)
        event.media.append(MediumFound("text", tag, text, "md"))
    elif plugin == "images" and tensor.dtype == _STRING:
        for picture in tensor.texts[2:]:  # the first two are width and height
            suffix = _picture_suffix(picture)
            if suffix is None:
                event.left_out["images of an unknown format"] += 1
            else:
                event.media.append(MediumFound("image", tag, picture, suffix))
    elif plugin == "histograms" and tensor.numbers:
        event.media.append(_bucket_histogram(tag, tensor.numbers))
    elif plugin in ("scalars", "") and len(tensor.numbers) == 1 and len(tensor.shape) <= 1:
        _add_scalar(event, tag, tensor.numbers[0])
        return tensor.place
    else:
        event.left_out[plugin or "tensors"] += 1
    return None


def _read_tensor(data: bytes) -> _Tensor:
    dtype, content, content_place = 0, b"", 0
    shape: tuple[int, ...] = ()
    fields: list[tuple[int, int, Value, int]] = []
    for number, kind, value, place in read_fields(data):
        if number == 1:
            dtype = as_int(value)
        elif number == 2:
            shape = tuple(_read_shape(as_bytes(value)))
        elif number == 4:
            content, content_place = as_bytes(value), place
        else:
            fields.append((number, kind, value, place))
    if dtype == _STRING:
        return _Tensor(dtype, shape, (), tuple(as_bytes(value) for number, _, value, _ in fields if number == 8), None)
    if dtype in (19, 14):  # half and bfloat16 are whole numbers in field 13, or two bytes each
        halves = _read_packed("H", 13, fields) if not content else struct.unpack(f"<{len(content) // 2}H", content)
        return _Tensor(dtype, shape, tuple(_widen(int(half), dtype) for half in halves), (), None)
    if dtype not in _NUMBERS:
        return _Tensor(dtype, shape, (), (), None)
    letter, own_field = _NUMBERS[dtype]
    places = [content_place]
    if content:
        size = struct.calcsize(letter)
        if len(content) % size:
            raise Malformed("a tensor of another size than its type")
        numbers = struct.unpack(f"<{len(content) // size}{letter}", content)
    else:
        numbers = tuple(_read_packed(letter, own_field, fields))
        places = [place for number, _, _, place in fields if number == own_field]
    known = NumberPlace(places[0], letter) if len(numbers) == 1 and (letter == "f" or letter == "d") else None
    return _Tensor(dtype, shape, tuple(float(number) for number in numbers), (), known)


def _read_shape(data: bytes) -> Iterator[int]:
    for number, _, value, _ in read_fields(data):
        if number == 2:
            sizes = [as_int(item) for inner, _, item, _ in read_fields(as_bytes(value)) if inner == 1]
            yield sizes[0] if sizes else 0


def _read_packed(letter: str, own_field: int, fields: list[tuple[int, int, Value, int]]) -> list[float]:
    found: list[float] = []
    for number, _, value, _ in fields:
        if number != own_field:
            continue
        if isinstance(value, int):
            found.append(signed(value) if letter in ("i", "q") else value)
        elif letter in ("f", "d"):
            size = struct.calcsize(letter)
            if len(value) % size:
                raise Malformed("packed numbers of another size than their type")
            found += struct.unpack(f"<{len(value) // size}{letter}", value)
        else:
            place = 0
            while place < len(value):
                item, place = read_varint(value, place)
                found.append(signed(item) if letter in ("i", "q") else item)
    return found


def _widen(half: int, dtype: int) -> float:
    if dtype == 14:  # bfloat16: the upper half of a float
        number: float = struct.unpack("<f", struct.pack("<I", half << 16))[0]
    else:
        number = struct.unpack("<e", struct.pack("<H", half))[0]
    return number


# -- histograms


def _read_histogram(tag: str, data: bytes) -> MediumFound:
    names = {1: "min", 2: "max", 3: "num", 4: "sum", 5: "sum_squares"}
    lists: dict[int, list[float]] = {6: [], 7: []}
    found: dict[str, Any] = {}
    for number, kind, value, _ in read_fields(data):
        if number in names:
            found[names[number]] = as_double(value)
        elif number in lists:
            raw = as_bytes(value)
            if len(raw) % 8 or (kind == FIXED64 and len(raw) != 8):
                raise Malformed("doubles of another size")
            lists[number] += struct.unpack(f"<{len(raw) // 8}d", raw)
    return _histogram(tag, {**found, "right_edges": lists[6], "counts": lists[7]})


def _bucket_histogram(tag: str, numbers: tuple[float, ...]) -> MediumFound:
    """TensorFlow 2: rows of left edge, right edge, count."""
    rows = [numbers[place : place + 3] for place in range(0, len(numbers) - 2, 3)]
    return _histogram(
        tag,
        {
            "left_edges": [row[0] for row in rows],
            "right_edges": [row[1] for row in rows],
            "counts": [row[2] for row in rows],
        },
    )


def _histogram(tag: str, content: dict[str, Any]) -> MediumFound:
    return MediumFound("histogram", tag, json.dumps(spell_all(content)).encode(), "json")


# -- hyperparameters


def _parse_hparams(content: bytes, event: Event) -> None:
    for number, _, value, _ in read_fields(content):
        if number == 3:
            _parse_session_start(as_bytes(value), event)
        elif number == 4:
            for inner, _, item, _ in read_fields(as_bytes(value)):
                if inner == 1:
                    event.status = _STATUSES.get(as_int(item))
                elif inner == 2:
                    event.ended = as_double(item) or None


def _parse_session_start(data: bytes, event: Event) -> None:
    for number, _, value, _ in read_fields(data):
        if number == 1:
            pair = {inner: item for inner, _, item, _ in read_fields(as_bytes(value))}
            name = as_text(pair.get(1, b""))
            event.hparams[name] = _read_value(as_bytes(pair.get(2, b"")))
        elif number == 5:
            event.started = as_double(value) or None


def _read_value(data: bytes) -> Any:
    """google.protobuf.Value."""
    for number, _, value, _ in read_fields(data):
        if number == 2:
            return as_double(value)
        if number == 3:
            return as_text(value)
        if number == 4:
            return bool(value)
        if number == 5:
            return {
                as_text(pair.get(1, b"")): _read_value(as_bytes(pair.get(2, b"")))
                for inner, _, item, _ in read_fields(as_bytes(value))
                if inner == 1
                for pair in [{key: found for key, _, found, _ in read_fields(as_bytes(item))}]
            }
        if number == 6:
            return [_read_value(as_bytes(item)) for inner, _, item, _ in read_fields(as_bytes(value)) if inner == 1]
    return None
