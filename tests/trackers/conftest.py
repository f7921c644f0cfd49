"""A runtime folder of its own for each test, whose agent ends with it."""

from __future__ import annotations

import os
import signal
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
