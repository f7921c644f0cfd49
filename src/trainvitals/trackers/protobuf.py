"""Just enough of the protobuf wire format to read records of other trackers. Tested in
tests/trackers/test_protobuf.py.

Their schemas are a few field numbers each; their generated classes would be a dependency of ten megabytes and several
times slower.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from trainvitals.varints import Malformed as Malformed
from trainvitals.varints import read_varint as read_varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


def read_fields(data: bytes) -> Iterator[tuple[int, int, Value, int]]:
    """(field number, wire type, value, where the value begins) of each field. Numbers are unsigned; what has a fixed
    width or a length is bytes."""
    place, end = 0, len(data)
    while place < end:
        tag, place = read_varint(data, place)
        kind = tag & 7
        if kind == VARINT:
            start = place
            number, place = read_varint(data, place)
            yield tag >> 3, kind, number, start
            continue
        if kind == BYTES:
            size, place = read_varint(data, place)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise Malformed(f"wire type {kind}")
        if place + size > end:
            raise Malformed("cut within a field")
        yield tag >> 3, kind, data[place : place + size], place
        place += size


def signed(number: int) -> int:
    """A 64-bit number with its sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def as_bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise Malformed("a number where bytes are expected")
    return value


def as_int(value: Value) -> int:
    if not isinstance(value, int):
        raise Malformed("bytes where a number is expected")
    return value


def as_text(value: Value) -> str:
    return as_bytes(value).decode("utf-8", "backslashreplace")


def as_double(value: Value) -> float:
    try:
        number: float = _DOUBLE.unpack(as_bytes(value))[0]
    except struct.error:
        raise Malformed("not eight bytes") from None
    return number


def as_float(value: Value) -> float:
    try:
        number: float = _FLOAT.unpack(as_bytes(value))[0]
    except struct.error:
        raise Malformed("not four bytes") from None
    return number
