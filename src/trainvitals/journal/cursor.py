"""One JSONL file that somebody else writes: whole lines only, from where the last look ended."""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from trainvitals.journal import layout
from trainvitals.journal.damage import Damage
from trainvitals.journal.encoding import LINE_START, TimeParser, is_complete

CHUNK = 4 << 20

Row = dict[str, Any]


_CLOCK = TimeParser()  # only asked whether a text is a time, so it does not matter that threads share it


def parse_line(line: bytes, damage: Damage) -> Row | None:
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


_parsed: Counter[str] = Counter()
_parsed_lock = threading.Lock()


def count_parsed() -> Mapping[str, int]:
    """How many lines this process has read from journal files, by table: all that reads them does so with a Cursor."""
    with _parsed_lock:
        return dict(_parsed)


@dataclass(slots=True)
class Cursor:
    """A place in one file. `read` gives the lines completed since the last call."""

    path: Path
    offset: int = 0
    inode: int = 0
    damage: Damage = field(default_factory=Damage)
    gone: bool = False
    """The file was not there at the last look: sealed, or removed with its run."""

    def read(self, limit: int | None = None) -> list[Row]:
        """New rows, at most about `limit` bytes of them; a last line without its newline waits for the next call."""
        rows: list[Row] = []
        self.feed(lambda line: self.collect(line, rows), limit)
        return rows

    def feed(
        self,
        take: Callable[[bytes], None],
        limit: int | None = None,
        restart: Callable[[], None] | None = None,
        until: int | None = None,
    ) -> int:
        """Hand every new complete line to `take`. Returns the bytes consumed; 0 if there was nothing new.

        `restart` is called before a file that took the place of the one read so far is read from its beginning. `until`
        is the offset at which some line begins: what is behind it waits for the next call.
        """
        self.gone = False
        try:
            status = self.path.stat()
            if status.st_size == self.offset and status.st_ino == self.inode:
                return 0  # nearly every look: without opening the file
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(self.path)  # a pipe or a device would be waited for without end
            with open(self.path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if status.st_size < self.offset or (self.inode and status.st_ino != self.inode):
                    self.offset, until = 0, None  # replaced or truncated (it was copied again): read it again
                    if restart is not None:
                        restart()
                self.inode = status.st_ino
                if status.st_size == self.offset:
                    return 0
                file.seek(self.offset)
                return self._feed_from(file.read, take, limit, until)
        except FileNotFoundError:
            self.gone = True  # its rows are in a segment, or gone with the run
            return 0

    def _feed_from(
        self, read: Callable[[int], bytes], take: Callable[[bytes], None], limit: int | None, until: int | None
    ) -> int:
        consumed, count, rest = 0, 0, b""
        size = CHUNK if limit is None else min(CHUNK, limit)
        while limit is None or consumed < limit:
            if until is not None:
                size = min(size, until - self.offset - consumed - len(rest))
            chunk = read(size)
            if not chunk:
                break
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            if end == 0:
                rest = data
                continue
            lines = data[: end - 1].split(b"\n")
            for line in lines:
                take(line)
            rest = data[end:]
            consumed += end
            count += len(lines)
        self.offset += consumed
        name = layout.parse_name(self.path.name) if count else None
        if name is not None:
            with _parsed_lock:
                _parsed[name[0].table] += count
        return consumed

    def collect(self, line: bytes, rows: list[Row]) -> None:
        """Take one line apart and add it to `rows`."""
        row = parse_line(line, self.damage)
        if row is not None:
            rows.append(row)


def find_line(path: Path, offset: int) -> int:
    """Where the first line begins that starts at `offset` or behind it; raises OSError if there is no such file."""
    if offset <= 0:
        return 0
    with open(path, "rb") as file:
        file.seek(offset - 1)
        file.readline()
        return file.tell()


def count_rows(path: Path, gone: int) -> int:
    """How many rows a file has now; `gone` if it is not there."""
    found = measure(path)
    return gone if found is None else found[0]


def measure(path: Path) -> tuple[int, int] | None:
    """(rows, bytes of their lines) of a file now, None if it is not there.

    What begins and ends as our lines do is taken for a row without a closer look.
    """
    rows, seen, rest, damage = 0, 0, b"", Damage()
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while seen < size and (chunk := file.read(min(size - seen, CHUNK))):
                seen += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    rows += is_complete(line) or parse_line(line, damage) is not None
    except FileNotFoundError:
        return None
    return rows, seen - len(rest)
