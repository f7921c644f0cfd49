"""The alerts of one run as the agent holds them: restart, other writers, messages that outlive the run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver

from trainvitals import runtime, settings
from trainvitals.alerts import records, session
from trainvitals.alerts.session import RunAlerts
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

HOT = {"name": "hot", "when": "gpu[*].temperature_celsius > 80", "message": "GPU {gpu_index}"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    place = tmp_path / "runs" / "p" / "r1"
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"id": "r1", "status": "finished"}))
    return place


def make(
    folder: Path,
    receiver: Receiver,
    host: str | None = None,
    write_event: session.WriteEvent = lambda event, message, severity: None,
    **more: Any,
) -> RunAlerts:
    given = {
        "alerts.notify": {"hook": receiver.url},
        "alerts.rules": [HOT],
        "alerts.disable": "all",
        **more,
    }
    found = settings.resolve(given, environ={}, folder=Path("/"))
    about = {"run": "r1", "name": "r1", "host": host or "node"}
    alerts = RunAlerts(folder, found, about, name=FileName("events", 1, "", host=host), write_event=write_event)
    alerts.ledger.policy = replace(alerts.ledger.policy, group_wait=0.0)
    return alerts


def heat(alerts: RunAlerts, *celsius: float) -> None:
    for index, value in enumerate(celsius):
        alerts.see_sample("gpu", {"gpu_index": index, "gpu_name": "x"}, {"temperature_celsius": value}, time.time())


def run_for(alerts: RunAlerts, condition: Any, what: str) -> None:
    def look() -> Any:
        alerts.tick()
        return condition()

    wait_until(look, what)


def write_as(folder: Path, name: FileName, **row: Any) -> None:
    writer = LineWriter(folder, name)
    writer.append(encode_line({"timestamp": format_time(), **row}))
    writer.close()


def test_what_fires_is_told_recorded_and_shown(folder: Path, receiver: Receiver) -> None:
    alerts = make(folder, receiver)
    heat(alerts, 90, 90)
    run_for(alerts, lambda: receiver.bodies, "the message")
    assert receiver.bodies[0]["count"] == 2
    assert alerts.active()[0].as_json() | {"since": ""} == {
        "rule": "hot", "severity": "warning", "count": 2, "since": "", "message": "GPU 1",
    }  # fmt: skip
    heat(alerts, 70, 70)
    run_for(alerts, lambda: len(receiver.bodies) == 2, "the all-clear")
    assert alerts.active() == ()
    assert [row.state for row in records.changes(records.read_rows(folder))] == ["firing"] * 2 + ["resolved"] * 2
    alerts.close()


def test_another_agent_goes_on_where_the_first_was_killed(folder: Path, receiver: Receiver) -> None:
    first = make(folder, receiver)
    heat(first, 90)
    run_for(first, lambda: first.waiting == 0 and receiver.bodies, "the message")
    wait_until(lambda: any(row.delivery is not None for row in records.read_rows(folder)), "the record of the delivery")
    second = make(folder, receiver)  # the first was killed: it says nothing more
    heat(second, 91)
    for _ in range(5):
        second.tick()
        time.sleep(0.1)
    assert len(receiver.bodies) == 1
    heat(second, 70)
    run_for(second, lambda: len(receiver.bodies) == 2, "the all-clear by the second")
    assert receiver.bodies[1]["kind"] == "resolved"
    second.close()


def test_what_was_asked_for_while_there_was_no_agent_counts(folder: Path, receiver: Receiver) -> None:
    make(folder, receiver).close()
    command = FileName("alerts", 1, "", pid=77, host="node")
    write_as(folder, command, control="silence", rule="hot", until=format_time(time.time() + 3600), by="me")
    for _ in range(2):  # and is done once, however often an agent starts
        alerts = make(folder, receiver)
        heat(alerts, 90)
        for _ in range(3):
            alerts.tick()
            time.sleep(0.1)
        alerts.close()
    assert receiver.bodies == []
    assert [row.state for row in records.read_rows(folder) if row.state == "silenced"] == ["silenced"]


def test_a_condition_of_a_rank_that_fired_while_there_was_no_agent_is_told(folder: Path, receiver: Receiver) -> None:
    row = {
        "state": "firing",
        "rule": "mine",
        "severity": "warning",
        "labels": {"rank": 0},
        "message": "missed",
    }
    write_as(folder, FileName("alerts", 1, "", rank=0), **row)
    alerts = make(folder, receiver)
    run_for(alerts, lambda: receiver.bodies, "the message")
    assert receiver.bodies[0]["message"] == "missed"
    wait_until(lambda: any(row.delivery is not None for row in records.read_rows(folder)), "the record of the delivery")
    again = make(folder, receiver)
    for _ in range(3):
        again.tick()
        time.sleep(0.1)
    assert len(receiver.bodies) == 1
    again.close()


def test_eight_ranks_with_the_same_trouble_are_one_message(folder: Path, receiver: Receiver) -> None:
    rule = {"name": "nan", "when": "not isfinite(loss)", "message": "NaN on rank {rank}"}
    alerts = make(folder, receiver, **{"alerts.rules": [rule]})
    for rank in range(8):
        alerts.see_row(Participant(rank=rank), {"timestamp": format_time(), "step": 5, "loss": "NaN"})
    run_for(alerts, lambda: receiver.bodies, "the message")
    assert receiver.bodies[0]["count"] == 8
    alerts.close()
    assert len(receiver.bodies) == 1


def test_two_hosts_speak_with_one_voice_about_the_run_and_each_about_its_gpus(folder: Path, receiver: Receiver) -> None:
    rules = [HOT, {"name": "nan", "when": "not isfinite(loss)"}]
    hosts = [make(folder, receiver, host, **{"alerts.rules": rules}) for host in ("one", "two")]
    for rank, alerts in enumerate(hosts):
        alerts.see_row(Participant(rank=rank), {"timestamp": format_time(), "step": 5, "loss": "NaN"})
        heat(alerts, 90)
    wait_until(lambda: ([alerts.tick() for alerts in hosts], len(receiver.bodies) >= 3)[1], "three messages")
    for _ in range(10):  # would another one come?
        for alerts in hosts:
            alerts.tick()
        time.sleep(0.05)
    assert sorted(body["rule"] for body in receiver.bodies) == ["hot", "hot", "nan"]
    for alerts in hosts:
        alerts.close()


def test_a_rule_that_names_no_channel_is_told_and_the_others_are_judged(folder: Path, receiver: Receiver) -> None:
    told: list[str] = []
    rules = [HOT, {"name": "mine", "when": "loss > 3", "notify": "hok"}]
    alerts = make(folder, receiver, **{"alerts.rules": rules})
    alerts._write_event = lambda event, message, severity: told.append(message)
    heat(alerts, 90)
    run_for(alerts, lambda: receiver.bodies and told, "the message")
    assert "unknown channel 'hok'" in told[0]
    alerts.close()


def test_messages_outlive_the_run_and_the_agent(folder: Path, receiver: Receiver) -> None:
    receiver.answers = [503]
    alerts = make(folder, receiver)
    heat(alerts, 90)
    run_for(alerts, lambda: receiver.requests, "an attempt")
    stop_in_the_middle(alerts)
    before = len(receiver.requests)
    receiver.answers = [200]
    count = session.resume_sending(lambda given: settings.resolve(given, environ={}, folder=Path("/")))
    assert count == 1
    wait_until(lambda: not session.still_sending(), "the end of sending")
    assert [body["rule"] for body in receiver.bodies[before:]] == ["hot"]
    assert session.resume_sending(lambda given: settings.resolve({}, environ={}, folder=Path("/"))) == 0


def stop_in_the_middle(alerts: RunAlerts) -> None:
    """As if the agent were killed after the run has ended, with its messages on the way."""
    alerts.end("finished")
    assert session.still_sending()
    session._lingering.clear()
    alerts.close()
    sending = alerts._outbox._channels["hook"].thread
    assert sending is not None
    sending.join()  # with a try that it may just have begun


@pytest.mark.promise("the agent is killed while messages of several runs wait", "the next agent sends all of them")
def test_runs_whose_folders_have_one_name_keep_their_messages_apart(folder: Path, receiver: Receiver) -> None:
    receiver.answers = [503]
    other = folder.parents[1] / "q" / folder.name
    other.mkdir(parents=True)
    (other / "run.json").write_text(json.dumps({"id": "r1", "status": "finished"}))
    for place, celsius in ((folder, (90,)), (other, (70, 90))):
        alerts = make(place, receiver)
        before = len(receiver.requests)
        heat(alerts, *celsius)
        run_for(alerts, lambda known=before: len(receiver.requests) > known, "an attempt")
        stop_in_the_middle(alerts)
    before = len(receiver.requests)
    receiver.answers = [200]
    assert session.resume_sending(lambda given: settings.resolve(given, environ={}, folder=Path("/"))) == 2
    wait_until(lambda: not session.still_sending(), "the end of sending")
    assert {body["message"] for body in receiver.bodies[before:]} == {"GPU 0", "GPU 1"}
    assert session.NOTES.list_folders() == []


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("prices", "name", "waste"),
    [
        ({}, H100, ""),
        (
            {"price.gpu_hour": 2.5, "price.currency": "EUR"},
            H100,
            "2.25 of every 2.50 EUR",
        ),
        ({"price.gpu_hour": 2.5}, "own", "2.25 of every 2.50"),
        ({"price.plan": "on_demand"}, H100, "3.59 of every 3.99 USD"),
        ({"price.plan": "on_demand"}, "own", ""),
    ],
)
def test_an_underused_gpu_wastes_what_it_costs_everywhere_else(
    folder: Path, receiver: Receiver, prices: dict[str, Any], name: str, waste: str
) -> None:
    alerts = make(folder, receiver, **{"alerts.rules": [], "alerts.disable": "none", **prices})
    began = time.time()
    used = {"utilization_percent": 10.0, "memory_percent": 80.0, "held_by_run": 1.0}
    for second in range(0, 2700, 5):
        alerts.see_sample("gpu", {"gpu_index": 0, "gpu_name": name}, used, began + second)
    (found,) = [row for row in alerts.firing() if row.rule == "gpu_low_use"]
    assert found.message == "GPU 0: 10 % utilization over 30 minutes" + (
        f", about {waste} spent per hour is wasted" if waste else ""
    )
    alerts.close()


def test_built_in_rules_sample_a_fast_training_but_see_every_nan_and_own_rules_see_all(
    folder: Path, receiver: Receiver
) -> None:
    mine = {"name": "mine", "when": "loss == 7"}
    alerts = make(folder, receiver, **{"alerts.rules": [mine], "alerts.disable": "none"})
    began = time.time()
    for step in range(2000):
        loss: float | str = {1003: "NaN", 1507: 7.0}.get(step, 1.0)
        alerts.see_row(Participant(), {"timestamp": format_time(began + step / 1000), "step": step, "loss": loss})
    alerts.close()
    fired = [(row.rule, row.step) for row in records.read_rows(folder) if row.state == "firing"]
    assert fired == [("loss_not_finite", 1003), ("mine", 1507)]


def test_space_on_disk_is_judged_though_its_sample_comes_right_after_the_hosts(
    folder: Path, receiver: Receiver
) -> None:
    alerts = make(folder, receiver, **{"alerts.disable": "none"})
    began = time.time()
    for second in range(0, 30, 5):
        alerts.see_sample("system", {}, {"cpu_usage_percent": 20.0}, began + second)
        alerts.see_sample("system", {}, {"disk_usage_percent": 60.0, "disk_free_gb": 1.0}, began + second + 0.01)
    alerts.close()
    fired = [row.rule for row in records.read_rows(folder) if row.state == "firing"]
    assert fired == ["disk_space_low"]


# -- folders that somebody else may write

FORGED = {"rule": "old", "message": "forged"}
QUEUED = {"outgoing": "m1", "kind": "firing", "rule": "old", "channels": ["hook"], "body": FORGED}


def results(folder: Path) -> list[str]:
    return [f"{row.result}: {row.reason}" for row in records.read_rows(folder) if row.delivery is not None]


@pytest.mark.promise(
    "a run folder owned or writable by another user",
    "alerts are recorded; no message is sent and no action runs",
    area="Other users",
)
@pytest.mark.parametrize(
    ("owner", "mode", "why"), [(12345, 0o755, "it belongs to user 12345"), (0, 0o777, "others may write it")]
)
def test_in_a_folder_that_is_not_ours_nothing_is_sent_or_run_but_all_is_recorded(
    folder: Path, receiver: Receiver, tmp_path: Path, owner: int, mode: int, why: str
) -> None:
    write_as(folder, FileName("alerts", 1, "", host=None), **QUEUED)
    os.chown(folder, owner, owner)
    folder.chmod(mode)
    mark = tmp_path / "ran"
    rule = {**HOT, "actions": ["exec"], "command": f"touch {mark}"}
    alerts = make(folder, receiver, **{"alerts.rules": [rule]})
    heat(alerts, 90)
    run_for(alerts, lambda: len(results(folder)) == 2, "both messages to be given up")
    assert set(results(folder)) == {f"given up: not sent because the run folder is not trusted: {why}"}
    (action,) = [row for row in records.read_rows(folder) if row.action]
    assert action.result == f"not done because the run folder is not trusted: {why}"
    assert [row.rule for row in alerts.firing()] == ["hot"]
    alerts.close()
    assert receiver.bodies == [] and not mark.exists()


@pytest.mark.promise("a message that another user queued", "it is not sent", area="Other users")
def test_a_message_that_somebody_else_queued_in_our_folder_is_not_sent(folder: Path, receiver: Receiver) -> None:
    write_as(folder, FileName("alerts", 1, "", host=None), **QUEUED)
    (theirs,) = folder.glob("alerts_*.jsonl")
    os.chown(theirs, 12345, 12345)
    notes: list[str] = []
    alerts = make(folder, receiver, write_event=lambda event, message, severity: notes.append(message))
    heat(alerts, 90)
    run_for(alerts, lambda: receiver.bodies, "our own message")
    alerts.close()
    assert [body["message"] for body in receiver.bodies] == ["GPU 0"]
    assert notes == ["alerts in 1 files are ignored: another user may have written them"]


def test_what_another_user_left_for_an_agent_to_send_is_left_alone(folder: Path, receiver: Receiver) -> None:
    write_as(folder, FileName("alerts", 1, "", host=None), **QUEUED)
    outbox = runtime.runtime_dir() / "outbox"
    outbox.mkdir()
    note = outbox / "r1.json"
    note.write_text(json.dumps({"folder": str(folder), "settings": {"alerts.notify": {"hook": receiver.url}}}))
    os.chown(note, 12345, 12345)
    assert session.resume_sending(lambda given: settings.resolve(given, environ={}, folder=Path("/"))) == 0
    assert note.exists() and not session.still_sending()
