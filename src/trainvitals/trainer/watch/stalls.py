"""Short steps are written in groups by the step that follows them. When none follows because the loop hangs, the last
group is written from here, so that the run says how far it came."""

from __future__ import annotations

import _thread
import os
import threading
import weakref
from typing import Protocol

LOOK_SECONDS = 1.0


class Unwritten(Protocol):
    """A loop that leaves steps unwritten for a moment."""

    @property
    def alive(self) -> bool: ...
    @property
    def steps(self) -> int:
        """Steps so far."""

    def write_stalled(self) -> None: ...
    def forget_unwritten(self) -> None: ...


class StallWriter:
    """Looks once a second whether steps still come: all that the loop itself pays is a lock for each group."""

    def __init__(self, loop: Unwritten) -> None:
        self.lock = threading.RLock()
        """Held by whoever writes."""
        self._loop = weakref.ref(loop)
        self.is_started = False
        _writers.add(self)

    def start(self) -> None:
        """Steps have been left unwritten."""
        if not self.is_started:
            # Not `threading.Thread`: a signal handler that raises within its `start` leaves it half begun.
            _thread.start_new_thread(_look, (self._loop,))
            self.is_started = True

    def begin_anew(self) -> None:
        """In a forked process: the thread is not there, and nobody there gives the lock back."""
        self.lock = threading.RLock()
        self.is_started = False
        loop = self._loop()
        if loop is not None:
            loop.forget_unwritten()


_writers: weakref.WeakSet[StallWriter] = weakref.WeakSet()


def _begin_anew() -> None:
    for writer in list(_writers):
        writer.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


def _look(reference: weakref.ref[Unwritten]) -> None:
    pause = threading.Event()
    seen = written = -1
    while not pause.wait(LOOK_SECONDS):
        loop = reference()
        if loop is None or not loop.alive:
            return
        steps = loop.steps
        if steps == seen != written:
            loop.write_stalled()
            written = steps
        seen = steps
        del loop
