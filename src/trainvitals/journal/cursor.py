"""One JSONL file that another process writes: complete lines only, from where the last read ended."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from trainvitals.journal import layout
from trainvitals.journal.damage import Damage
from trainvitals.journal.encoding import LINE_START, TimeParser, is_complete
from trainvitals.plain_json import is_too_deep

CHUNK = 4 << 20
LONGEST_LINE = 64 << 20
"""A longer one is cut here, so that a file without newlines is read in bounded memory: a disk that lost power leaves
stretches of zeros, and a sparse file has terabytes of them."""

Row = dict[str, Any]


_CLOCK = TimeParser()  # only asked whether a text is a time, so it does not matter that threads share it


def parse_line(line: bytes, damage: Damage) -> Row | None:
    """The object on the line, or None, and then `damage` has counted it. A blank line is nothing.

    What is given here is a row of the sealed file too, and nothing else is: lines are counted alike before and after.
    """
    found = parse_timed(line, damage, _CLOCK)
    return None if found is None else found[0]


def parse_timed(line: bytes, damage: Damage, clock: TimeParser) -> tuple[Row, int] | None:
    """As `parse_line`, with the time in microseconds since 1970."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        if line.strip():
            damage.torn += 1
        # A line cut by a full disk may have the next one of another thread behind it on the same line.
        start = line.rfind(LINE_START)
        return parse_timed(line[start:], damage, clock) if start > 0 else None
    if isinstance(row, dict) and not is_too_deep(line, row):
        time = row.get("timestamp")
        if isinstance(time, str) and (moment := clock.parse(time)) is not None:
            return row, moment
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
                return self._feed_from(file, take, limit, until)
        except FileNotFoundError:
            self.gone = True  # its rows are in a segment, or gone with the run
            return 0

    def _feed_from(self, file: BinaryIO, take: Callable[[bytes], None], limit: int | None, until: int | None) -> int:
        end, count = self.offset, 0
        for lines, end in _split(file, CHUNK if limit is None else min(CHUNK, limit), until):
            for line in lines:
                take(line)
            count += len(lines)
            if limit is not None and end - self.offset >= limit:
                break
        consumed, self.offset = end - self.offset, end
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


def _split(file: BinaryIO, size: int = CHUNK, until: int | None = None) -> Iterator[tuple[list[bytes], int]]:
    """(complete lines, the offset behind them), `size` bytes at a time from where the file is, up to `until`.

    A line longer than LONGEST_LINE is cut, and a hole in the file at that place is passed over.
    """
    start = place = file.tell()
    rest: list[bytes] = []
    while piece := file.read(size if until is None else min(size, until - place)):
        place += len(piece)
        head, newline, tail = piece.rpartition(b"\n")
        if newline:
            lines = b"".join([*rest, head]).split(b"\n")
            start, rest = place - len(tail), [tail]
            yield lines, start
            continue
        rest.append(piece)
        if place - start > LONGEST_LINE:
            lines = [b"".join(rest)]
            start = place = file.seek(_skip_hole(file, place, until))
            rest = []
            yield lines, start


def _skip_hole(file: BinaryIO, place: int, until: int | None) -> int:
    """Where the next data of the file is, at `place` or behind it."""
    end = os.fstat(file.fileno()).st_size if until is None else until
    try:
        return min(os.lseek(file.fileno(), place, os.SEEK_DATA), end)
    except (AttributeError, OSError) as error:  # a platform or a file system that does not know holes
        return end if getattr(error, "errno", None) == errno.ENXIO else place


def find_line(path: Path, offset: int) -> int:
    """Where the first line begins that starts at `offset` or behind it; raises OSError if there is no such file."""
    if offset <= 0:
        return 0
    with open(path, "rb") as file:
        file.seek(offset - 1)
        file.readline(LONGEST_LINE)
        return file.tell()


def count_rows(path: Path, gone: int) -> int:
    """How many rows a file has now; `gone` if it is not there."""
    found = measure(path)
    return gone if found is None else found[0]


def measure(path: Path) -> tuple[int, int] | None:
    """(rows, bytes of their lines) of a file now, None if it is not there.

    What begins and ends as our lines do is taken for a row without a closer look.
    """
    rows, end, damage = 0, 0, Damage()
    try:
        with open(path, "rb", buffering=0) as file:
            for lines, place in _split(file, until=os.fstat(file.fileno()).st_size):
                end = place
                rows += sum(is_complete(line) or parse_line(line, damage) is not None for line in lines)
    except FileNotFoundError:
        return None
    return rows, end


def count_lines(path: Path) -> int:
    """Lines of any kind; raises OSError if the file cannot be read."""
    with open(path, "rb", buffering=0) as file:
        return sum(len(lines) for lines, _ in _split(file))
