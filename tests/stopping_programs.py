"""Stopping a training so that the agent finds it stalled for that reason and no other."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

from waiting import wait_until

from trainvitals.journal.reader import RunReader


def stop_until_stalled(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """The event of the stall that the stop made.

    On a busy machine the training may be silent, and stalled, just when it is stopped. A stall is told once, so the
    stop would not be: that one has to be over first.
    """
    while True:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _count(folder, "stalled") > _count(folder, "recovered"), "the stall")
        stalled = _list_events(folder, "stalled")[-1]
        if stalled["data"]["process_state"] == "stopped":
            return stalled
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: _count(folder, "stalled") == _count(folder, "recovered"), "the end of an earlier stall")


def _list_events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [row.as_json() for row in RunReader(folder).events() if row.event == name]


def _count(folder: Path, name: str) -> int:
    return len(_list_events(folder, name))
