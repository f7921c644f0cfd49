"""Whole numbers in as few bytes as they need, as Protobuf, Thrift and ClickHouse write them: seven bits a byte, the
lowest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

_SMALL = tuple(bytes([value]) for value in range(0x80))


class Malformed(ValueError):
    """Bytes that are not what they should be."""


def varint(value: int) -> bytes:
    """Of a number that is not negative."""
    if value < 0x80:
        return _SMALL[value]
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def read_varint(data: bytes | mmap, place: int) -> tuple[int, int]:
    """(the number, of 64 bits at most, and the place behind it); raises Malformed."""
    number = shift = 0
    try:
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & 0xFFFFFFFFFFFFFFFF, place
            shift += 7
            if shift > 63:
                raise Malformed("a varint of more than ten bytes")
    except IndexError:
        raise Malformed("cut within a varint") from None
