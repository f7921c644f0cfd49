"""A machine of its own for each test: a runtime folder, a root for runs, and every process ended afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals import runtime
from trainvitals.journal.documents.run import ENDED
from trainvitals.journal.reader import RunReader

TRAINING = """
    import os, signal, sys, threading, time
    import trainvitals
    {before}
    options = {options!r}
    run = trainvitals.init(project="p", name="test", **options)
    print(run.folder, flush=True)
"""


class Machine:
    """Where the test's agent and trainings live."""

    def __init__(self, folder: Path) -> None:
        self.runtime = folder / "runtime"
        self.root = folder / "runs"
        self.processes: list[subprocess.Popen[str]] = []

    def env(self, **more: str) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("TRAINVITALS_") and key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        return {
            **kept,
            "TRAINVITALS_RUNTIME_DIR": str(self.runtime),
            "TRAINVITALS_DIR": str(self.root),
            "TRAINVITALS_AGENT": "0",  # the test starts and stops agents itself
            "TRAINVITALS_AGENT_IDLE_TIMEOUT": str(PATIENCE),  # and no agent leaves while a busy machine starts a run
            **more,
        }

    def start_agent(self, *flags: str, **env: str) -> subprocess.Popen[str]:
        """An agent that holds the lock."""
        agent = self.spawn([sys.executable, "-P", "-m", "trainvitals.agent", *flags], own_session=True, **env)
        wait_until(lambda: (runtime.read_agent_file() or {}).get("pid") == agent.pid, "an agent that holds the lock")
        return agent

    def spawn(self, command: list[str], own_session: bool = False, **env: str) -> subprocess.Popen[str]:
        """With `own_session` as agents are started for real: the kernel gives each session its share of the cores, so
        that what the agent does at low priority is not starved by what else runs in the session of the tests."""
        process = subprocess.Popen(
            command,
            start_new_session=own_session,
            env=self.env(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def train(self, script: str, env: dict[str, str] | None = None, before: str = "", **options: Any) -> Training:
        """A real training in a process of its own: `run` is there, made with `options`, after the line `before`."""
        source = textwrap.dedent(TRAINING.format(options=options, before=before)) + textwrap.dedent(script)
        process = self.spawn([sys.executable, "-c", source], **(env or {}))
        assert process.stdout is not None
        place = process.stdout.readline().strip()
        if not place:
            process.wait()
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        return Training(process, Path(place))

    def open(self, process: subprocess.Popen[str], folder: Path) -> Training:
        """A run that something else has started."""
        return Training(process, folder)

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.runtime / "agent.log").read_text().splitlines()]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        about = runtime.read_json(self.runtime / "agent.json") or {}
        pid = about.get("pid")
        if isinstance(pid, int) and runtime.is_same_process(pid, about.get("start")):
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself this moment
                os.kill(pid, signal.SIGKILL)


class Training:
    """One training process and what its folder says."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def wait_until_ready(self) -> None:
        """Until the script has printed `ready`."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"

    def go(self) -> None:
        """Let a script go on that waits for a line of input."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    @property
    def run(self) -> dict[str, Any]:
        return runtime.read_json(self.folder / "run.json") or {}

    @property
    def status(self) -> dict[str, Any]:
        return runtime.read_json(self.folder / "status.json") or {}

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        return [row.as_json() for row in RunReader(self.folder).events() if name in (None, row.event)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        return list(RunReader(self.folder).rows(table))

    def wait_for_event(self, name: str, count: int = 1) -> dict[str, Any]:
        return wait_until(lambda: (found := self.events(name))[count - 1 :] and found[count - 1], f"the event {name}")

    def wait_for_end(self) -> dict[str, Any]:
        """run.json once the run has ended and the agent has told so everywhere."""
        self.wait_for_event("run_ended")
        wait_until(lambda: self.status.get("state") in ENDED, "a status that tells the end")
        return self.run


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    place = Machine(tmp_path)
    yield place
    place.end()
