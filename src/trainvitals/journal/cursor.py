"""Following a JSONL file that somebody else writes: whole lines only, from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.encoding import TimeParser
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
    """JSON that is no line of the journal: not an object, or without a time."""
    files: int = 0
    """Parquet files that cannot be read and whose JSONL file is gone."""

    def __add__(self, other: Damage) -> Damage:
        return Damage(self.torn + other.torn, self.foreign + other.foreign, self.files + other.files)

    def __bool__(self) -> bool:
        return bool(self.torn or self.foreign or self.files)

    def __str__(self) -> str:
        """`3 torn lines, 1 unreadable Parquet file`."""
        kinds = ((self.torn, "torn line"), (self.foreign, "foreign line"), (self.files, "unreadable Parquet file"))
        return ", ".join(f"{count:,} {what}{'s' if count > 1 else ''}" for count, what in kinds if count)


_CLOCK = TimeParser()  # only asked whether a text is a time, so it does not matter that threads share it


def parse_line(line: bytes, damage: Damage) -> dict[str, Any] | None:
    """The object on the line, or None, and then `damage` has counted it. A blank line is nothing.

    What is given here is a row of the sealed file too, and nothing else is: lines are counted alike before and after.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        if line.strip():
            damage.torn += 1
        # A line cut by a full disk may have the next one of another thread behind it on the same line.
        start = line.rfind(LINE_START)
        return parse_line(line[start:], damage) if start > 0 else None
    if isinstance(row, dict):
        time = row.get("timestamp")
        if isinstance(time, str) and _CLOCK.parse(time) is not None:
            return row
    damage.foreign += 1
    return None


@dataclass(slots=True)
class Cursor:
    """A place in one file. `read` gives the lines completed since the last call."""

    path: Path
    offset: int = 0
    inode: int = 0
    damage: Damage = field(default_factory=Damage)
    gone: bool = False
    """The file was not there at the last look: sealed, or removed with its run."""

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """New rows, at most about `limit` bytes of them; a last line without its newline waits for the next call."""
        rows: list[dict[str, Any]] = []
        self.feed(lambda line: self.collect(line, rows), limit)
        return rows

    def feed(
        self,
        take: Callable[[bytes], None],
        limit: int | None = None,
        restart: Callable[[], None] | None = None,
    ) -> int:
        """Hand every new complete line to `take`. Returns the bytes consumed; 0 if there was nothing new.

        `restart` is called before a file that took the place of the one read so far is read from its beginning.
        """
        self.gone = False
        try:
            with open(self.path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if status.st_size < self.offset or (self.inode and status.st_ino != self.inode):
                    self.offset = 0  # replaced or truncated (a copy came anew): read it again
                    if restart is not None:
                        restart()
                self.inode = status.st_ino
                if status.st_size == self.offset:
                    return 0
                file.seek(self.offset)
                return self._feed_from(file.read, take, limit)
        except FileNotFoundError:
            self.gone = True  # its rows are in a segment, or gone with the run
            return 0

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

    def collect(self, line: bytes, rows: list[dict[str, Any]]) -> None:
        """Take one line apart and add it to `rows`."""
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
        from trainvitals.journal.sealed import SealedSegments

        self._sealed = self._sealed or SealedSegments(path.parent)
        first = followed.lines
        end = 2**62 if limit is None else first + max(1, limit // USUAL_LINE)
        try:
            rows = list(self._sealed.rows(path, first, end))
            followed.over = end >= self._sealed.count_lines(path)
        except JournalError:  # the run was removed as we looked, or the segment is no Parquet
            rows = []
            followed.over = True
            followed.cursor.damage.files += path.exists()
        followed.lines = end
        return rows, followed.over


def _read_tail(followed: _Followed, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """(the new rows, whether there were no more)."""
    cursor = followed.cursor
    rows: list[dict[str, Any]] = []

    def restart() -> None:
        followed.lines = 0

    consumed = cursor.feed(lambda line: cursor.collect(line, rows), limit, restart)
    if followed.lines is not None:
        followed.lines += len(rows)
    if limit is not None and consumed >= limit:
        return rows, False
    return rows, not cursor.gone  # else it was sealed just now: the next look finds the segment


def _skip(followed: _Followed, *, count: bool) -> None:
    """Go to the end. The newest file of a writer will have more lines, and is counted for when it is sealed."""
    cursor = followed.cursor
    try:
        with open(cursor.path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            cursor.offset, cursor.inode, followed.lines = status.st_size, status.st_ino, None
            if count:
                followed.lines, cursor.offset = _count_lines(file.read, status.st_size)
    except FileNotFoundError:
        followed.over = True  # sealed before we came


def count_rows(path: Path, gone: int) -> int:
    """How many rows a file has now; `gone` if it is not there."""
    try:
        with open(path, "rb", buffering=0) as file:
            return _count_lines(file.read, os.fstat(file.fileno()).st_size)[0]
    except FileNotFoundError:
        return gone


def _count_lines(read: Callable[[int], bytes], size: int) -> tuple[int, int]:
    """(rows in the first `size` bytes, bytes of their lines).

    What begins and ends as our lines do is taken for a row without a closer look.
    """
    rows, seen, rest, damage = 0, 0, b"", Damage()
    while seen < size and (chunk := read(min(size - seen, CHUNK))):
        seen += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            ours = line.startswith(LINE_START) and line.endswith(b"}")
            rows += ours or parse_line(line, damage) is not None
    return rows, seen - len(rest)
