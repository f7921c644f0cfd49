"""Which ranks of a run failed, and which was the first: the others often fail because it did."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainvitals.journal.documents.cause import EXCEPTION, Cause
from trainvitals.journal.documents.rows import EventRow
from trainvitals.journal.follower import read_table

FAILED = "failed"
"""The event that a rank writes when an exception ends it; its data has the traceback."""


class Failure(NamedTuple):
    """An exception that ended a rank."""

    time: float
    """Seconds since 1970, by the clock of the rank's machine."""
    rank: int
    cause: Cause


def read_failures(folder: Path, attempt: int) -> list[Failure]:
    """The exceptions that ended ranks in this attempt, the first first."""
    found = []
    for name, line in read_table(folder, "events", lambda name: name.rank is not None and name.attempt == attempt):
        row = EventRow.parse(line)
        # A program may write an event of the same name.
        if row.event == FAILED and "traceback" in (row.data or {}) and row.seconds is not None:
            cause = row.cause or Cause(kind=EXCEPTION, detail=row.message)
            found.append(Failure(row.seconds, name.rank or 0, cause))
    return sorted(found, key=lambda failure: failure[:2])
