"""Listeners: what gets the rows of a run as they are written, and how far each of them is.

An exporter, a tracker or the agent's summary implements `Listener`; a `Relay` (see `follower`) reads every file of the
run once and hands its rows to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from trainvitals.journal import layout
from trainvitals.journal.cursor import Row
from trainvitals.journal.damage import Damage
from trainvitals.journal.layout import FileName

REMEMBERED_FILES = 8
"""Newest files of a writer whose positions are kept: a thread may still append to one just after it was closed."""


class Position(NamedTuple):
    """How far a listener is in one file."""

    offset: int = 0
    """Bytes of the JSONL file."""
    lines: int | None = 0
    """Rows in these bytes: where to continue once the file is sealed. None: once it is sealed there is nothing left to
    read."""


class Positions:
    """How far a listener is in the files of a run, in memory and on disk.

    The files of a writer are read in order, so only the newest ones of each are kept. An older file was read to its
    end and a newer one not yet begun, whether it is sealed by now or not.
    """

    def __init__(self, known: Mapping[FileName, Position] | None = None) -> None:
        self._writers: dict[object, dict[FileName, Position]] = {}
        for file, position in (known or {}).items():
            self.advance(file, position)

    def get(self, file: FileName) -> Position | None:
        """Where to continue in this file, None if all of it was read."""
        known = self._writers.get(file.writer)
        if not known:
            return Position()
        found = known.get(file)
        if found is None and file.order > max(known, key=_order).order:
            return Position()
        return found

    def covers(self, file: FileName, offset: int) -> bool:
        """Whether the file was read up to there."""
        position = self.get(file)
        return position is None or position.offset >= offset

    def is_done(self, file: FileName, size: int) -> bool:
        """Whether nothing is left to read in a file of that size, now and once it is sealed."""
        position = self.get(file)
        return position is None or (position.offset >= size and position.lines is None)

    def advance(self, file: FileName, position: Position) -> None:
        """The file was read up to there."""
        known = self._writers.setdefault(file.writer, {})
        known[file] = position
        if len(known) > REMEMBERED_FILES:
            del known[min(known, key=_order)]

    def items(self) -> list[tuple[FileName, Position]]:
        return [item for known in self._writers.values() for item in known.items()]

    def copy(self) -> Positions:
        return Positions(dict(self.items()))

    def offsets(self) -> dict[str, int]:
        """By file name, as in status.json: enough for a listener for which sealing always waits."""
        return {file.jsonl: position.offset for file, position in self.items()}

    def as_json(self) -> dict[str, Any]:
        """By file name: offset and lines."""
        return {file.jsonl: list(position) for file, position in self.items()}

    @classmethod
    def parse(cls, data: object) -> Positions:
        """From `as_json` or `offsets`; invalid entries are left out."""
        found = cls()
        for name, value in data.items() if isinstance(data, Mapping) else ():
            parsed = layout.parse_name(str(name))
            offset, lines = value if isinstance(value, list) and len(value) == 2 else (value, None)
            if parsed is not None and type(offset) is int and (lines is None or type(lines) is int):
                found.advance(parsed[0], Position(offset, lines))
        return found


def _order(file: FileName) -> tuple[int, str]:
    return file.order


class Batch(NamedTuple):
    """New rows of one file, in order."""

    file: FileName
    rows: Sequence[Row]
    """Shared by all listeners: read only. May be empty, where no line could be understood."""
    end: Position
    """How far the file is read with them. Without `lines`: that was all, the file is finished."""
    damage: Damage
    """What could not be understood among them."""


class Listener(Protocol):
    """Gets every row of a run once, those of one writer in order. Called from the thread that reads the run, which it
    must not block: a listener that sends rows somewhere queues them."""

    name: str
    """For messages about it."""

    def wants(self, file: FileName) -> bool:
        """Whether it gets the rows of this file; asked again when the files of the run change."""

    def see(self, batch: Batch) -> None:
        """New rows."""

    @property
    def positions(self) -> Positions:
        """What it has seen: where it starts when it is added, and from then on the `end` of every batch."""

    @property
    def acknowledged(self) -> Positions:
        """What it has dealt with for good: after a `kill -9` now, the next process would not need these rows again. A
        JSONL file is sealed and removed when all listeners have acknowledged it, or have held it back for too long."""
