"""Following the files of a run as they are written, rotated and sealed: each line is read once for all who want it.

    relay = Relay(folder)
    relay.add(listener)     # any number of them, at any time
    relay.poll(512 << 10)   # hands over new rows, at most about so many bytes of each file

`Follower` is a relay with one listener, for callers that just want a list of rows. Everything that reads a run
incrementally goes through here, except `RunReader`: it keeps columns, not rows, and each of its answers must be of one
state of the folder, so it shares the `Cursor` only.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor, Row, measure, parse_line
from trainvitals.journal.damage import Damage
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Listener, Position, Positions

if TYPE_CHECKING:
    from trainvitals.journal.segment_reader import SealedSegments

USUAL_LINE = 128
"""Bytes of a line, where it is not known how long the lines of a sealed file were."""
CLOCK_TICK_NS = 100_000_000
RELIST_SECONDS = 5.0
CLOSED_SECONDS = 5.0
"""A file that was read to its end and has had a successor for this long is looked at only now and then."""

ReadSealed = Callable[[Path, int], Iterator[Row] | None]
"""The rows of a segment from the given one on; None: not now. Raises JournalError where it cannot be read."""
Wanted = Callable[[FileName], bool]


class _SealedHere:
    """Segments read in this process: loads DuckDB when there is one to read."""

    def __init__(self) -> None:
        self._segments: SealedSegments | None = None

    def __call__(self, path: Path, first: int) -> Iterator[Row]:
        from trainvitals.journal.segment_reader import SealedSegments

        self._segments = self._segments or SealedSegments(path.parent)
        return self._segments.rows(path, first)


class _Listing:
    """The journal files of one folder; listed again only when it has changed."""

    def __init__(self, place: Path, suffix: str) -> None:
        self.place = place
        self.files: dict[FileName, Path] = {}
        self._suffix = suffix
        self._names: dict[str, FileName | None] = {}
        self._changed = -1
        self._next = 0.0

    def refresh(self, *, force: bool = False) -> bool:
        """Whether files came or went."""
        now = time.monotonic()
        try:
            changed = self.place.stat().st_mtime_ns
            if changed == self._changed and now < self._next and not force:
                return False
            with os.scandir(self.place) as entries:
                found = [entry for entry in entries if entry.name.endswith(self._suffix)]
                names = [entry.name for entry in found if layout.is_regular(entry)]
        except (FileNotFoundError, NotADirectoryError):
            changed, names = 0, []
        # A folder changed just now may change again within the same tick of the file system's clock.
        settled = time.time_ns() - changed > CLOCK_TICK_NS
        self._changed, self._next = changed, now + RELIST_SECONDS if settled else 0.0
        before, self._names = self._names, {}
        for name in names:
            self._names[name] = before[name] if name in before else self._parse(name)
        if before.keys() == self._names.keys():
            return False
        self.files = {parsed: self.place / name for name, parsed in self._names.items() if parsed is not None}
        return True

    def _parse(self, name: str) -> FileName | None:
        parsed = layout.parse_name(name)
        return parsed[0] if parsed is not None and parsed[1] == self._suffix else None


@dataclass(slots=True, eq=False)
class _Place:
    """A position in a file and the listeners that are there: they read on together."""

    cursor: Cursor
    lines: int | None
    listeners: list[Listener]
    sealed: Iterator[Row] | None = None
    at_end: bool = False
    """Nothing more was found at the last look."""
    closed: bool = False
    """All who are here know that nothing more will be written."""
    over: bool = False
    """All of it was given, and nothing more will come."""

    @property
    def position(self) -> Position:
        return Position(self.cursor.offset, self.lines)

    def is_at(self, other: _Place, sealed: bool) -> bool:
        if sealed:
            return self.lines == other.lines
        return self.cursor.offset == other.cursor.offset


@dataclass(slots=True, eq=False)
class _File:
    """One file of the journal, before and after it is sealed."""

    name: FileName
    places: list[_Place] = field(default_factory=list)
    """The earliest first."""
    known: list[Listener] = field(default_factory=list)
    """Listeners that want it."""
    superseded: float = math.inf
    """Monotonic time at which its writer was seen to have begun another file."""


class Relay:
    """Reads the files of a run folder once and hands the rows to every listener that wants them.

    Each listener begins at its own positions. Those at the same place of a file share what is read; one that comes
    late, or that acknowledges late, reads on by itself until it has caught up with the others.
    """

    def __init__(
        self,
        folder: Path,
        wanted: Wanted = lambda file: True,
        *,
        read_sealed: ReadSealed | None = None,
        on_error: Callable[[Listener, Exception], None] | None = None,
    ) -> None:
        """`wanted` filters files for all listeners. What listeners raise goes to `on_error`, else to the caller."""
        self._tails = _Listing(folder, ".jsonl")
        self._segments = _Listing(folder / layout.SEGMENTS, ".parquet")
        self._wanted = wanted
        self._read_sealed = read_sealed or _SealedHere()
        self._on_error = on_error
        self._listeners: list[Listener] = []
        self._rooms: dict[int, Callable[[], bool]] = {}
        """By the id of a listener that may be full."""
        self._held_back: set[int] = set()
        self._files: dict[FileName, _File] = {}
        self._open: list[_File] = []
        """Those that somebody still reads, in reading order."""
        self._next_full_look = 0.0
        self._stale = True
        self.waits = False
        """Whether the last poll had to leave a segment for later."""

    # -- who listens

    def add(self, listener: Listener, has_room: Callable[[], bool] | None = None) -> None:
        """Hand it everything behind its positions, oldest file first. While it has no room its rows stay in the files,
        and it reads on from there later."""
        self._listeners.append(listener)
        if has_room is not None:
            self._rooms[id(listener)] = has_room
        self._stale = True

    def remove(self, listener: Listener) -> None:
        """Stop handing it rows, and stop waiting for it."""
        self._listeners = [item for item in self._listeners if item is not listener]
        self._rooms.pop(id(listener), None)
        for file in self._files.values():
            file.known = [item for item in file.known if item is not listener]
            for place in file.places:
                place.listeners = [item for item in place.listeners if item is not listener]
            file.places = [place for place in file.places if place.listeners]

    def ask_again(self) -> None:
        """The answers of `wanted` have changed."""
        self._stale = True
        self.find_files()

    def behind(self, file: FileName) -> list[Listener]:
        """Of a finished file: who has not read all of it, or not acknowledged that it was all and so
        would have to look into its segment after a restart."""
        known = self._files.get(file)
        found = []
        for place in known.places if known is not None else ():
            if place.at_end and not place.closed and not place.over:
                place.closed = True
                self._hand(place, Batch(file, (), Position(place.cursor.offset, None), Damage()))
            for listener in place.listeners:
                done = place.over or (place.at_end and listener.acknowledged.is_done(file, place.cursor.offset))
                if not done:
                    found.append(listener)
        return found

    def close(self) -> None:
        """All files are finished."""
        for file in self._files:
            self.behind(file)

    def last_write(self, wanted: Wanted) -> float | None:
        """When one of these files was written last, in seconds since 1970; None if there are none."""
        newest = None
        for file, path in self._tails.files.items():
            if wanted(file):
                try:
                    newest = max(path.stat().st_mtime, newest or 0.0)
                except FileNotFoundError:
                    continue
        return newest

    # -- reading

    def poll(self, limit: int | None = None) -> bool:
        """Hand over new rows, at most about `limit` bytes of a file at a time. Returns whether there were any."""
        self.find_files()
        now = time.monotonic()
        look_at_all = now >= self._next_full_look
        if look_at_all:
            self._next_full_look = now + RELIST_SECONDS
        found = self.waits = False
        self._held_back.clear()
        behind: set[tuple[object, int]] = set()  # (writer, listener) that is full or has an older file to read first
        for file in self._open:
            rests = now - file.superseded > CLOSED_SECONDS
            for place in list(file.places):
                if place.over or (rests and place.at_end and not look_at_all):
                    continue
                if self._rooms:
                    full = {id(listener) for listener in place.listeners if self._is_full(listener)}
                    self._held_back |= full
                    behind.update((file.name.writer, listener) for listener in full)
                if behind and not self._part(file, place, behind):
                    continue
                given, whole = self._read(file, place, limit)
                found |= given
                self._join(file)
                # Who has caught up with the next place reads on from there, at once.
                if not whole and place in file.places:
                    behind.update((file.name.writer, id(listener)) for listener in place.listeners)
        if any(all(place.over for place in file.places) for file in self._open):
            self._open = [file for file in self._open if not all(place.over for place in file.places)]
        return found

    def holds_back(self, listener: Listener) -> bool:
        """Whether the last poll left rows in the files because this listener had no room for them, or may have."""
        return id(listener) in self._held_back

    def _is_full(self, listener: Listener) -> bool:
        has_room = self._rooms.get(id(listener))
        return has_room is not None and not has_room()

    def find_files(self) -> None:
        """Find new files. Cheap when the folder has not changed."""
        # The segments last: a file that was sealed meanwhile is a segment by then.
        changed = self._tails.refresh()
        changed |= self._segments.refresh()
        if not changed and not self._stale:
            return
        self._stale = False
        present = self._tails.files.keys() | self._segments.files.keys()
        for gone in self._files.keys() - present:
            del self._files[gone]
        for name in (*self._tails.files, *self._segments.files):
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _File(name)
            if not self._wanted(name):
                continue
            for listener in self._listeners:
                if not any(item is listener for item in file.known) and listener.wants(name):
                    file.known.append(listener)
                    self._start(file, listener)
        self._open = sorted(
            (file for file in self._files.values() if not all(place.over for place in file.places)),
            key=lambda file: file.name.order,
        )
        now = time.monotonic()
        newest = {name.writer: name for name in sorted(self._files, key=lambda name: name.order)}
        for file in self._open:
            if newest[file.name.writer] != file.name:
                file.superseded = min(file.superseded, now)

    def _start(self, file: _File, listener: Listener) -> None:
        start = listener.positions.get(file.name)
        if start is None or (start.lines is None and file.name not in self._tails.files):
            return  # all of it was read
        cursor = Cursor(self._tails.place / file.name.jsonl, start.offset)
        file.places.append(_Place(cursor, start.lines, [listener]))
        self._join(file)

    def _is_sealed(self, file: _File) -> bool:
        """A segment beside its JSONL file does not count: the file is kept, or about to be removed."""
        return file.name not in self._tails.files and file.name in self._segments.files

    def _join(self, file: _File) -> None:
        """Merge places that have become the same."""
        if len(file.places) < 2:
            return
        sealed = self._is_sealed(file)
        file.places.sort(key=lambda place: (place.lines if sealed else place.cursor.offset) or 0)
        joined = file.places[:1]
        for place in file.places[1:]:
            if place.is_at(joined[-1], sealed) and place.over == joined[-1].over:
                place.listeners = [*joined[-1].listeners, *place.listeners]
                place.lines = joined[-1].lines if place.lines is None else place.lines
                place.closed = place.closed and joined[-1].closed
                joined[-1] = place
            else:
                joined.append(place)
        file.places = joined

    def _part(self, file: _File, place: _Place, behind: set[tuple[object, int]]) -> bool:
        """Split off the listeners that cannot read on here yet. False if that is all of them."""
        writer = file.name.writer
        waiting = [listener for listener in place.listeners if (writer, id(listener)) in behind]
        if not waiting:
            return True
        ready = [listener for listener in place.listeners if (writer, id(listener)) not in behind]
        if ready:
            cursor = Cursor(place.cursor.path, place.cursor.offset, place.cursor.inode)
            file.places.insert(file.places.index(place), _Place(cursor, place.lines, waiting))
            place.listeners = ready
        return bool(ready)

    def _read(self, file: _File, place: _Place, limit: int | None) -> tuple[bool, bool]:
        """(whether there were new rows, whether those were all)."""
        if not self._is_sealed(file):
            given, whole = self._read_tail(file, place, limit)
            if not place.cursor.gone:
                return given, whole
            self._tails.refresh(force=True)
            self._segments.refresh(force=True)
            self._stale = True
            if not self._is_sealed(file):
                place.over = True  # removed, with its run perhaps
                return given, True
        return self._read_segment(file, place, limit)

    def _read_tail(self, file: _File, place: _Place, limit: int | None) -> tuple[bool, bool]:
        cursor, rows, damage = place.cursor, list[Row](), Damage()
        ahead = min((other.cursor.offset for other in file.places if other.cursor.offset > cursor.offset), default=None)

        def take(line: bytes) -> None:
            row = parse_line(line, damage)
            if row is not None:
                rows.append(row)

        def restart() -> None:
            place.lines = 0

        consumed = cursor.feed(take, limit, restart, ahead)
        place.at_end = consumed == 0
        if consumed:
            place.closed = False
            place.lines = None if place.lines is None else place.lines + len(rows)
            self._hand(place, Batch(file.name, rows, place.position, damage))
        return consumed > 0, limit is None or consumed < limit

    def _read_segment(self, file: _File, place: _Place, limit: int | None) -> tuple[bool, bool]:
        if place.lines is None:
            place.over = True
            return False, True
        path, damage = self._segments.files[file.name], Damage()
        counts = [other.lines - place.lines for other in file.places if other.lines and other.lines > place.lines]
        if limit is not None:
            counts.append(max(1, limit // USUAL_LINE))
        most = min(counts, default=None)
        rows: list[Row] = []
        try:
            place.sealed = place.sealed or self._read_sealed(path, place.lines)
            if place.sealed is None:
                self.waits = self.waits or not place.at_end
                return False, place.at_end
            rows.extend(itertools.islice(place.sealed, most))
            place.over = most is None or len(rows) < most
        except JournalError:  # the run was removed as we looked, or the segment is damaged
            place.over = True
            damage.files += path.exists()
        place.lines += len(rows)
        if rows or damage:
            self._hand(place, Batch(file.name, rows, place.position, damage))
        return bool(rows), place.over

    def _hand(self, place: _Place, batch: Batch) -> None:
        for listener in list(place.listeners):
            try:
                listener.see(batch)
            except Exception as error:
                if self._on_error is None:
                    raise
                self._on_error(listener, error)


class Follower:
    """New rows of a run folder as they are written, from every file of the given tables.

    Rows of one file come in order; files of one writer come one after the other. Rows written before the follower
    was made are given too, sealed ones included, unless `from_end`.
    """

    name = "follower"

    def __init__(
        self, folder: Path, tables: tuple[str, ...], *, from_end: bool = False, wanted: Wanted = lambda file: True
    ) -> None:
        self.damage = Damage()
        self.positions = find_end(folder, tables) if from_end else Positions()
        self._tables = tables
        self._wanted = wanted
        self._rows: list[tuple[FileName, Row]] = []
        self._relay = Relay(folder)
        self._relay.add(self)

    def poll(self, limit: int | None = None) -> list[tuple[FileName, Row]]:
        """What was written since the last poll, at most about `limit` bytes per file."""
        self._relay.poll(limit)
        found, self._rows = self._rows, []
        return found

    # -- as a listener

    @property
    def acknowledged(self) -> Positions:
        return self.positions

    def wants(self, file: FileName) -> bool:
        return file.table in self._tables and self._wanted(file)

    def see(self, batch: Batch) -> None:
        self.damage += batch.damage
        self.positions.advance(batch.file, batch.end)
        self._rows.extend((batch.file, row) for row in batch.rows)


def find_end(folder: Path, tables: tuple[str, ...]) -> Positions:
    """The end of everything that is written. Lines are counted of each writer's newest file: it may have more of them
    when it is sealed."""
    listed = [(name, suffix, path) for name, suffix, path in layout.list_files(folder) if name.table in tables]
    newest = {name.writer: name for name, _, _ in sorted(listed, key=lambda item: item[0].order)}
    found = Positions()
    for name, suffix, path in listed:
        if suffix == ".jsonl" and newest[name.writer] == name:
            lines, size = measure(path) or (None, 0)
            found.advance(name, Position(size, lines))
        elif suffix == ".jsonl":
            try:
                found.advance(name, Position(path.stat().st_size, None))
            except FileNotFoundError:
                continue  # sealed just now
        elif suffix == ".parquet" and found.get(name) == Position():
            found.advance(name, Position(0, None))
    return found


def read_table(folder: Path, table: str, wanted: Wanted = lambda file: True) -> list[tuple[FileName, Row]]:
    """Every line of a small table in order of time, from the files that are wanted."""
    rows = Follower(folder, (table,), wanted=wanted).poll()
    rows.sort(key=lambda item: str(item[1]["timestamp"]))
    return rows
