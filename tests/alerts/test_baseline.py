"""Comparing with another run: a named one, or the project's best."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver
from test_session import make

import trainvitals
from trainvitals.alerts.baseline import Baseline, read_curves
from trainvitals.journal.encoding import format_time
from trainvitals.journal.identity import Participant


def record(root: Path, name: str, level: float, status: str = "finished") -> Path:
    run = trainvitals.init(project="p", name=name, dir=root, agent=False, summary=False)
    for step in range(500):
        run.log({"loss": level + 5.0 / (step + 1), "train/other": 1.0}, step=step)
    run.finish(status)
    return run.folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runs"


def test_a_named_run_is_read_as_medians_by_step(root: Path) -> None:
    first = record(root, "first", 2.0)
    notes: list[str] = []
    baseline = Baseline("first", first, notes.append)
    assert wait_until(lambda: baseline.value("loss", 400), "the curves") == pytest.approx(2.0, abs=0.05)
    assert baseline.value("train/loss", 3) == pytest.approx(2.0 + 5.0 / 4, rel=0.3)
    assert baseline.value("loss", 5000) is None  # it did not get that far
    assert baseline.value("accuracy", 3) is None
    assert notes == []


def test_the_best_is_the_finished_run_whose_loss_went_lowest(root: Path) -> None:
    record(root, "good", 1.0)
    record(root, "better-but-failed", 0.5, "failed")
    other = record(root, "worse", 3.0)
    assert "good" in read_curves(root, "best", other)["run"]


def test_a_run_that_is_not_there_is_told_and_the_early_window_counts(root: Path) -> None:
    folder = record(root, "only", 1.0)
    notes: list[str] = []
    baseline = Baseline("nobody", folder, notes.append)
    wait_until(lambda: notes, "the note")
    assert "no run 'nobody'" in notes[0]
    assert baseline.value("loss", 3) is None


def test_a_loss_above_that_of_the_other_run_is_told(root: Path) -> None:
    record(root, "first", 1.0)
    second = record(root, "second", 9.0)
    receiver = Receiver()
    rule = {"name": "worse", "when": "median(loss, 20) > 1.1 * baseline(loss)", "for": "5 steps"}
    alerts = make(second, receiver, **{"alerts.baseline": "first", "alerts.rules": [rule]})
    wait_until(lambda: alerts._baseline.value("loss", 10), "the curves")
    for step in range(100):
        alerts.see_row(Participant(), {"timestamp": format_time(), "step": step, "loss": 2.0 + 5.0 / (step + 1)})
    wait_until(lambda: (alerts.tick(), receiver.bodies)[1], "the message")
    assert receiver.bodies[0]["rule"] == "worse"
    alerts.close()
    receiver.close()
