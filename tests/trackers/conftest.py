"""A runtime folder of its own for each test, whose agent ends with it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainvitals import runtime


@pytest.fixture(autouse=True)
def own_runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(folder))
    yield folder
    about = runtime.read_json(folder / "agent.json") or {}
    pid = about.get("pid")
    if isinstance(pid, int) and runtime.is_same_process(pid, about.get("start")):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def trackio_python() -> Path:
    """A Python with trackio, in an environment of its own: it needs older versions of what other tests use."""
    folder = Path(__file__).parents[2] / "build/venvs/trackio"
    python = folder / "bin/python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "trackio>=0.40"], check=True)
            (folder / "complete").touch()
    return python
