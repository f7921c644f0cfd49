"""Runs of an earlier version, and machines behind a real ssh server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import SshWorld
from waiting import PATIENCE

from trainvitals.lab import machines

BEFORE = Path(__file__).parents[1] / "data" / "runs_before"


@pytest.fixture(scope="module", autouse=True)
def own_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No run that another test has registered is one of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """A machine is slow or down because of what a test does to it, not because the machine of the tests is busy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLOW_SECONDS", "DEADLINE_SECONDS", "READ_SECONDS", "QUICK_SECONDS", "CONNECT_SECONDS"):
            patch.setattr(machines, name, PATIENCE)
        yield


@pytest.fixture(scope="session")
def old_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of an earlier version: sealed, resumed, of several ranks, monitored, live, damaged."""
    place = tmp_path_factory.mktemp("far") / "runs"
    shutil.copytree(BEFORE, place)
    return place


@pytest.fixture
def ssh_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshWorld]:
    """An `ssh` that knows the machines that a test adds."""
    world = SshWorld(tmp_path / "ssh")
    monkeypatch.setenv("PATH", world.path)
    yield world
    world.end()
