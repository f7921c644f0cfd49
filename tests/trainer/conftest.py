"""A run to watch, apart from every other run of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
