"""`trainvitals alerts`: list, history, test, silence, ack, replay."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver

import trainvitals
from trainvitals.alerts import records
from trainvitals.errors import SettingError
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter
from trainvitals.views.cli.main import main


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def record(steps: int = 300, nan_at: int | None = 200) -> Path:
    run = trainvitals.init(project="p", name="r", agent=False, summary=False)
    for step in range(steps):
        run.log({"loss": float("nan") if step == nan_at else 1.0 / (step + 1)}, step=step)
    run.event("checkpoint", "saved")
    run.finish()
    return run.folder


def add_lines(folder: Path, *rows: dict[str, object]) -> None:
    writer = LineWriter(folder, FileName("alerts", 1, ""))
    for row in rows:
        writer.append(encode_line({"timestamp": format_time(), **row}))
    writer.close()


FIRING = {
    "state": "firing", "rule": "loss_spike", "severity": "warning", "labels": {"rank": 0},
    "message": "Loss spike: 3", "step": 7, "since": "2026-11-15T22:00:00.000000Z",
}  # fmt: skip


def test_a_test_message_goes_to_each_channel_and_what_happened_is_said(
    root: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "trainvitals.yaml").write_text(
        f"alerts: {{notify: {{good: '{receiver.url}', bad: 'http://127.0.0.1:1/x', gone: 'env:NOT_THERE_AT_ALL'}}}}"
    )
    assert main(["alerts", "test"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("good: sent (")
    assert shown[1].startswith("bad: NOT sent: ")
    assert "NOT_THERE_AT_ALL is not set" in shown[2]
    assert receiver.bodies[0]["kind"] == "test"
    assert main(["alerts", "test", "good"]) == 0
    assert main(["alerts", "test", "goood"]) == 2
    assert "did you mean 'good'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("alerts", "place"),
    [
        ("rules: [{name: mine, when: loss > 3, notify: [hok]}]", "rule 'mine', notify: "),
        ("rules: [{name: mine, when: loss > 3, escalate_notify: hok}]", "rule 'mine', escalate_notify: "),
        ("escalate_notify: [hok]", "alerts.escalate_notify: "),
    ],
)
def test_a_misspelt_channel_is_said_with_the_nearest_and_all_others_by_the_test_and_at_the_start(
    root: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str], alerts: str, place: str
) -> None:
    (root / "trainvitals.yaml").write_text(
        f"alerts:\n  notify: {{hook: '{receiver.url}', bell: 'bell:'}}\n  {alerts}\n"
    )
    said = f"{place}unknown channel 'hok', did you mean 'hook'? (known: hook, bell)"
    assert main(["alerts", "test"]) == 2
    assert said in capsys.readouterr().err
    assert receiver.requests == []
    with pytest.raises(SettingError) as raised:
        trainvitals.init(project="p", agent=False, summary=False, strict=True)
    assert said in str(raised.value)
    trainvitals.init(project="p", agent=False, summary=False).finish()  # the training is not stopped, but it is said
    assert said in capsys.readouterr().err


def test_without_a_channel_the_test_says_how_to_have_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "test"]) == 1
    assert "alerts.notify" in capsys.readouterr().err


def test_what_fires_is_listed_until_it_is_resolved(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record()
    add_lines(folder, FIRING)
    assert main(["alerts"]) == 0
    assert "Loss spike: 3" in capsys.readouterr().out
    assert main(["alerts", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rule"] == "loss_spike"
    add_lines(folder, {**FIRING, "state": "resolved"})
    assert main(["alerts", "list"]) == 0
    assert "no active alerts" in capsys.readouterr().err


def test_the_history_shows_changes_and_with_all_what_was_sent(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record()
    message = {"outgoing": "x", "kind": "firing", "rule": "loss_spike", "channels": ["team"], "body": {}}
    delivery = {
        "delivery": "x",
        "rule": "loss_spike",
        "channel": "team",
        "result": "delivered",
        "late_seconds": 90.0,
    }
    action = {"action": "stop", "rule": "loss_spike", "result": "SIGTERM sent"}
    add_lines(folder, FIRING, message, delivery, action)
    assert main(["alerts", "history"]) == 0
    shown = capsys.readouterr().out
    assert "firing" in shown and "delivered" not in shown
    assert main(["alerts", "history", "latest", "--all"]) == 0
    shown = capsys.readouterr().out
    assert "90 s late" in shown and "SIGTERM sent" in shown


def test_a_silence_is_left_for_the_agent_in_a_file_of_its_own(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = record()
    run = trainvitals.init(project="p", name="alive", agent=False, summary=False)
    assert main(["alerts", "silence", "loss_spike", "--for", "2h"]) == 0
    assert "silenced until" in capsys.readouterr().out
    (row,) = records.read_rows(run.folder)
    assert (row.control, row.rule) == ("silence", "loss_spike")
    assert records.read_rows(ended) == []
    assert main(["alerts", "ack", "all"]) == 0
    assert main(["alerts", "silence", "loss_spik"]) == 2
    assert "did you mean 'loss_spike'" in capsys.readouterr().err
    run.finish()


@pytest.mark.parametrize("command", ["silence", "ack"])
def test_without_a_living_run_nothing_is_silenced_unless_it_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(["alerts", command, "loss_spike"]) == 1
    assert "no active runs" in capsys.readouterr().err
    folder = record()
    assert main(["alerts", command, "loss_spike"]) == 1
    shown = capsys.readouterr().err
    assert "no active runs" in shown and f"--run {folder.name}" in shown
    assert records.read_rows(folder) == []
    assert main(["alerts", command, "loss_spike", "--run", folder.name]) == 0
    assert [row.control for row in records.read_rows(folder)] == [command]


def test_a_recorded_run_is_judged_by_todays_rules(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record()
    assert main(["alerts", "replay", "latest", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["rule"], row["state"], row.get("step")) for row in found] == [
        ("loss_not_finite", "firing", 200),
        ("loss_not_finite", "resolved", 220),
    ]
    (root / "trainvitals.yaml").write_text("alerts: {rules: [{name: mine, when: loss < 0.01}]}")
    assert main(["alerts", "replay", "--rule", "mine"]) == 0
    shown = capsys.readouterr()
    assert "mine" in shown.out and "replayed 1 rules on" in shown.err


def test_a_replay_knows_the_other_run_the_ranks_and_the_gpus(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record()
    second = trainvitals.init(project="p", name="second", agent=False, summary=False)
    for step in range(20):
        second.log({"loss": 9.0}, step=step)
    second.finish()
    described = json.loads((second.folder / "run.json").read_text())
    (second.folder / "run.json").write_text(json.dumps({**described, "world_size": 8}))
    (second.folder / "status.json").write_text(json.dumps({"held_gpus": ["GPU-a"]}))
    writer = LineWriter(second.folder, FileName("events", 1, ""))
    writer.append(encode_line({"timestamp": format_time(), "event": "rank_lost", "rank": 3, "message": "is lost: x"}))
    writer.close()
    gpus = LineWriter(second.folder, FileName("gpu", 1, ""))
    for uuid in ("GPU-a", "GPU-b"):
        gpus.append(encode_line({"timestamp": format_time(), "gpu_uuid": uuid, "power_draw_watts": 9.0}))
    gpus.close()
    (root / "trainvitals.yaml").write_text(
        "alerts: {baseline: r, rules: [{name: worse, when: loss > 2 * baseline(loss)}, "
        "{name: held, when: 'gpu[*].held_by_run == 1'}]}"
    )
    assert main(["alerts", "replay", "second", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fired = [(row["rule"], row.get("labels", {})) for row in found if row["state"] == "firing"]
    assert fired == [("worse", {"rank": 0}), ("rank_lost", {"rank": 3}), ("held", {"gpu_uuid": "GPU-a"})]


def test_a_rule_that_cannot_be_read_is_shown_with_its_place(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record()
    (root / "trainvitals.yaml").write_text("alerts:\n  rules:\n    - {name: mine, when: 'loss > medain(loss, 5)'}\n")
    assert main(["alerts", "replay"]) == 2
    shown = capsys.readouterr().err
    assert "did you mean 'median'" in shown and "^" in shown
