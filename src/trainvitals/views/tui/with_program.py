"""`trainvitals run --top`: the dashboard with the output of a program in a pane.

The program is started by a second `trainvitals run` in a separate terminal (a pty), so it behaves as it would without
the dashboard. Quitting the dashboard does not end it: its output then continues where the dashboard was.
"""

from __future__ import annotations

import codecs
import os
import re
import signal
import struct
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from trainvitals.errors import TrainvitalsError
from trainvitals.safe_text import ESCAPES, one_line
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.views.tui import check_extra

KEPT_LINES = 2000
REPRINTED_BYTES = 64 << 10
"""Amount of the program's output that is printed again when the dashboard is closed."""


class ProgramOutput:
    """A program's output as lines: escape sequences are removed, a carriage return overwrites the line."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._current = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._raw = bytearray()
        self._returned = False
        self._lock = threading.Lock()

    def feed(self, data: bytes) -> None:
        with self._lock:
            self._raw += data
            if len(self._raw) > 2 * REPRINTED_BYTES:
                del self._raw[:-REPRINTED_BYTES]
            text = self._rest + self._decoder.decode(data)
            # An escape sequence may be cut in two: keep its beginning for the next time.
            cut = text.rfind("\x1b", max(len(text) - 64, 0))
            self._rest = ""
            if cut >= 0 and not ESCAPES.match(text, cut):
                text, self._rest = text[:cut], text[cut:]
            for piece in re.split(r"(\r\n|\n|\r)", ESCAPES.sub("", text)):
                if piece in ("\n", "\r\n"):
                    self._lines.append(one_line(self._current))
                    self._current, self._returned = "", False
                elif piece == "\r":
                    self._returned = True
                elif piece:
                    if self._returned:
                        self._current, self._returned = "", False
                    self._current = (self._current + piece)[:10_000]

    def lines(self) -> Sequence[str]:
        """The newest lines, the unfinished one last."""
        with self._lock:
            return [*self._lines, one_line(self._current)] if self._current else list(self._lines)

    def raw(self) -> bytes:
        """The newest bytes as they came, from the beginning of a line."""
        with self._lock:
            data = bytes(self._raw[-REPRINTED_BYTES:])
        return data if len(data) < REPRINTED_BYTES else data.partition(b"\n")[2]


class PaneProgram:
    """A program in its own pty."""

    def __init__(self, command: Sequence[str], columns: int, lines: int) -> None:
        import pty

        self.output = ProgramOutput()
        self.code: int | None = None
        """Its exit code once it has ended; 128 and the signal if it was killed."""
        self._relay = threading.Event()
        self._ended = threading.Event()
        pid, self._terminal = pty.fork()
        if pid == 0:
            try:
                _set_size(0, columns, lines)  # before the program can ask for it
                os.execvp(command[0], list(command))
            except OSError as error:
                os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            finally:
                os._exit(127)
        self.pid = pid
        threading.Thread(target=self._read, name="top-program", daemon=True).start()

    def resize(self, columns: int, lines: int) -> None:
        _set_size(self._terminal, columns, lines)

    def status(self) -> str:
        """A notice for the user; empty while it runs."""
        if self.code is None:
            return ""
        return f"the program exited with code {self.code}; press q to quit"

    def holds(self, pid: int) -> bool:
        """Whether a process belongs to this program: in its session, or a descendant in another session."""
        import psutil

        try:
            return os.getsid(pid) == self.pid or any(parent.pid == self.pid for parent in psutil.Process(pid).parents())
        except (OSError, psutil.Error):
            return False  # it has ended, or is another user's

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # EIO: the last writer has closed it
                break
            if not data:
                break
            self.output.feed(data)
            if self._relay.is_set():
                _write(data)
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        if self.code < 0:
            self.code = 128 - self.code
        self._ended.set()

    def interrupt(self, number: int, frame: FrameType | None = None) -> None:
        """Pass a signal on: Ctrl-C as the key, as the program's own terminal would."""
        try:
            if number == signal.SIGINT:
                os.write(self._terminal, b"\x03")
            else:
                os.kill(self.pid, number)
        except OSError:
            pass  # it has ended meanwhile

    def stay_with(self) -> int:
        """After the dashboard: print the recent output, pass on the rest, and exit with its exit code."""
        _write(self.output.raw())
        self._relay.set()
        if self.code is None:
            print_line("the dashboard is closed, the program continues: Ctrl-C stops it")
        before = {number: signal.signal(number, self.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        while not self._ended.wait(0.2):
            pass
        for number, handler in before.items():
            signal.signal(number, handler)
        return self.code if self.code is not None else 1


def _set_size(terminal: int, columns: int, lines: int) -> None:
    import fcntl
    import termios

    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", max(lines, 1), max(columns, 1), 0, 0))
    except OSError:
        pass  # it has ended


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except (OSError, ValueError):
        pass  # the terminal is gone; the program is not


def run_with_top(words: Sequence[str], settings: Settings) -> int:
    """`words` are those of `trainvitals run`, without `--top`."""
    if sys.platform == "win32":
        raise TrainvitalsError("--top requires a POSIX terminal", hint="run trainvitals top in a second window")
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise TrainvitalsError("--top requires a terminal", hint="run without --top")
    check_extra()
    from trainvitals.conditions import Conditions
    from trainvitals.journal.folder_runs import FolderRuns
    from trainvitals.views.tui.app import run
    from trainvitals.views.tui.feed import Feed
    from trainvitals.views.tui.options import TopOptions

    size = os.get_terminal_size()
    command = [sys.executable, "-m", "trainvitals.views.cli.main", "run", *words]
    program = PaneProgram(command, size.columns - 2, size.lines // 3)
    options = TopOptions(
        runs=FolderRuns(Path(settings.dir)),
        interval=settings.interval,
        gpus=tuple(str(gpu) for gpu in settings.gpus or ()),
        conditions=Conditions(settings.alerts_thresholds),
        settings=settings,
        output=program.output.lines,
        holds=program.holds,
    )
    run(Feed(options), program=program)
    return program.stay_with()
