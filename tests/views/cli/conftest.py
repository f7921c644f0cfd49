"""The real program as a process of its own, with a runtime folder and a run root of its own, and a terminal to run it
in where the terminal is the point."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

PROGRAM = (sys.executable, "-m", "trainvitals")


class Machine:
    """A machine of its own for one test: runtime folder, run root, environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "runs"
        self.runtime = folder / "runtime"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
        for name in ("NO_COLOR", "COLUMNS", "LINES", "CUDA_VISIBLE_DEVICES", "TRACEPARENT"):
            kept.pop(name, None)
        self.environ = {
            **kept,
            "TRAINVITALS_RUNTIME_DIR": str(self.runtime),
            "TRAINVITALS_DIR": str(self.root),
            "TRAINVITALS_AGENT": "false",
            "TERM": "xterm-256color",
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def run(
        self, *arguments: str, environ: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """The program, to its end."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            env={**self.environ, **(environ or {})},
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            **more,
        )

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        """The program, under way, in a process group of its own as a shell would have it."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            env={**self.environ, **(environ or {})},
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            **more,
        )

    def interrupt_when(
        self, ready: Callable[[str], object], *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The program, ended by Ctrl-C as soon as `ready` likes what it has printed so far."""
        process = self.start(*arguments, environ=environ)
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        output = b""
        deadline = time.monotonic() + PATIENCE
        while not ready(output.decode(errors="replace")):
            if select.select([descriptor], [], [], 0.1)[0]:
                output += os.read(descriptor, 65536)
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"waited in vain; it printed:\n{output.decode()}\n{process.communicate()[1]}")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, output.decode() + rest, errors)

    def open_terminal(self, command: Sequence[str], *, rows: int = 24, columns: int = 80, **environ: str) -> Terminal:
        return Terminal(command, {**self.environ, **environ}, self.folder, rows, columns)

    def only_run(self) -> tuple[Path, dict[str, Any]]:
        """The folder and run.json of the one run there is."""
        (path,) = self.root.glob("*/*/run.json")
        return path.parent, json.loads(path.read_text())


class Terminal:
    """A command in a terminal: what it prints, and keys to press."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, rows: int, columns: int
    ) -> None:
        self.text = ""
        self.status: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        self._size = (rows, columns)
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            _set_size(0, rows, columns)  # before the command can ask for it
            os.chdir(folder)
            os.execvpe(command[0], list(command), dict(environ))

    def resize(self, rows: int, columns: int) -> None:
        self._size = (rows, columns)
        _set_size(self.descriptor, rows, columns)

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def read(self, seconds: float = 0.0) -> bool:
        """Take in what was printed; False once everybody has closed the terminal."""
        readable, _, _ = select.select([self.descriptor], [], [], seconds)
        if readable:
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:
                data = b""
            if not data:
                return False
            self.text += self._decoder.decode(data)
        return True

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until `text` was printed that many times."""
        deadline = time.monotonic() + PATIENCE
        while self.text.count(text) < times:
            if not self.read(0.05) or time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {text!r}; the terminal says:\n{self.text}")

    def wait(self) -> int:
        """The exit code, or minus the signal, as subprocess says it."""
        deadline = time.monotonic() + PATIENCE
        while self.status is None and time.monotonic() < deadline:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        assert self.status is not None, f"still running; the terminal says:\n{self.text}"
        while self.read(0.05) and select.select([self.descriptor], [], [], 0.05)[0]:
            pass
        return self.status

    def screen(self) -> list[str]:
        """What is on the screen, line by line."""
        import pyte

        rows, columns = self._size
        screen = pyte.Screen(columns, rows)
        pyte.Stream(screen).feed(self.text)
        return [line.rstrip() for line in screen.display]

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.descriptor)


def _set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine without an agent, unless a test starts one; whatever was started is stopped."""
    machine = Machine(tmp_path)
    yield machine
    if (machine.runtime / "agent.lock").exists():
        machine.run("agent", "stop")


@pytest.fixture
def watched_machine(machine: Machine) -> Machine:
    """A machine on which commands start the agent."""
    del machine.environ["TRAINVITALS_AGENT"]
    return machine


@pytest.fixture
def terminal(machine: Machine) -> Iterator[Callable[..., Terminal]]:
    """Opens terminals, and closes them."""
    opened: list[Terminal] = []

    def open_one(command: Sequence[str], **more: Any) -> Terminal:
        opened.append(machine.open_terminal(command, **more))
        return opened[-1]

    yield open_one
    for item in opened:
        item.close()


@pytest.fixture
def make_run(machine: Machine) -> Callable[..., Path]:
    """Writes a run folder as a training and an agent would, and returns it."""

    def make(
        name: str = "baseline",
        *,
        project: str = "mnist",
        rows: Sequence[Mapping[str, Any]] | None = None,
        gpus: Sequence[Mapping[str, Any]] = (),
        events: Sequence[Mapping[str, Any]] = (),
        alerts: Sequence[Mapping[str, Any]] = (),
        **details: Any,
    ) -> Path:
        folder = machine.root / project / run_folder.new_run_id(name)
        run_folder.create(folder)
        began = time.time() - 100
        run = {
            "format": 1,
            "id": folder.name,
            "project": project,
            "name": name,
            "kind": "training",
            "status": "finished",
            "attempt": 1,
            "started": format_time(began),
            "ended": format_time(began + 100),
            **details,
        }
        run_folder.write_run(folder, RunFile.parse({key: value for key, value in run.items() if value is not None}))
        if rows is None:
            rows = [{"step": step, "loss": 10.0 / (step + 1), "lr": 0.1} for step in range(100)]
        for table, lines in (("training", rows), ("gpu", gpus), ("events", events), ("alerts", alerts)):
            writer = LineWriter(folder, FileName(table, 1, ""))
            for place, row in enumerate(lines):
                writer.append(encode_line({"timestamp": format_time(began + place), **row}))
            writer.close()
        return folder

    return make
