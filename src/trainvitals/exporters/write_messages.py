"""The two messages of remote write: `prometheus.WriteRequest` of 1.0 and `io.prometheus.write.v2.Request` of 2.0.

https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/ (2.0-rc.4): texts are in a table and referred to by number,
and a series says what it is. The second message uses no field of the first, so that each can be told from the other.
Tested in tests/exporters/test_remote_write.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.samples import Exemplar, NativeHistogram

from trainvitals.exporters.wire import native_histogram
from trainvitals.protobuf import double, field, find_fields, number
from trainvitals.varints import read_varint, varint

_STALE_BYTES = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that marks the end of a series
_TYPES = {"counter": 1, "gauge": 2, "histogram": 3, "gaugehistogram": 4, "summary": 5, "info": 6, "stateset": 7}
_SYMBOLS, _SERIES = 4, 5
_SAMPLE_START, _HISTOGRAM_START = 3, 17
"""What 1.0 has not."""
_BEGINNING_OF_SECOND = varint(_SYMBOLS << 3 | 2)


class FamilyAbout(NamedTuple):
    """What a family is."""

    kind: str
    help: str
    unit: str


@dataclass(slots=True)
class SentSeries:
    """A series that is sent again and again."""

    labels: tuple[str, ...]
    """Names and values by turns, as the protocol wants them: in the order of the names, none empty."""
    about: FamilyAbout
    whole: str
    """The labels of the histogram of which this is a bucket; of anything else its own, as written on a page."""
    encoded: bytes | None = None
    """The labels in the first message."""


class SentPoint(NamedTuple):
    """What is sent of a series."""

    series: SentSeries
    value: float | None
    """None marks its end."""
    began_ms: int | None = None
    """Since when a counter counts, if that is known."""
    exemplar: Exemplar | None = None
    histogram: NativeHistogram | None = None
    """Instead of a value."""


def order_labels(labels: Mapping[str, str]) -> tuple[str, ...]:
    """As a `Series` has them."""
    return tuple(text for name in sorted(labels) if labels[name] for text in (name, labels[name]))


def encode_first(points: Iterable[SentPoint], moment_ms: int) -> bytes:
    """The message of 1.0: no types, no beginnings, no exemplars."""
    at = _time(moment_ms)
    found = []
    for series, value, _, _, histogram in points:
        if series.encoded is None:
            texts = [text.encode() for text in series.labels]
            series.encoded = _label_pairs(zip(texts[::2], texts[1::2], strict=True))
        sample = field(2, _value(value) + at) if histogram is None else field(4, _histogram(histogram, moment_ms))
        found.append(field(1, series.encoded + sample))
    return b"".join(found)


def encode_second(points: Iterable[SentPoint], moment_ms: int) -> bytes:
    """The message of 2.0."""
    at = _time(moment_ms)
    symbols = _Symbols()
    about: dict[FamilyAbout, bytes] = {}
    found = []
    for series, value, began_ms, exemplar, histogram in points:
        described = about.get(series.about)
        if described is None:
            kind, help, unit = series.about
            texts = b"\x18" + symbols[help] + b"\x20" + symbols[unit]
            described = about[series.about] = field(5, number(1, _TYPES.get(kind, 0)) + texts)
        body = field(1, b"".join([symbols[text] for text in series.labels])) + described
        if histogram is None:
            body += field(2, _value(value) + at + (b"" if began_ms is None else number(_SAMPLE_START, began_ms)))
        else:
            began = b"" if began_ms is None else number(_HISTOGRAM_START, began_ms)
            body += field(3, _histogram(histogram, moment_ms) + began)
        if exemplar is not None:
            body += field(4, _exemplar(exemplar, symbols, moment_ms))
        found.append(field(_SERIES, body))
    return symbols.encode() + b"".join(found)


def compress(message: bytes) -> bytes:
    """As the body of a request of remote write."""
    import cramjam

    return bytes(cramjam.snappy.compress_raw(message))


def decompress(body: bytes) -> bytes | None:
    """The message in the body of a request; None if it is damaged."""
    import cramjam

    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        return None


def is_second(message: bytes) -> bool:
    """Whether this is a message of 2.0."""
    return message.startswith(_BEGINNING_OF_SECOND)


def count_samples(message: bytes) -> int:
    """How many samples, histograms among them, a message of 2.0 has."""
    return sum(1 for place, _, _ in _fields(message) if place == _SERIES)


def convert_to_first(message: bytes) -> bytes:
    """What a message of 2.0 says, as 1.0 can say it."""
    symbols: list[bytes] = []
    found = []
    for place, _, data in _fields(message):
        if place == _SYMBOLS:
            symbols.append(data)
        elif place == _SERIES:
            parts = {part: contents for part, _, contents in _fields(data)}
            texts = [symbols[ref] for ref in _varints(parts[1])]
            labels = _label_pairs(zip(texts[::2], texts[1::2], strict=True))
            if 2 in parts:
                found.append(field(1, labels + field(2, _without(_SAMPLE_START, parts[2]))))
            else:
                found.append(field(1, labels + field(4, _without(_HISTOGRAM_START, parts[3]))))
    return b"".join(found)


class _Symbols(dict[str, bytes]):
    """The table of texts of one message: their numbers, each made when it is first asked for. The first is the empty
    one."""

    def __init__(self) -> None:
        super().__init__({"": varint(0)})

    def __missing__(self, text: str) -> bytes:
        ref = self[text] = varint(len(self))
        return ref

    def encode(self) -> bytes:
        return b"".join([field(_SYMBOLS, text.encode()) for text in self])


def _label_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(field(1, field(1, name) + field(2, text)) for name, text in pairs)


def _value(value: float | None) -> bytes:
    # Python may quieten a signalling NaN on its way, so that one is never a float here.
    return b"\x09" + (_STALE_BYTES if value is None else struct.pack("<d", value))


def _time(moment_ms: int) -> bytes:
    return number(2, moment_ms)


def _exemplar(example: Exemplar, symbols: _Symbols, moment_ms: int) -> bytes:
    seen_ms = moment_ms if example.timestamp is None else round(float(example.timestamp) * 1000)
    labels = b"".join([symbols[text] for text in order_labels(example.labels)])
    return field(1, labels) + double(2, example.value) + number(3, seen_ms)


def _histogram(found: NativeHistogram, moment_ms: int) -> bytes:
    total = number(1, int(found.count_value)) + double(3, found.sum_value)
    return total + native_histogram(found, 4) + number(15, moment_ms)


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(number, all of it, contents) of each field."""
    begin = 0
    for place, _, inside, stop in find_fields(data, 0, len(data)):
        yield place, data[begin:stop], data[inside:stop]
        begin = stop


def _without(unwanted: int, message: bytes) -> bytes:
    return b"".join(whole for place, whole, _ in _fields(message) if place != unwanted)


def _varints(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        found, place = read_varint(data, place)
        yield found
