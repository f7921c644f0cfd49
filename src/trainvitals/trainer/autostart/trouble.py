"""Saying, in the run's events, that something could not be hooked into a program."""

from __future__ import annotations

import os
from pathlib import Path


def note_trouble(text: str) -> None:
    """An event of the run that `trainvitals run` made; silent where there is none. Never raises."""
    folder = os.environ.get("TRAINVITALS_RUN_DIR")
    if not folder:
        return
    try:
        from trainvitals import runtime
        from trainvitals.journal.encoding import encode_line, format_time
        from trainvitals.journal.layout import FileName
        from trainvitals.journal.writer import LineWriter

        writer = LineWriter(Path(folder), FileName("events", 1, "", pid=os.getpid()), on_trouble=_ignore)
        row = {"timestamp": format_time(), "event": "autostart", "severity": "warning", "message": text}
        writer.append(encode_line({**row, "host": runtime.host_name(), "pid": os.getpid()}))
        writer.close(0)
    except Exception:  # noqa: BLE001, S110 - the boundary around the user's program: there is nobody left to tell
        pass


def _ignore(_: str) -> None:
    pass
