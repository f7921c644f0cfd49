"""Letting the agent have the Python stacks of this process when it stops stepping.

It reads them from outside, for which it needs a right that some kernels give to ancestors only. Where that fails and
the process hangs, it sends a signal: faulthandler writes the stacks from a handler in C, so it works when every Python
thread is stuck. The signal is an unused real-time one; if it is in use, it is left alone. The agent sends it only
after it has seen in /proc that it is caught. Tested in tests/agent/test_stacks.py.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.identity import Participant
from trainvitals.journal.writer import move_up

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
"""Of kernels that restrict who may read another process of the same user. 1: ancestors, and whom it allows itself."""
_PR_SET_PTRACER = 0x59616D61
MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")
"""MPI lets the ranks of a machine read each other in the same way, and a process can allow it to one only."""

_armed: tuple[int, int, tuple[int, int]] | None = None
"""Signal, descriptor, and which file that was."""


def allow_reading(agent: int) -> bool:
    """Let this process be read by the agent and the programs it starts. False where that is not needed or possible."""
    try:
        restricted = YAMA.read_text().strip() == "1"
    except OSError:
        return False
    if not restricted or any(name in os.environ for name in MPI):
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(agent), 0, 0, 0) == 0)


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
    descriptor = move_up(run_folder.open_within(place, path.name))
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    _armed = (number, descriptor, _identify(descriptor))
    return number, path


def disarm() -> None:
    """Give the signal back."""
    global _armed
    if _armed is not None:
        number, descriptor, identity = _armed
        _armed = None
        faulthandler.unregister(number)
        # A program that closes all its files closes this one, too: the number may be that of another by now.
        with contextlib.suppress(OSError):
            if _identify(descriptor) == identity:
                os.close(descriptor)


def _identify(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
