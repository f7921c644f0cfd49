from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from trainvitals.views.tui.health import firing, judge, newest_states
from trainvitals.views.tui.snapshot import Gpu, Run

RUN = Run(
    id="r",
    name="r",
    project="p",
    folder="/r",
    status="running",
    cause="",
    live=True,
    started=0.0,
    ended=None,
    attempt=1,
    simulated=False,
)


def alert(rule: str, state: str, severity: str = "warning", **more: Any) -> dict[str, Any]:
    return {"rule": rule, "state": state, "severity": severity, "message": f"{rule}!", **more}


def test_a_run_with_nothing_wrong_is_healthy() -> None:
    assert judge(RUN, [], []) == ("healthy", None, "")


@pytest.mark.parametrize("status", ["stalled", "hung"])
def test_a_run_that_is_stuck_says_why(status: str) -> None:
    stuck = replace(RUN, status=status, cause="rank 0 waits for data")
    assert judge(stuck, [], []) == (status, "critical", "rank 0 waits for data")


def test_a_bad_end_is_critical_and_a_good_one_is_not() -> None:
    assert judge(replace(RUN, status="crashed", live=False), [], []).severity == "critical"
    assert judge(replace(RUN, status="finished", live=False), [], []) == ("finished", None, "")


def test_the_worst_alert_that_fires_is_the_reason() -> None:
    alerts = [
        alert("warm", "firing"),
        alert("nan", "firing", "critical"),
        alert("old", "firing"),
        alert("old", "resolved"),
    ]
    assert judge(RUN, alerts, []) == ("critical", "critical", "nan! (and 1 more)")


def test_silenced_and_acknowledged_alerts_are_known_already() -> None:
    alerts = [alert("a", "firing"), alert("a", "silenced"), alert("b", "firing"), alert("b", "acknowledged")]
    assert judge(RUN, alerts, []).word == "healthy"


def test_one_rule_on_two_gpus_is_two_alerts() -> None:
    alerts = [alert("hot", "firing", labels={"gpu": 0}), alert("hot", "firing", labels={"gpu": 1})]
    assert len(firing(alerts)) == 2
    assert len(newest_states([*alerts, alert("hot", "resolved", labels={"gpu": 1})])) == 2
    assert len(firing([*alerts, alert("hot", "resolved", labels={"gpu": 1})])) == 1


def test_a_loss_that_is_no_number_is_critical_without_any_rule() -> None:
    assert judge(replace(RUN, values={"loss": math.nan}), [], []).severity == "critical"


def test_a_lost_gpu_is_a_warning_and_a_sleeping_one_is_not() -> None:
    lost = Gpu("k", "3", "H100", "u", {}, 0.0, problem="lost")
    assert judge(None, [], [lost]) == ("warning", "warning", "GPU 3: lost")
    assert judge(None, [], [replace(lost, problem="asleep")]).word == "healthy"
