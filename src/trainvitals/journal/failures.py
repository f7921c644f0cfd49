"""Which participants of a run failed, and which was the first: the others often fail because it did."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainvitals.journal.documents.cause import EXCEPTION, Cause
from trainvitals.journal.documents.events import ProgramFailure
from trainvitals.journal.documents.rows import FAILED, EventRow
from trainvitals.journal.follower import Wanted, read_table
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName


class Failure(NamedTuple):
    """An exception that ended a participant."""

    time: float
    """Seconds since 1970, by the clock of its machine."""
    participant: Participant
    cause: Cause


def read_failures(folder: Path, attempt: int) -> list[Failure]:
    """The exceptions that ended participants in this attempt, the first first."""
    rows = _read_rows(folder, lambda name: name.rank is not None and name.attempt == attempt)
    found = [Failure(row.seconds or 0.0, name.participant, _cause_of(row)) for name, row in rows]
    return sorted(found, key=lambda failure: failure[:2])


def explain_exit_code(folder: Path, exit_code: int) -> Cause | None:
    """Why a command ended with this exit code, by what the Python programs that it ran wrote as they failed.

    The last one that failed with this code passed it on. It did so because of another that failed while it was
    running, if there is one: launchers fail because a rank did. A program that failed before it began, which a shell
    script may well survive, is not the reason.
    """
    found = _read_rows(folder, lambda _: True)
    newest = max((name.attempt for name, _ in found if name.rank is not None), default=None)
    rows = [row for name, row in found if name.rank is None or name.attempt == newest]
    last = next((row for row in reversed(rows) if _exit_code_of(row) == exit_code), None)
    if last is None:
        return None
    began = last.details(ProgramFailure).began
    first = last if began is None else next(row for row in rows if (row.seconds or 0.0) >= began)
    cause = _cause_of(first)
    return cause.about(first.participant) if first.participant not in (None, Participant()) else cause


def _read_rows(folder: Path, wanted: Wanted) -> list[tuple[FileName, EventRow]]:
    """In order of time."""
    found = [(name, EventRow.parse(line)) for name, line in read_table(folder, "events", wanted)]
    # A program may write an event of the same name.
    return [
        (name, row)
        for name, row in found
        if row.event == FAILED and row.details(ProgramFailure).traceback is not None and row.seconds is not None
    ]


def _cause_of(row: EventRow) -> Cause:
    return row.cause or Cause(kind=EXCEPTION, detail=row.message)


def _exit_code_of(row: EventRow) -> int:
    code = _cause_of(row).exit_code
    return 1 if code is None else code & 0xFF
