"""Somebody asked a run to stop: a file in its folder. Who stops it depends on the run: the client of another tracker in
the way of its protocol (`trainvitals.trackers.intake`), or the agent, with a signal (`trainvitals.agent.stopping`).
Tested in tests/agent/test_stopping.py."""

from __future__ import annotations

import os
from pathlib import Path

from trainvitals.journal import folder as run_folder

STOP_FILE = ".stop"


def request_stop(folder: Path) -> None:
    """Raises OSError."""
    os.close(run_folder.open_within(folder, STOP_FILE))
    os.utime(folder / STOP_FILE)


def find_request(folder: Path) -> float | None:
    """When the run was asked to stop, in seconds since 1970; None if nobody did."""
    try:
        return (folder / STOP_FILE).stat().st_mtime
    except OSError:
        return None


def withdraw(folder: Path) -> None:
    """It has stopped, or begins again."""
    (folder / STOP_FILE).unlink(missing_ok=True)
