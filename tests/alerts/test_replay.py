"""A recorded run, judged again: the same alerts as when it was alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainvitals.alerts import builtin
from trainvitals.alerts.replay import replay
from trainvitals.alerts.rules import parse_rule
from trainvitals.conditions import Conditions
from trainvitals.journal.documents.cause import EXCEPTION, STALLED, Cause
from trainvitals.journal.documents.rows import EventRow, new_event
from trainvitals.journal.encoding import format_time

T = 1_800_000_000.0
BOOM = Cause(kind=EXCEPTION, exception="ValueError", detail="ValueError: boom")
RULES = builtin.make_rules(Conditions())


def event(second: float, name: str, message: str = "", rank: int | None = None, **data: Any) -> EventRow:
    return new_event(name, message, when=T + second, rank=rank, data=data)


def found(events: Iterable[EventRow] = (), rows: Mapping[str, Any] | None = None, **more: Any) -> list[tuple[str, str]]:
    tables = rows or {}
    changes = replay(RULES, lambda table: tables.get(table, ()), events, {"host": "h", "run": "r"}, **more)
    return [(change.state, change.rule.name) for change in changes]


def test_an_uncaught_exception_is_a_training_that_died() -> None:
    events = [
        event(0, "rank_started", rank=0),
        event(60, "rank_ended", "rank 0 has ended", rank=0, exit_code=1),
        event(61, "run_ended", "the run is failed: ValueError: boom", status="failed", reason=BOOM.as_json()),
    ]
    changes = list(replay(RULES, lambda table: (), events, {}))
    assert [(change.rule.name, change.message) for change in changes] == [
        ("process_died", "Training failed: ValueError: boom")
    ]
    ended = [event(61, "run_ended", "the run is finished", status="finished")]
    assert found([*events[:2], *ended]) == []
    stopped = [event(61, "run_ended", "the run is killed", status="killed", reason=Cause(kind="interrupted").as_json())]
    assert found([*events[:2], *stopped]) == []


def test_a_lost_rank_of_eight_is_a_lost_rank_and_of_one_a_training_that_died() -> None:
    events = [
        event(0, "rank_started", rank=3),
        event(60, "rank_lost", "rank 3 died: killed by SIGKILL", rank=3, signal="SIGKILL"),
        event(62, "run_ended", "the run is killed: killed by SIGKILL", status="killed", signal="SIGKILL"),
    ]
    assert found(events, world_size=8) == [("firing", "rank_lost")]
    assert found([replace(row, rank=0) for row in events]) == [("firing", "process_died")]


def test_a_stall_lasts_until_the_rank_goes_on() -> None:
    cause = Cause(kind=STALLED, rank=0, seconds=61.0, detail="the main thread is at train.py:7 in evaluate")
    events = [
        event(0, "rank_started", rank=0),
        event(100, "stalled", str(cause), rank=0, silent_seconds=61.0, reason=cause.as_json()),
        event(340, "hung", "rank 0 has not logged for 301 s", rank=0, silent_seconds=301.0),
        event(400, "recovered", "rank 0 is logging again at step 8", rank=0, was="hung"),
    ]
    changes = list(replay(RULES, lambda table: (), events, {}))
    assert [(change.state, change.rule.name, change.time - T) for change in changes] == [
        ("firing", "training_stalled", 103.0),
        ("firing", "training_hung", 340.0),
        ("resolved", "training_stalled", 400.0),
        ("resolved", "training_hung", 400.0),
    ]
    assert "no step for 64 s (the main thread is at train.py:7 in evaluate)" in changes[0].message
    assert "(the main thread is at train.py:7" in changes[1].message


def test_the_other_run_is_compared_with() -> None:
    rows = [{"timestamp": format_time(T + step), "step": step, "loss": 2.0 + 0.001 * (step % 7)} for step in range(600)]
    assert found(rows={"training": rows}) == []
    assert found(rows={"training": rows}, baseline=lambda name, step: 1.0) == [("firing", "loss_above_baseline")]


def test_only_a_gpu_that_the_run_held_was_idle() -> None:
    def lines(**more: Any) -> dict[str, Any]:
        row = {"gpu_index": 1, "gpu_uuid": "GPU-b", "utilization_percent": 0, "memory_percent": 3.0, **more}
        return {"gpu": [{"timestamp": format_time(T + second), **row} for second in range(1000)]}

    idle = [("firing", "gpu_idle")]
    assert found(rows=lines(), held_gpus={"GPU-b"}) == idle
    assert found(rows=lines(), held_gpus={"GPU-a"}) == []
    assert found(rows=lines()) == []
    assert found(rows=lines(simulated=True)) == idle


def test_what_was_scraped_keeps_its_labels() -> None:
    rule = parse_rule({"name": "x", "when": 'openmetrics["gpu=1"].foo > 5'}, {})
    lines = [
        {"timestamp": format_time(T + n), "host": "h", "target": "http://a", "gpu": str(n), "foo": 9.0, "bar": "NaN"}
        for n in range(3)
    ]
    (change,) = replay([rule], lambda table: lines if table == "openmetrics" else (), (), {})
    assert dict(change.labels) == {"target": "http://a", "gpu": "1"}
