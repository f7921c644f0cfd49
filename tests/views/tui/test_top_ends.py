"""`trainvitals top` ends when it is asked to, whatever its terminal, its sources and its own state are."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, pause, wait_until

HUNG = """
import ctypes, sys
from trainvitals.views.tui import hardware
def read(self, *rest, **more):
    open({mark!r}, "w").close()
    ctypes.CDLL(None).sleep(100000)
hardware.Hardware.read = read
from trainvitals.views.cli.main import main
sys.exit(main(["top"]))
"""


TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Top:
    """The program in a terminal of its own; what it draws is read until `stop_reading`."""

    def __init__(self, folder: Path, *words: str, has_own_session: bool = True) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 140))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.drawn = b""
        self._in_use = threading.Lock()
        """Held while the terminal is read: a number that was closed may be that of another file by then."""
        self._reads = threading.Event()
        self._reads.set()
        flags = ("-m", "trainvitals", "top", "--simulate-gpus", "2", "--interval", "0.2")
        command = [sys.executable, *(words or flags)]
        if has_own_session:
            command = [sys.executable, "-c", TAKE_TERMINAL, *command]
        environ = {**os.environ, "TERM": "xterm-256color", "TRAINVITALS_RUNTIME_DIR": str(folder), "LC_ALL": "C.UTF-8"}
        for name in ("COLUMNS", "LINES"):  # they would count more than the size of this terminal
            environ.pop(name, None)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while self._reads.wait():
            time.sleep(0.005)  # whoever closes it has a turn
            with self._in_use:
                if self.master < 0:
                    return
                if not select.select([self.master], [], [], 0)[0]:
                    continue
                try:
                    self.drawn += os.read(self.master, 65536)
                except OSError:
                    return

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words.encode() in self.drawn, lambda: f"{words} in {self.drawn[-3000:]!r}")

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def stop_reading(self) -> None:
        """As a terminal that is held with Ctrl-S, or an ssh connection that is stuck."""
        self._reads.clear()
        # One more read may be under way; then nothing is taken any more.
        wait_until(lambda: _is_full(self.slave), "a terminal that takes no more")

    def hang_up(self) -> None:
        """Close the terminal: the window is closed, or the connection is gone."""
        os.close(self.slave)
        self.slave = -1
        with self._in_use:
            os.close(self.master)
            self.master = -1
        self._reads.set()

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with self._in_use:
            for descriptor in (self.slave, self.master):
                if descriptor >= 0:
                    os.close(descriptor)
            self.slave = self.master = -1
        self._reads.set()


def _is_full(terminal: int) -> bool:
    return not select.select([], [terminal], [], 0)[1]


Start = Callable[..., Top]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Top] = []

    def make(*words: str, **more: bool) -> Top:
        made.append(Top(tmp_path, *words, **more))
        return made[-1]

    yield make
    for top in made:
        top.close()


SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]


@pytest.mark.promise("SIGTERM, SIGHUP, SIGINT or SIGQUIT to `top`", "it ends, and the terminal is as it was")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(start: Start, number: signal.Signals) -> None:
    top = start()
    top.wait_for("GPU")
    top.process.send_signal(number)
    assert top.end() == 128 + number
    top.wait_for("\x1b[?1049l")
    assert termios.tcgetattr(top.slave)[:4] == top.before[:4]


@pytest.mark.parametrize("keys", ["?", "/lo", "5k", "g"])
def test_a_signal_ends_it_while_something_is_open_or_typed(start: Start, keys: str) -> None:
    top = start()
    top.wait_for("GPU")
    drawn = len(top.drawn)
    top.type(keys)
    wait_until(lambda: len(top.drawn) > drawn, "an answer to the keys")
    top.process.send_signal(signal.SIGTERM)
    assert top.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_a_signal_ends_it_at_any_moment_of_its_start(start: Start, moment: float) -> None:
    top = start()
    pause(moment)
    top.process.send_signal(signal.SIGTERM)
    assert top.end() in (128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.parametrize("mark", ["\x1b[?1049h", "\x1b[?25l", "Overview"])
def test_a_signal_ends_it_while_the_first_picture_is_made(start: Start, mark: str) -> None:
    top = start()
    top.wait_for(mark)
    top.process.send_signal(signal.SIGTERM)
    assert top.end() == 128 + signal.SIGTERM


def test_a_closed_terminal_ends_it(start: Start) -> None:
    top = start()
    top.wait_for("GPU")
    top.hang_up()
    assert top.end() == 128 + signal.SIGHUP


@pytest.mark.promise("the terminal of `top` is gone and no signal comes", "it ends")
def test_a_closed_terminal_of_another_session_ends_it_without_a_signal(start: Start) -> None:
    """The kernel sends SIGHUP only to the session whose terminal it is."""
    top = start(has_own_session=False)
    top.wait_for("GPU")
    top.hang_up()
    assert top.end() == 128 + signal.SIGHUP


@pytest.mark.promise("the terminal of `top` accepts no output", "a signal ends it")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_it_though_its_terminal_takes_nothing(start: Start, number: signal.Signals) -> None:
    top = start()
    top.wait_for("GPU")
    top.stop_reading()
    top.process.send_signal(number)
    assert top.end() == 128 + number
    assert termios.tcgetattr(top.slave)[:4] == top.before[:4]


def test_a_stuck_terminal_that_is_closed_ends_it(start: Start) -> None:
    top = start()
    top.wait_for("GPU")
    top.stop_reading()
    top.hang_up()
    assert top.end() == 128 + signal.SIGHUP


@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP])
def test_it_goes_on_after_it_was_stopped_and_ends_by_a_signal_from_then(start: Start, stop: signal.Signals) -> None:
    top = start()
    top.wait_for("GPU")
    top.process.send_signal(stop)
    wait_until(lambda: _state(top.process.pid) == "T", "a stopped program")
    top.process.send_signal(signal.SIGCONT)
    drawn = len(top.drawn)
    wait_until(lambda: len(top.drawn) > drawn, "it to draw again")
    top.process.send_signal(stop)
    wait_until(lambda: _state(top.process.pid) == "T", "a stopped program")
    top.process.send_signal(signal.SIGTERM)
    top.process.send_signal(signal.SIGCONT)
    assert top.end() == 128 + signal.SIGTERM


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.promise("a driver hangs while `top` exits", "it ends")
def test_a_source_that_hangs_in_a_call_of_c_does_not_keep_it(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "hangs"
    top = start("-c", HUNG.format(mark=str(mark)))
    wait_until(mark.exists, "the source to hang")
    top.type("q")
    assert top.end() == 0
    mark.unlink()
    again = start("-c", HUNG.format(mark=str(mark)))
    wait_until(mark.exists, "the source to hang")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("words", [("--once",), ("--json",)])
def test_a_reader_that_goes_away_ends_a_printed_frame(tmp_path: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environ = {**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "trainvitals", "top", "--simulate-gpus", "1", *words]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, env=environ, cwd=tmp_path, check=False, timeout=PATIENCE
    )
    os.close(writing)
    assert b"Traceback" not in done.stderr
