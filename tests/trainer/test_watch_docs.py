"""The snippets of docs/watch.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainvitals.journal.reader import open_run
from trainvitals.trainer.watch.options import Options

PAGE = Path(__file__).parent.parent.parent / "docs" / "watch.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("number", "metric"), [(0, "data_time"), (1, "data_time"), (2, "activation_dead/1")])
def test_a_snippet_runs_and_leaves_what_it_promises(
    number: int, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_WATCH_BUDGET_PERCENT", "0")  # five steps on a busy machine may exceed any other
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("TRAINVITALS_RUN_DIR", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", SNIPPETS[number]], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    run = open_run("latest", tmp_path / "trainvitals_runs")
    (series,) = run.series([metric])
    assert series.y.size > 0
    assert run.events() == []


def test_every_snippet_is_run() -> None:
    assert len(SNIPPETS) == 3


def test_every_option_is_on_the_page() -> None:
    text = PAGE.read_text()
    known = {"max_layers"}  # a guard for huge models: in settings.md
    assert [name for name in Options.__dataclass_fields__ if name not in known and name not in text] == []
