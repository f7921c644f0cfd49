"""Records of an event file (the TFRecord format): a length, its checksum, the payload, its checksum.

    u64 length | u32 masked CRC-32C of the length | payload | u32 masked CRC-32C of the payload      little-endian

One record is checked and made with a table of 256 numbers; the records of a whole block are checked side by side with
numpy, which needs no package for the checksum (benchmarks/trackers.py).
Tested in tests/trackers/test_framing.py.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the agent writes records and does not load numpy for it
    import numpy as np
    from numpy.typing import NDArray

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
OVERHEAD = HEADER.size + CHECKSUM.size
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8
_AT_ONCE = 1 << 18
"""Spans that are checked side by side: their bytes and indices stay within the cache and a few megabytes."""


def _make_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return tuple(table)


_TABLE = _make_table()


def masked_crc32c(data: bytes) -> int:
    """The checksum as it is stored: rotated and moved, so that a checksum of checksums is no special case."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def encode_record(payload: bytes) -> bytes:
    """The payload as a record."""
    length = len(payload).to_bytes(8, "little")
    return b"".join((length, CHECKSUM.pack(masked_crc32c(length)), payload, CHECKSUM.pack(masked_crc32c(payload))))


# -- many at once


def masked_crc32c_of_spans(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The checksum of every span of `data`; spans of one length are computed together."""
    import numpy as np

    table = np.array(_TABLE, dtype=np.uint32)
    found = np.empty(len(starts), dtype=np.uint32)
    order = np.argsort(lengths, kind="stable")
    edges = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, edges):
        for first in range(0, len(group), _AT_ONCE):
            chosen = group[first : first + _AT_ONCE]
            place = starts[chosen].copy()
            crc = np.full(len(chosen), 0xFFFFFFFF, dtype=np.uint32)
            for _ in range(int(lengths[chosen[0]]) if len(chosen) else 0):
                crc = table[(crc ^ data[place]) & 0xFF] ^ (crc >> np.uint32(8))
                place += 1
            found[chosen] = crc ^ np.uint32(0xFFFFFFFF)
    return ((found >> np.uint32(15)) | (found << np.uint32(17))) + np.uint32(_MASK_DELTA)


def find_header(data: NDArray[np.uint8], start: int) -> int:
    """Where the first record at `start` or behind it begins, by the checksum of its length; -1 if none does."""
    import numpy as np

    for first in range(start, len(data) - HEADER.size + 1, _AT_ONCE):
        places = np.arange(first, min(first + _AT_ONCE, len(data) - HEADER.size + 1), dtype=np.int64)
        stored = sum(data[places + 8 + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
        right = masked_crc32c_of_spans(data, places, np.full(len(places), 8, dtype=np.int64)) == stored
        if right.any():
            return int(places[int(np.argmax(right))])
    return -1
