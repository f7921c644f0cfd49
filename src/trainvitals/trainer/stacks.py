"""Letting the agent request the Python stacks of this process when it stops stepping.

faulthandler writes them from a signal handler in C, so it works when every Python thread is stuck, needs no ptrace
rights and does not stop the process. The signal is an unused real-time one; if it is in use, it is left alone.
The agent sends it only after it has seen in /proc that it is caught. Tested in tests/agent/test_stacks.py.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import IO

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.identity import Participant

_armed: tuple[int, IO[bytes]] | None = None


def arm(folder: Path, participant: Participant) -> tuple[int | None, Path | None]:
    """(signal, file): the stacks of all threads are appended to the file whenever the signal comes.

    (None, None) where that is not possible (Windows, macOS) or the signal is taken.
    """
    global _armed
    disarm()
    last = getattr(signal, "SIGRTMAX", None)
    if last is None or not hasattr(faulthandler, "register"):
        return None, None
    number = int(last) - 7
    if signal.getsignal(number) is not signal.SIG_DFL:
        return None, None
    place = run_folder.make_within(folder, layout.STACKS)
    path = place / f"{participant.file_part}.txt"
    # It stays open for as long as the signal may arrive.
    file = os.fdopen(run_folder.open_within(place, path.name), "ab", buffering=0)
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    _armed = (number, file)
    return number, path


def disarm() -> None:
    """Give the signal back."""
    global _armed
    if _armed is not None:
        number, file = _armed
        faulthandler.unregister(number)
        file.close()
        _armed = None
