"""Rules in Python: judged in the training, guarded, and written for the agent to send."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trainvitals
from trainvitals.alerts import python_rules, records
from trainvitals.errors import SettingError
from trainvitals.journal.documents.rows import AlertRow


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[trainvitals.Run]:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    found = trainvitals.init(project="p", dir=tmp_path / "runs", agent=False, summary=False)
    yield found
    found.finish()


def rows(run: trainvitals.Run) -> list[AlertRow]:
    return records.read_rows(run.folder)


def test_a_condition_fires_acts_and_resolves(run: trainvitals.Run) -> None:
    seen = []
    run.alerts.add_rule(
        name="Target missed",
        condition=lambda m: m.loss > 2,
        severity="warning",
        message="Loss is {loss:.2f}",
        cooldown_seconds=300,
        action=seen.append,
    )
    for step, loss in enumerate([1.0, 3.0, 4.0, 1.0]):
        run.log({"loss": loss}, step=step)
    found = records.changes(rows(run))
    assert [(row.state, row.step, row.message) for row in found] == [
        ("firing", 1, "Loss is 3.00"),
        ("resolved", 3, "Loss is 3.00"),
    ]
    assert found[0].cooldown == 300
    assert [(alert.rule, alert.step) for alert in seen] == [("Target missed", 1)]


def test_the_classic_name_is_the_same(run: trainvitals.Run) -> None:
    run.alerts.add_alert_rule(name="x", condition=lambda m: m["val/loss"] > 1)
    run.log({"val": {"loss": 2.0}}, step=1)
    assert [row.rule for row in rows(run)] == ["x"]


def test_a_condition_that_raises_is_reported_once_and_switched_off(
    run: trainvitals.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def broken(m: Any) -> bool:
        calls.append(m.loss)
        raise ZeroDivisionError("oh")

    run.alerts.add_rule(name="broken", condition=broken)
    run.alerts.add_rule(name="fine", condition=lambda m: m.loss > 1)
    for step in range(5):
        run.log({"loss": 2.0}, step=step)
    assert len(calls) == 1
    assert capsys.readouterr().err.count("'broken' is disabled") == 1
    found = rows(run)
    assert [row.rule for row in found if row.state == "firing"] == ["fine"]
    assert [row.reason for row in found if row.control == "disabled"] != []


def test_an_action_that_raises_does_not_stop_the_training(run: trainvitals.Run) -> None:
    def broken() -> None:
        raise RuntimeError("no")

    run.alerts.add_rule(name="x", condition=lambda m: m.loss > 1, action=broken)
    run.log({"loss": 2.0}, step=1)
    assert next(row.result for row in rows(run) if row.action is not None).startswith("raised")


def test_a_metric_that_is_not_logged_yet_is_no_mistake(run: trainvitals.Run) -> None:
    run.alerts.add_rule(name="later", condition=lambda m: m.accuracy < 0.5)
    run.log({"loss": 1.0}, step=1)
    run.log({"accuracy": 0.1}, step=2)
    run.log({"loss": 1.0}, step=3)
    assert [(row.rule, row.step) for row in rows(run)] == [("later", 2)]


def test_inside_its_cooldown_it_neither_fires_nor_acts(run: trainvitals.Run) -> None:
    acted = []
    run.alerts.add_rule(name="x", condition=lambda m: m.loss > 1, cooldown_seconds=1000, action=acted.append)
    for step in range(20):
        run.log({"loss": float(step % 2) * 5}, step=step)
    assert len(acted) == 1
    assert [row.state for row in records.changes(rows(run))] == ["firing", "resolved"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"condition": "loss > 1"}, "must be a function"),
        ({"severity": "bad"}, "not one of"),
        ({"message": "{loss.x}"}, "not a valid name"),
        ({"action": "stop"}, "must be a function"),
    ],
)
def test_a_rule_that_cannot_work_is_an_error_when_it_is_added(
    run: trainvitals.Run, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        run.alerts.add_rule(**{"name": "x", "condition": lambda m: True, **more})


def test_every_line_is_still_written_and_in_order(run: trainvitals.Run) -> None:
    for step in range(3):
        run.log({"loss": 1.0}, step=step)
    run.alerts.add_rule(name="x", condition=lambda m: False)
    for step in range(3, 6):
        run.log({"loss": 1.0}, step=step)
    (path,) = run.folder.glob("training_metrics_*.jsonl")
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(6))


def test_rules_that_cannot_be_used_stop_init_and_not_the_training_later(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'median'"):
        trainvitals.init(
            project="p",
            dir=tmp_path,
            agent=False,
            alerts_rules=[{"name": "a", "when": "loss > medain(loss, 5)"}],
        )


@pytest.mark.parametrize(
    ("logged", "asked"),
    [("lr", "learning_rate"), ("learning_rate", "lr"), ("grad_norm", "gradient_norm"), ("gradient_norm", "grad_norm")],
)
def test_a_known_metric_goes_by_any_of_its_spellings(run: trainvitals.Run, logged: str, asked: str) -> None:
    run.alerts.add_rule("x", lambda m: getattr(m, asked) > 1, message=f"at {{{asked}}}")
    run.log({logged: 2.0}, step=1)
    assert [row.message for row in rows(run)] == ["at 2"]


def test_what_watch_measured_is_seen_too(run: trainvitals.Run) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, budget_percent=0)
    run.alerts.add_rule("norm", lambda m: m.grad_norm > 0 and m.batch_time > 0, message="{grad_norm:.3f} {batch_time}")
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    run.finish()
    assert [(row.rule, "?" in row.message) for row in rows(run)] == [("norm", False)]


def test_without_an_agent_there_are_no_readings(run: trainvitals.Run) -> None:
    run.alerts.add_rule("cpu", lambda m: m.cpu_usage_percent >= 0)
    run.log({"loss": 1.0}, step=0)
    assert rows(run) == []


def test_a_name_that_never_appears_is_reported_once_with_the_nearest(
    run: trainvitals.Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.alerts.add_rule("typo", lambda m: m.losss > 1)
    run.alerts.add_rule("late", lambda m: m.accuracy > 1)
    run.log({"loss": 1.0}, step=0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(python_rules, "MISSING_SECONDS", -1.0)
    run.log({"loss": 1.0, "accuracy": 1.0}, step=1)
    run.log({"loss": 1.0}, step=2)
    expected = "trainvitals: rule 'typo' is skipped: no 'losss' was logged for a minute, did you mean 'loss'?\n"
    assert capsys.readouterr().err == expected


def test_a_name_that_never_appeared_in_a_short_run_is_reported_at_its_end(
    run: trainvitals.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.alerts.add_rule("typo", lambda m: m.losss > 1)
    run.log({"loss": 1.0}, step=0)
    run.finish()
    assert "rule 'typo' is skipped: no 'losss' was logged in this run" in capsys.readouterr().err


limit = 3


def test_messages_may_use_names_of_the_program(run: trainvitals.Run, capsys: pytest.CaptureFixture[str]) -> None:
    target, about = torch.tensor(0.5), "mnist"
    inner = 1.0

    def condition(m: Any) -> bool:
        return bool(m.loss > inner)

    message = "{loss:.1f} {inner:.1f} {target:.2f} {about} {limit} {nowhere}"
    run.alerts.add_rule("scope", condition, message=message)
    inner = 1.5  # the condition sees this one
    run.log({"loss": 2.0}, step=1)
    assert [row.message for row in rows(run)] == ["2.0 1.5 0.50 mnist 3 {nowhere?}"]
    assert "its message uses nowhere, which was not logged and is not in scope" in capsys.readouterr().err
    assert (target, about) == (torch.tensor(0.5), "mnist")


def test_metrics_survive_being_copied(run: trainvitals.Run) -> None:
    copied = []
    run.alerts.add_rule("copy", lambda m: copied.append(copy.copy(m)))
    run.log({"loss": 2.0}, step=1)
    assert copied[0].loss == 2.0
