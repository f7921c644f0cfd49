"""An exit that nothing can block. Tested in tests/views/tui/test_top_ends.py.

Textual hands what it draws to a thread that writes it. A terminal that accepts no more output, or is gone, blocks that
thread, and soon the program waits for it forever; so does Python's exit, for a thread in a driver that hangs. Then
signals are received without any effect. Here a thread waits, from the start, for the request to exit and for the
terminal to disappear.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from typing import Any

END_SECONDS = 5.0
"""How long a clean exit may take."""
LEAVE = b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?1049l\x1b[?25h"
"""What Textual writes at exit: keys, mouse, focus, paste, screen and cursor as they were."""


class TopEnding:
    """Ends the process by force a while after `begin`, unless it has exited by then."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._attributes = _read_attributes(terminal)
        self._reading, self._writing = os.pipe()
        self._code = 0
        threading.Thread(target=self._wait, name="top-ending", daemon=True).start()

    def begin(self, code: int) -> None:
        """Request the exit, with this exit code. Takes no lock: it is called from signal handlers too."""
        self._code = code
        os.write(self._writing, b"x")

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        poll.register(self._terminal, 0)  # only when it is gone
        while self._reading not in (found := dict(poll.poll())):
            poll.unregister(self._terminal)
            if found[self._terminal] & select.POLLHUP:
                os.kill(os.getpid(), signal.SIGHUP)  # not every process gets one from the kernel
        time.sleep(END_SECONDS)
        self._restore()
        os._exit(self._code)

    def _restore(self) -> None:
        """The terminal as it was, as far as that is possible without waiting for it."""
        try:
            if self._attributes is not None:
                import termios

                termios.tcsetattr(self._terminal, termios.TCSANOW, self._attributes)
            os.set_blocking(self._terminal, False)
            os.write(self._terminal, LEAVE)
            os.set_blocking(self._terminal, True)
        except Exception:  # noqa: BLE001, S110 - it may be gone; termios has its own error class
            pass


def find_ending() -> TopEnding | None:
    """For the terminal on which Textual draws; None on Windows, where nothing of this is known to happen."""
    return TopEnding(sys.stderr.fileno()) if hasattr(select, "poll") and sys.stderr.isatty() else None


def _read_attributes(terminal: int) -> list[Any] | None:
    import termios

    try:
        return termios.tcgetattr(terminal)
    except termios.error:
        return None
