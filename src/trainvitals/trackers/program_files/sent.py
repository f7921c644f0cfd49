"""What the client of a tracker has sent to a server that somebody has set up: lines in a file of the run folder, from
which it is copied into the run. Imports nothing heavy: programs below `trainvitals run` write it.
Tested in tests/trackers/program_files/test_following.py and tests/trainer/test_capture.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import encode_line, format_time, parse_time, spell_all
from trainvitals.journal.folder import open_within
from trainvitals.redaction import redact, redact_text

MOST_BYTES = 1 << 30
"""Of the file of one run: a client that never ends does not fill the disk twice."""
READ = 16 << 20


@dataclass(frozen=True, slots=True)
class SentRow:
    """One line."""

    time: float
    """Seconds since 1970."""
    step: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    """All that the run has by now."""


class SentFile:
    """One run of a client, written by the process that sends it."""

    def __init__(self, run: Path, name: str, redacted: Iterable[str] = ()) -> None:
        """Raises OSError."""
        self._redacted = tuple(redacted)
        self.path = run / name
        self._descriptor = open_within(run, name)
        self._size = os.fstat(self._descriptor).st_size
        self.is_full = False

    def write(self, row: SentRow) -> None:
        """Raises OSError."""
        line = encode_line(
            {
                "timestamp": format_time(row.time),
                **({} if row.step is None else {"step": row.step}),
                **({"values": spell_all(row.values)} if row.values else {}),
                **({"config": spell_all(redact(row.config, extra=self._redacted))} if row.config else {}),
                **({"tags": [redact_text(tag) for tag in row.tags]} if row.tags else {}),
            }
        )
        self.is_full = self.is_full or self._size + len(line) > MOST_BYTES
        if self.is_full:
            return
        self._size += os.write(self._descriptor, line)


def read_sent(path: Path, offset: int) -> Iterator[tuple[int, list[SentRow]]]:
    """(the place behind them, rows), some at a time, from a place on."""
    cursor = Cursor(path, offset=offset)
    while rows := cursor.read(READ):
        yield (
            cursor.offset,
            [
                SentRow(
                    parse_time(row["timestamp"]) or 0.0,
                    row.get("step"),
                    _mapping(row.get("values")),
                    _mapping(row.get("config")),
                    tuple(map(str, tags)) if isinstance(tags := row.get("tags"), list) else (),
                )
                for row in rows
            ],
        )


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
