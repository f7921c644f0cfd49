"""A run to watch and a notebook's kernel, apart from every other run of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Kernel
from watching import running

from trainvitals.trainer.run import Run


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("TRAINVITALS_RUN_DIR", raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path) as run:
        yield run


@pytest.fixture
def kernel_places(own_places: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, agents and everything of Jupyter in the test's own folder."""
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def kernel(kernel_places: None) -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.stop()
