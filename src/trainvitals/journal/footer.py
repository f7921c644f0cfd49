"""How many rows a Parquet file has, from its last bytes: in microseconds, and before DuckDB reads anything of it.

A file of a few kilobytes can have billions of rows that are all alike, and to read them would take all memory. Tested
in tests/journal/test_bombs.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from trainvitals.errors import JournalError
from trainvitals.varints import Malformed, read_varint

MOST_ROWS = 50_000_000
"""More values than fit into the largest JSONL file that is sealed."""
ROWS_OF_ANY_FILE, ROWS_PER_BYTE = 10_000_000, 1000
"""Rows that were really measured differ, at least in their times, and take more room than this."""
LONGEST_FOOTER = 16 << 20
"""Bytes: a row group takes some hundreds, and one of ours has 65,536 values."""

_MAGIC = b"PAR1"
_END = len(_MAGIC) + 4
_BEGINNING = 16 << 10  # version and schema come before the number of rows, and ours take less than 2 KB
_NUM_ROWS = 3  # the field of FileMetaData in parquet.thrift


class Oversized(JournalError):
    """A Parquet file that is larger, once it is read, than one of ours can be."""


def check_size(file: str) -> int:
    """How many rows it has. Raises Oversized, or OSError if the file cannot be read. What is no Parquet file passes as
    one of none: DuckDB refuses it."""
    rows, size = count_rows(file), os.stat(file).st_size  # noqa: PTH116
    if rows > min(MOST_ROWS, ROWS_OF_ANY_FILE + ROWS_PER_BYTE * size):
        raise Oversized(f"{os.path.basename(file)} has {rows:,} rows in {size:,} bytes")  # noqa: PTH119
    return rows


def count_rows(file: str) -> int:
    """As the footer says; 0 if there is none that can be understood. Raises Oversized for a very long one, OSError."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, _END, max(size - _END, 0))
        length = int.from_bytes(end[:4], "little")
        if end[4:] != _MAGIC or length + _END > size:
            return 0
        beginning = os.pread(descriptor, min(length, _BEGINNING), size - _END - length)
    finally:
        os.close(descriptor)
    if length > LONGEST_FOOTER:
        raise Oversized(f"{os.path.basename(file)} has a footer of {length >> 20} MB")  # noqa: PTH119
    return _find_row_count(beginning)


def _find_row_count(data: bytes) -> int:
    """Of FileMetaData in Thrift's compact protocol; 0 if it cannot be understood."""
    reader = _Compact(data)
    try:
        for field, kind in reader.fields():
            if field == _NUM_ROWS:
                return reader.read_integer()
            reader.skip(kind)
    except (IndexError, Malformed, RecursionError):
        pass  # not what parquet.thrift describes
    return 0


class _Compact:
    """As much of Thrift's compact protocol as it takes to pass over values."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """(id, kind) of each field of a struct; the value is to be read or skipped before the next."""
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self.read_integer()
            yield field, head & 15

    def read_integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def skip(self, kind: int) -> None:
        match kind:
            case 1 | 2:  # a boolean is its own kind
                pass
            case 3:
                self._place += 1
            case 4 | 5 | 6:
                self._varint()
            case 7:
                self._place += 8
            case 8:
                length = self._varint()  # which moves the place itself
                self._place += length
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._varint()
                for _ in range(count):
                    self.skip(3 if head & 15 in (1, 2) else head & 15)
            case 12:
                for _, inner in self.fields():
                    self.skip(inner)
            case _:
                raise IndexError(kind)

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        number, self._place = read_varint(self._data, self._place)
        return number
