"""Events of a program under `trainvitals run` that has no run to write them to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainvitals.journal.documents.events import ProcessEvent


def note_trouble(text: str) -> None:
    """Something could not be hooked into the program."""
    write_event("autostart", text, severity="warning")


def write_event(
    event: str,
    message: str,
    *,
    severity: str,
    rank: int | None = None,
    attempt: int = 1,
    data: ProcessEvent | None = None,
) -> None:
    """An event of the run that `trainvitals run` made; silent where there is none. Never raises."""
    folder = os.environ.get("TRAINVITALS_RUN_DIR")
    if not folder:
        return
    try:
        from trainvitals import runtime
        from trainvitals.journal.documents.events import ProcessEvent
        from trainvitals.journal.documents.rows import new_event
        from trainvitals.journal.encoding import encode_line
        from trainvitals.journal.layout import FileName
        from trainvitals.journal.writer import LineWriter

        name = FileName("events", attempt, "", rank=rank, pid=os.getpid())
        writer = LineWriter(Path(folder), name, on_trouble=_ignore)
        data = data or ProcessEvent(pid=os.getpid())
        row = new_event(event, message, severity=severity, rank=rank, host=runtime.host_name(), data=data)
        writer.append(encode_line(row.as_json()))
        writer.close(0)
    except Exception:  # noqa: BLE001, S110 - the boundary around the user's program: there is no one left to notify
        pass


def _ignore(_: str) -> None:
    pass
