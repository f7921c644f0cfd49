"""Following a JSONL file that somebody else writes: whole lines only, from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from trainvitals.journal import layout
from trainvitals.journal.layout import FileName

if TYPE_CHECKING:
    from trainvitals.journal.sealed import SealedSegments

CHUNK = 4 << 20
USUAL_LINE = 128
"""Bytes of a line, where it is not known how long the lines of a sealed file were."""
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


@dataclass(slots=True)
class _Followed:
    """One file of the journal, before and after it is sealed."""

    name: FileName
    cursor: Cursor
    lines: int | None = 0
    """Lines given or passed over, so that it is known where to go on when the file was sealed; None if not counted."""
    over: bool = False
    """All of it was given, and nothing more will come."""


class Follower:
    """New rows of a run folder as they are written, from every file of the given tables.

    Rows of one file come in order; files of one writer come one after the other. Rows written before the follower
    was made are given too, sealed ones included, unless `from_end`.
    """

    def __init__(self, folder: Path, tables: tuple[str, ...], *, from_end: bool = False) -> None:
        self._folder = folder
        self._tables = tables
        self._files: dict[str, _Followed] = {}
        self._segments: dict[str, Path] = {}
        self._sealed: SealedSegments | None = None
        self._find_files()
        if from_end:
            newest = {followed.name.writer: followed for followed in self._files.values()}
            for followed in self._files.values():
                _skip(followed, count=newest[followed.name.writer] is followed)

    @property
    def damage(self) -> Damage:
        return sum((followed.cursor.damage for followed in self._files.values()), Damage())

    def poll(self, limit: int | None = None) -> list[tuple[FileName, dict[str, Any]]]:
        """What was written since the last poll, at most about `limit` bytes per file."""
        self._find_files()
        found: list[tuple[FileName, dict[str, Any]]] = []
        behind: set[object] = set()  # writers with an older file that has more to give
        for stem, followed in self._files.items():
            writer = followed.name.writer
            if followed.over or writer in behind:
                continue
            if stem in self._segments:
                rows, whole = self._read_segment(self._segments[stem], followed, limit)
            else:
                rows, whole = _read_tail(followed, limit)
            found.extend((followed.name, row) for row in rows)
            if not whole:
                behind.add(writer)
        return found

    def _find_files(self) -> None:
        listed = [item for item in layout.list_files(self._folder) if item[0].table in self._tables]
        tails = {name.stem for name, suffix, _ in listed if suffix == ".jsonl"}
        # A segment beside its file adds nothing: it is kept, or about to be removed.
        self._segments = {
            name.stem: path for name, suffix, path in listed if suffix == ".parquet" and name.stem not in tails
        }
        before = len(self._files)
        for name, suffix, _ in listed:
            if suffix in (".jsonl", ".parquet") and name.stem not in self._files:
                self._files[name.stem] = _Followed(name, Cursor(self._folder / name.jsonl))
        if len(self._files) > before:  # in reading order, whenever they came to light
            self._files = dict(sorted(self._files.items(), key=lambda item: (item[1].name.attempt, item[1].name.stamp)))

    def _read_segment(self, path: Path, followed: _Followed, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
        """(what it has beyond the lines that were given, whether that is all)."""
        if followed.lines is None:
            followed.over = True
            return [], True
        import duckdb

        from trainvitals.journal.sealed import SealedSegments

        self._sealed = self._sealed or SealedSegments()
        first = followed.lines
        end = 2**62 if limit is None else first + max(1, limit // USUAL_LINE)
        try:
            rows = list(self._sealed.rows(path, first, end))
            followed.over = end >= self._sealed.count_lines(path)
        except duckdb.Error:  # the run was removed as we looked, or the segment is no Parquet
            rows = []
            followed.over = True
            followed.cursor.damage.torn += path.exists()
        followed.lines = end
        return rows, followed.over


def _read_tail(followed: _Followed, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """(the new rows, whether there were no more)."""
    cursor = followed.cursor
    offset, inode = cursor.offset, cursor.inode
    rows = cursor.read(limit)
    if cursor.offset < offset or (inode and cursor.inode != inode):  # another file, read from its beginning
        followed.lines = len(rows)
    elif followed.lines is not None:
        followed.lines += len(rows)
    if limit is not None and cursor.offset - offset >= limit:
        return rows, False
    return rows, bool(rows) or cursor.path.exists()  # else it was sealed just now: the next look finds the segment


def _skip(followed: _Followed, *, count: bool) -> None:
    """Go to the end. The newest file of a writer will have more lines, and is counted for when it is sealed."""
    try:
        with open(followed.cursor.path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            followed.cursor.offset, followed.cursor.inode = status.st_size, status.st_ino
            followed.lines = _count_lines(file.read, status.st_size) if count else None
    except FileNotFoundError:
        followed.over = True  # sealed before we came


def _count_lines(read: Callable[[int], bytes], size: int) -> int:
    """Whole lines in the first `size` bytes, without taking them apart: each ends as an object does."""
    found, before = 0, b""
    while size > 0 and (chunk := read(min(size, CHUNK))):
        found += (before + chunk).count(b"}\n")
        before = chunk[-1:] if chunk.endswith(b"}") else b""
        size -= len(chunk)
    return found
