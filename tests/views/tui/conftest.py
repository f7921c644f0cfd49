from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # story.py beside this file; importlib mode adds no path

import story

from trainvitals.journal.folder_runs import FolderRuns, refer_to
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No agent, no runs and no colours of this machine; times are shown in UTC."""
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return story.make_run(tmp_path / "runs")


@pytest.fixture
def make_feed(tmp_path: Path) -> Iterator[Callable[..., Feed]]:
    """A feed on the story, a minute after its end."""
    made: list[Feed] = []

    def make(run: Path | None = None, **options: object) -> Feed:
        chosen = refer_to(run) if run is not None else None
        wanted = TopOptions(run=chosen, runs=FolderRuns(tmp_path / "runs"), **options)  # type: ignore[arg-type]
        made.append(Feed(wanted, clock=lambda: story.START + 180.0))
        return made[-1]

    yield make
    for feed in made:
        feed.stop()
