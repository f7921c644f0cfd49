"""Just enough of the protobuf wire format to read and write the few records of others that have it.

Their schemas are a few field numbers each; their generated classes would be a dependency of ten megabytes and several
times slower. Beside these, `varints` has the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainvitals.varints import Malformed as Malformed
from trainvitals.varints import read_varint as read_varint
from trainvitals.varints import varint

if TYPE_CHECKING:
    from mmap import mmap

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


# -- reading


def find_fields(data: bytes | mmap, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, its number or where its bytes begin, the place behind it) of each field between two
    places. Raises Malformed."""
    while place < end:
        tag, place = read_varint(data, place)
        kind = tag & 7
        value = place
        if kind == VARINT:
            value, place = read_varint(data, place)
        elif kind == BYTES:
            size, value = read_varint(data, place)
            place = value + size
        elif kind == FIXED64:
            place += 8
        elif kind == FIXED32:
            place += 4
        else:
            raise Malformed(f"wire type {kind}")
        if place > end:
            raise Malformed("cut within a field")
        yield tag >> 3, kind, value, place


def read_fields(data: bytes) -> Iterator[tuple[int, int, Value, int]]:
    """(field number, wire type, value, where the value begins) of each field. Numbers are unsigned; what has a fixed
    width or a length is bytes."""
    for number, kind, value, stop in find_fields(data, 0, len(data)):
        yield number, kind, value if kind == VARINT else data[value:stop], value


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
    return _unpack(_DOUBLE, value)


def as_float(value: Value) -> float:
    return _unpack(_FLOAT, value)


def _unpack(form: struct.Struct, value: Value) -> float:
    try:
        number: float = form.unpack(as_bytes(value))[0]
    except struct.error:
        raise Malformed(f"not {form.size} bytes") from None
    return number


# -- writing


def field(place: int, data: bytes) -> bytes:
    """A message or text in its place."""
    return varint(place << 3 | BYTES) + varint(len(data)) + data


def number(place: int, value: int) -> bytes:
    """A whole number of 64 bits."""
    return varint(place << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)


def double(place: int, value: float) -> bytes:
    """A number with a fraction."""
    return varint(place << 3 | FIXED64) + _DOUBLE.pack(value)
