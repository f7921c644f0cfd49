"""ClickHouse's Native format: blocks of columns, which cost numpy next to nothing.

Only what our tables need: strings, whole numbers and floats. Old and new servers speak it over plain HTTP alike.
Tested in tests/fleet/test_native.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainvitals.errors import TrainvitalsError
from trainvitals.varints import read_varint, varint

DTYPES = {
    "UInt8": "u1", "UInt16": "<u2", "UInt32": "<u4", "UInt64": "<u8",
    "Int8": "i1", "Int16": "<i2", "Int32": "<i4", "Int64": "<i8", "Float32": "<f4", "Float64": "<f8",
}  # fmt: skip

Column = NDArray[Any] | Sequence[str] | Sequence[bytes]


class Repeated:
    """A column of strings in which each comes several times in a row, as names do where rows are ordered by them."""

    def __init__(self, items: Sequence[tuple[str, int]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return sum(count for _, count in self.items)


class FormatError(TrainvitalsError):
    """An answer that is not in this format, or was cut off."""


def encode_block(types: Mapping[str, str], columns: Mapping[str, Column | Repeated]) -> bytes:
    """One block; `types` says which columns there are."""
    rows = len(next(iter(columns.values())))
    pieces = [varint(len(types)), varint(rows)]
    for name, kind in types.items():
        column = columns[name]
        if len(column) != rows:
            raise ValueError(f"column {name} has {len(column)} rows, not {rows}")
        pieces += [_string(name.encode()), _string(kind.encode())]
        if isinstance(column, Repeated):
            pieces += [_string(text.encode("utf-8", "surrogatepass")) * count for text, count in column.items]
        elif kind == "String":
            pieces += [
                _string(item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass")) for item in column
            ]
        else:
            pieces.append(np.asarray(column).astype(DTYPES[kind], copy=False).tobytes())
    return b"".join(pieces)


def decode(data: bytes) -> dict[str, Any]:
    """The columns of all blocks of an answer: arrays, or lists of bytes. Empty if there was no row."""
    found: dict[str, list[Any]] = {}
    for block in _blocks(data):
        for name, column in block.items():
            found.setdefault(name, []).append(column)
    return {
        name: np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [item for part in parts for item in part]
        for name, parts in found.items()
    }


def _blocks(data: bytes) -> Iterator[dict[str, Any]]:
    place = 0
    try:
        while place < len(data):
            columns, place = read_varint(data, place)
            rows, place = read_varint(data, place)
            block: dict[str, Any] = {}
            for _ in range(columns):
                name, place = _read_string(data, place)
                kind, place = _read_string(data, place)
                block[name.decode()], place = _read_column(data, place, kind.decode(), rows)
            if rows:
                yield block
    except (IndexError, ValueError, KeyError) as error:
        raise FormatError(f"the engine's answer is cut off or not Native: {error}") from error


def _read_column(data: bytes, place: int, kind: str, rows: int) -> tuple[Any, int]:
    if kind == "String":
        found = []
        for _ in range(rows):
            item, place = _read_string(data, place)
            found.append(item)
        return found, place
    dtype = np.dtype(DTYPES[kind])
    end = place + rows * dtype.itemsize
    if end > len(data):
        raise ValueError("a column is too short")
    return np.frombuffer(data, dtype, rows, place), end


def _string(data: bytes) -> bytes:
    return varint(len(data)) + data


def _read_string(data: bytes, place: int) -> tuple[bytes, int]:
    size, place = read_varint(data, place)
    end = place + size
    if end > len(data):
        raise ValueError("a string is too short")
    return data[place:end], end
