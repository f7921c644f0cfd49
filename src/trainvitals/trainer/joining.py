"""What only one process of a run may claim: the lead, and a number within a role. The first to create a file has it.

On a full or read-only disk every process wins: the training comes first.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from trainvitals import runtime
from trainvitals.journal.folder import file_rights
from trainvitals.journal.identity import Participant


def take_lead(run: Path, attempt: int) -> bool:
    """Whether this process leads the attempt; also if it already did."""
    return _claim(run, "lead", attempt)


def take_requeued(run: Path, attempt: int) -> bool:
    """Whether this process goes on with the run as this attempt, of those that a requeued job starts again."""
    return _claim(run, "requeued", attempt)


def take_number(run: Path, role: str, attempt: int) -> int:
    """The number of this process within the role, by order of joining."""
    return next(number for number in itertools.count() if _claim(run, Participant(role, number).file_part, attempt))


def _claim(run: Path, what: str, attempt: int) -> bool:
    path = run / f".{what}.attempt{attempt}.claim"
    me = f"{runtime.host_name()} {os.getpid()} {runtime.process_start(os.getpid())}"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_rights(run)), "w", encoding="utf-8") as file:
            file.write(me)
    except FileExistsError:
        return path.read_text(encoding="utf-8") == me
    except OSError:
        pass  # nothing can be claimed here
    return True
