"""Which ranks of a run failed, and which was the first: the others often fail because it did."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import TimeParser

FAILED = "failed"
"""The event that a rank writes when an exception ends it; its data has the traceback."""


class Failure(NamedTuple):
    """An exception that ended a rank. Sorts by time."""

    time: float
    """Seconds since 1970, by the clock of the rank's machine."""
    rank: int
    cause: str


def read_failures(folder: Path, attempt: int) -> list[Failure]:
    """The exceptions that ended ranks in this attempt, the first first."""
    clock = TimeParser()
    found = []
    for name, suffix, path in layout.list_files(folder):
        if name.table != "events" or suffix != ".jsonl" or name.rank is None or name.attempt != attempt:
            continue
        for row in Cursor(path).read():
            time = clock.parse(row["timestamp"])
            # A program may write an event of the same name.
            if row.get("event") == FAILED and "traceback" in (row.get("data") or {}) and time is not None:
                found.append(Failure(time / 1e6, name.rank, str(row.get("message"))))
    return sorted(found)
