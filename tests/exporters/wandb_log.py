"""Reads what W&B's client wrote into a `.wandb` file: a LevelDB log of protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32 << 10
HISTORY, SUMMARY, CONFIG, RUN, EXIT = 2, 3, 5, 17, 18


def read_records(path: Path) -> Iterator[bytes]:
    """Whole records, up to where the file was cut."""
    data, place, parts = path.read_bytes(), 7, list[bytes]()
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += 7
        if kind == 0 or place + length > len(data):
            return
        parts.append(data[place : place + length])
        place += length
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def read_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protocol buffer."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            length = varint()
            yield key >> 3, data[place : place + length]
            place += length
        else:
            size = 8 if key & 7 == 1 else 4
            yield key >> 3, data[place : place + size]
            place += size


def read_items(data: bytes) -> dict[str, Any]:
    """The items of a history, a summary or a config: key or nested keys, and JSON."""
    found = {}
    for number, item in read_fields(data):
        if number == 1:
            fields = list(read_fields(item))
            key = [value.decode() for name, value in fields if name in (1, 2)]
            (value,) = [value for name, value in fields if name == 16]
            found["/".join(key)] = json.loads(value)
    return found


def read_all(folder: Path, kind: int) -> list[dict[str, Any]]:
    """All records of a kind in the files of a run, the oldest first."""
    paths = sorted(folder.rglob("*.wandb"))
    fields = (field for path in paths for record in read_records(path) for field in read_fields(record))
    return [read_items(value) for number, value in fields if number == kind]
