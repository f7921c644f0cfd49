"""Following a JSONL file that somebody else writes: whole lines only, from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from trainvitals.journal import layout
from trainvitals.journal.layout import FileName

CHUNK = 4 << 20
LINE_START = b'{"timestamp":"'


@dataclass(slots=True)
class Damage:
    """What could not be understood, counted and shown rather than dropped silently."""

    torn: int = 0
    """Lines that are no JSON: cut off by a crash or a full disk, or not ours."""
    foreign: int = 0
    """JSON that is no line of the journal: not an object, or without a timestamp."""

    def __add__(self, other: Damage) -> Damage:
        return Damage(self.torn + other.torn, self.foreign + other.foreign)


def parse_line(line: bytes, damage: Damage) -> dict[str, Any] | None:
    """The object on the line, or None, and then `damage` has counted it. A blank line is nothing."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        if line.strip():
            damage.torn += 1
        # A line cut by a full disk may have the next one of another thread behind it on the same line.
        start = line.rfind(LINE_START)
        return parse_line(line[start:], damage) if start > 0 else None
    if not isinstance(row, dict) or not isinstance(row.get("timestamp"), str):
        damage.foreign += 1
        return None
    return row


@dataclass(slots=True)
class Cursor:
    """A place in one file. `read` gives the lines completed since the last call."""

    path: Path
    offset: int = 0
    inode: int = 0
    damage: Damage = field(default_factory=Damage)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """New rows, at most about `limit` bytes of them; a last line without its newline waits for the next call."""
        rows: list[dict[str, Any]] = []
        self.feed(lambda line: self._collect(line, rows), limit)
        return rows

    def feed(self, take: Callable[[bytes], None], limit: int | None = None) -> int:
        """Hand every new complete line to `take`. Returns the bytes consumed; 0 if there was nothing new."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if status.st_size < self.offset or (self.inode and status.st_ino != self.inode):
                    self.offset = 0  # replaced or truncated (a copy came anew): read it again
                self.inode = status.st_ino
                if status.st_size == self.offset:
                    return 0
                file.seek(self.offset)
                return self._feed_from(file.read, take, limit)
        except FileNotFoundError:
            return 0  # sealed or removed: its rows are in a segment, or gone with the run

    def _feed_from(self, read: Callable[[int], bytes], take: Callable[[bytes], None], limit: int | None) -> int:
        consumed, rest = 0, b""
        size = CHUNK if limit is None else min(CHUNK, limit)
        while limit is None or consumed < limit:
            chunk = read(size)
            if not chunk:
                break
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            if end == 0:
                rest = data
                continue
            for line in data[: end - 1].split(b"\n"):
                take(line)
            rest = data[end:]
            consumed += end
        self.offset += consumed
        return consumed

    def _collect(self, line: bytes, rows: list[dict[str, Any]]) -> None:
        row = parse_line(line, self.damage)
        if row is not None:
            rows.append(row)


class Follower:
    """New rows of a run folder as they are written, from every file of the given tables.

    Rows of one file come in order; files of one writer come one after the other. Rows written before the follower
    was made are given too unless `from_end`.
    """

    def __init__(self, folder: Path, tables: tuple[str, ...], *, from_end: bool = False) -> None:
        self._folder = folder
        self._tables = tables
        self._cursors: dict[str, tuple[FileName, Cursor]] = {}
        if from_end:
            self._find_new_files()
            for _, cursor in self._cursors.values():
                try:
                    status = cursor.path.stat()
                    cursor.offset, cursor.inode = status.st_size, status.st_ino
                except FileNotFoundError:
                    continue

    @property
    def damage(self) -> Damage:
        return sum((cursor.damage for _, cursor in self._cursors.values()), Damage())

    def poll(self, limit: int | None = None) -> list[tuple[FileName, dict[str, Any]]]:
        """What was written since the last poll, at most about `limit` bytes per file."""
        self._find_new_files()
        found: list[tuple[FileName, dict[str, Any]]] = []
        for name, cursor in self._cursors.values():
            found.extend((name, row) for row in cursor.read(limit))
        return found

    def _find_new_files(self) -> None:
        for name, suffix, path in layout.list_files(self._folder):
            if suffix == ".jsonl" and name.table in self._tables and path.name not in self._cursors:
                self._cursors[path.name] = (name, Cursor(path))
