"""Who is told and when: once, together, not too often, again if asked for, and never what was silenced."""

from __future__ import annotations

from typing import Any

import pytest

from trainvitals.alerts.engine import Engine, Point
from trainvitals.alerts.ledger import Ledger, Policy
from trainvitals.alerts.rules import parse_rule
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.encoding import format_time, parse_time

T = 1_800_000_000.0


class Desk:
    """A rule, a ledger, and the lines that were written."""

    def __init__(self, lines: list[AlertRow] | None = None, rule: Any = None, **policy: Any) -> None:
        given = {
            "name": "hot",
            "when": "gpu[*].temperature_celsius > 80",
            "message": "GPU {gpu_index}",
            **(rule or {}),
        }
        self.rule = parse_rule(given, {})
        self.engine = Engine([self.rule])
        self.lines: list[AlertRow] = []
        options = {"channels": ("team", "boss"), "group_wait": 1.0, "cooldown": 300.0, **policy}
        about = {"run": "r", "name": "r", "host": "node"}
        self.ledger = Ledger(Policy(**options), {"hot": self.rule}, about, self.lines.append)
        for line in lines or ():
            self.ledger.apply(line)

    def heat(self, now: float, *celsius: float) -> None:
        for index, value in enumerate(celsius):
            for change in self.engine.feed(Point("gpu", {"gpu_index": index}, {"temperature_celsius": value}, T + now)):
                self.ledger.take(change)

    def tick(self, now: float) -> list[AlertRow]:
        return self.ledger.tick(T + now)

    def control(self, **row: Any) -> None:
        self.ledger.take_row(AlertRow.parse({"timestamp": format_time(T), "rule": "hot", "by": "me", **row}))


def test_eight_hot_gpus_are_one_message() -> None:
    desk = Desk()
    desk.heat(0, *[90.0] * 8)
    assert desk.tick(0.5) == []
    (sent,) = desk.tick(1.1)
    assert sent.body["count"] == 8
    assert sent.body["title"].startswith("GPU 0, and 7 more")
    assert desk.tick(5) == []
    assert sent.channels == ("team", "boss")


def test_the_end_is_told_once_when_the_last_one_is_over() -> None:
    desk = Desk()
    desk.heat(0, 90, 90)
    desk.tick(2)
    desk.heat(10, 70, 90)
    assert desk.tick(20) == []
    desk.heat(30, 70, 70)
    (sent,) = desk.tick(32)
    assert (sent.kind, sent.body["state"]) == ("resolved", "resolved")
    assert [alert["labels"]["gpu_index"] for alert in sent.body["alerts"]] == [0, 1]
    assert desk.tick(400) == []


def test_what_comes_and_goes_at_once_is_told_all_the_same() -> None:
    desk = Desk()
    desk.heat(0, 90)
    desk.heat(0.2, 70)
    (sent,) = desk.tick(2)
    assert sent.kind == "firing"
    assert desk.tick(500) == []


def test_what_flickers_inside_the_cooldown_is_recorded_and_not_sent() -> None:
    desk = Desk()
    sent = []
    for second in range(0, 200, 10):
        desk.heat(second, 90 if second % 20 == 0 else 70)
        sent += desk.tick(second + 5)
    assert [row.kind for row in sent].count("firing") == 1
    assert sum(line.state == "firing" for line in desk.lines) == 10


def test_what_still_fires_when_the_cooldown_ends_is_told_then() -> None:
    desk = Desk()
    desk.heat(0, 90, 70)
    assert len(desk.tick(2)) == 1
    desk.heat(60, 90, 90)
    assert desk.tick(100) == []
    (sent,) = desk.tick(303)
    assert sent.body["count"] == 2


def test_a_clock_that_is_set_back_an_hour_delays_no_message_by_an_hour() -> None:
    desk = Desk()
    desk.heat(0, 90)
    assert len(desk.tick(2)) == 1
    desk.tick(-3600)
    desk.heat(-3590, 70)
    desk.tick(-3585)
    desk.heat(-3580, 90)
    sent = [row for second in range(-3580, -3200, 10) for row in desk.tick(second)]
    assert [row.kind for row in sent][-1] == "firing"
    desk.heat(-3200, 70)
    assert [row.kind for row in desk.tick(-3198)] == ["resolved"]


def test_a_message_that_waits_when_the_clock_is_set_back_goes_out_all_the_same() -> None:
    desk = Desk(cooldown=10.0)
    desk.heat(0, 90)
    sent = [row for second in range(-7200, -7180) for row in desk.tick(second)]
    assert [row.kind for row in sent] == ["firing"]


def test_a_severity_below_the_least_is_recorded_only() -> None:
    desk = Desk(rule={"severity": "info"})
    desk.heat(0, 90)
    assert desk.tick(10) == []
    assert [line.state for line in desk.lines] == ["firing"]


def test_a_message_is_repeated_if_asked_for_until_somebody_answers() -> None:
    desk = Desk(repeat=600.0)
    desk.heat(0, 90)
    kinds = [row.kind for second in range(0, 2000, 50) for row in desk.tick(second + 2)]
    assert kinds == ["firing", "repeat", "repeat", "repeat"]
    desk.control(control="ack")
    assert desk.tick(5000) == []
    assert desk.lines[-1].state == "acknowledged"


def test_nobody_answers_so_more_are_told_once() -> None:
    desk = Desk(escalate_after=900.0, escalate_notify=("boss",))
    desk.heat(0, 90)
    sent = [row for second in range(0, 4000, 50) for row in desk.tick(second + 2)]
    assert [(row.kind, row.channels) for row in sent] == [
        ("firing", ("team",)),
        ("escalation", ("boss",)),
    ]
    desk.heat(4100, 70)
    assert [(row.kind, row.channels) for row in desk.tick(4200)] == [("resolved", ("team", "boss"))]


def test_an_acknowledged_alert_is_not_escalated() -> None:
    desk = Desk(escalate_after=900.0, escalate_notify=("boss",))
    desk.heat(0, 90)
    desk.tick(2)
    desk.control(control="ack")
    assert desk.tick(2000) == []


def test_a_silenced_rule_says_nothing_until_the_silence_ends() -> None:
    desk = Desk()
    desk.control(control="silence", until=format_time(T + 7200))
    desk.heat(0, 90)
    assert next(line for line in desk.lines if line.state == "firing").silenced is True
    assert desk.tick(100) == [] == desk.tick(7100)
    assert [row.kind for row in desk.tick(7201)] == ["firing"]


def test_what_came_and_went_during_a_silence_is_not_told_afterwards() -> None:
    desk = Desk()
    desk.control(control="silence", rule="all", until=format_time(T + 7200))
    desk.heat(0, 90)
    desk.heat(50, 70)
    assert desk.tick(8000) == []


def test_a_rule_may_have_its_own_cooldown_and_channels() -> None:
    desk = Desk(rule={"cooldown": "10s", "notify": "team"})
    desk.heat(0, 90)
    assert desk.tick(2)[0].channels == ("team",)
    desk.heat(5, 70)
    desk.tick(8)
    desk.heat(20, 90)
    assert len(desk.tick(22)) == 1


def test_a_ledger_that_is_read_back_tells_nothing_twice_and_loses_nothing() -> None:
    first = Desk()
    first.heat(0, 90, 90)
    told = first.tick(2)
    second = Desk(first.lines)
    assert second.tick(10) == []
    assert list(second.ledger.undelivered) == [told[0].outgoing]
    second.ledger.apply(
        AlertRow(timestamp=format_time(T + 3), delivery=told[0].outgoing, channel="team", result="delivered")
    )
    assert second.ledger.undelivered[told[0].outgoing][1] == {"boss"}


def hot(second: int, *times: tuple[int, int]) -> float:
    return 90.0 if any(start <= second < end for start, end in times) else 60.0


SECONDS = (*range(8, 46), *range(98, 114), *range(398, 426))
"""Those of some minutes in which something happens."""


def live(desk: Desk, start: int = 0, end: int = 1000) -> list[tuple[str, int]]:
    """Two GPUs over some minutes: what is sent, and about how many."""
    sent = []
    for second in (second for second in SECONDS if start <= second < end):
        desk.heat(second, hot(second, (10, 30), (100, 110), (400, 420)), hot(second, (12, 40)))
        sent += [(row.kind, row.body["count"]) for row in desk.tick(second + 0.5)]
    return sent


@pytest.mark.promise("agents killed at any moment", "the messages are the same as from one agent")
def test_whenever_an_agent_is_killed_the_next_sends_what_one_alone_would_have_sent() -> None:
    alone = live(Desk())
    assert [kind for kind, _ in alone] == ["firing", "resolved", "firing", "resolved"]
    for moment in SECONDS:
        first = Desk()
        before = live(first, end=moment)
        second = Desk(first.lines)
        second.engine.restore(
            {key: parse_time(row.since) for key, row in second.ledger.groups["hot"].firing.items()}
            if "hot" in second.ledger.groups
            else {}
        )
        assert before + live(second, moment) == alone, f"killed at {moment} s"


def test_a_ledger_killed_before_the_message_tells_it_after_the_restart() -> None:
    first = Desk()
    first.heat(0, 90)  # killed inside the group's wait
    second = Desk(first.lines)
    assert [row.kind for row in second.tick(5)] == ["firing"]


def test_the_end_of_the_run_resolves_and_sends_no_all_clear() -> None:
    desk = Desk()
    desk.heat(0, 90)
    desk.tick(2)
    assert desk.ledger.close("the run is finished", T + 10) == []
    assert desk.lines[-1].reason == "the run is finished"
    assert desk.tick(400) == []


def test_whoever_keeps_alerts_is_told_that_all_of_them_are_over_when_the_run_ends() -> None:
    desk = Desk(keepers=("boss",))
    desk.heat(0, 90, 90, 90)
    desk.tick(2)
    desk.heat(10, 70)  # one of them is over before
    (sent,) = desk.ledger.close("the run is finished", T + 20)
    assert (sent.kind, sent.channels, sent.quiet) == ("resolved", ("boss",), True)
    alerts = sent.body["alerts"]
    assert [(alert["labels"]["gpu_index"], alert["state"]) for alert in alerts] == [
        (0, "resolved"),
        (1, "resolved"),
        (2, "resolved"),
    ]
    assert desk.tick(400) == []
    assert Desk(desk.lines, keepers=("boss",)).ledger.close("the run is finished", T + 500) == []


def test_whoever_keeps_alerts_is_told_also_during_a_silence_but_not_of_what_was_never_told() -> None:
    desk = Desk(keepers=("boss",))
    desk.heat(0, 90)
    desk.tick(2)
    desk.control(control="silence", until=format_time(T + 7200))
    assert len(desk.ledger.close("the run is finished", T + 20)) == 1
    quiet = Desk(keepers=("boss",))
    quiet.control(control="silence", until=format_time(T + 7200))
    quiet.heat(0, 90)
    assert quiet.ledger.close("the run is finished", T + 20) == []


def test_what_fires_with_the_end_of_the_run_says_that_no_end_of_it_will_be_told() -> None:
    desk = Desk(keepers=("boss",))
    desk.heat(0, 90)
    assert desk.ledger.close("the run is killed", T + 0.5) == []
    (sent,) = desk.ledger.tick(T + 0.5, ahead=1.0)
    assert sent.kind == "firing" and sent.body["alerts"][0]["reason"] == "the run is killed"


def test_a_condition_that_flickers_is_not_written_as_pending_each_time() -> None:
    desk = Desk(rule={"for": "5s"})
    for second in range(50):
        desk.heat(second, 90 if second % 2 else 70)
    assert [line.state for line in desk.lines] == ["pending"]
