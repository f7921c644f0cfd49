"""Health in one word."""

from __future__ import annotations

import math

import pytest

from trainvitals.alerts.records import NOTHING_FIRED, Fired
from trainvitals.analysis.health import judge_health
from trainvitals.analysis.progress import find_pace, find_progress
from trainvitals.journal.documents.findings import Counts
from trainvitals.journal.documents.rows import AlertRow

ALERT = AlertRow(rule="gpu_temperature_high", severity="warning", message="GPU 1 is at 91 °C", advice="Check the fans.")


def test_a_run_that_steps_is_healthy() -> None:
    assert judge_health("running", "", [], {"loss": 1.0}).word == "healthy"


@pytest.mark.parametrize("status", ["failed", "crashed", "killed", "stalled", "hung"])
def test_a_bad_end_is_critical_with_its_cause_and_what_to_do(status: str) -> None:
    found = judge_health(status, "out of memory", [], {})
    assert (found.word, found.severity, found.reason) == (status, "critical", "out of memory") and found.advice


def test_the_worst_alert_speaks_and_the_others_are_counted() -> None:
    found = judge_health("running", "", [ALERT, ALERT], {"loss": 1.0})
    assert (found.word, found.advice) == ("warning", "Check the fans.")
    assert found.reason == "GPU 1 is at 91 °C (and 1 more)"


def test_a_loss_that_is_nan_is_critical_without_any_rule() -> None:
    assert judge_health("running", "", [], {"train/loss": math.nan}).severity == "critical"


def test_a_finished_run_whose_loss_is_nan_tells_its_alerts_and_findings_too() -> None:
    found = judge_health("finished", "", [], {"loss": math.nan}, Fired(Counts(2), Counts(2)), Counts(1, 1))
    assert found.reason == "loss is NaN, 2 critical alerts, 2 findings (1 critical)"


def test_a_finished_run_is_finished_whatever_fired_before() -> None:
    assert judge_health("finished", "", [ALERT], {"loss": 0.1}).word == "finished"


def test_a_finished_run_is_only_as_good_as_what_fired_and_what_was_found() -> None:
    one = Counts(critical=1)
    found = judge_health("finished", "", [], {"loss": 0.1}, Fired(Counts(1, 2), one), Counts(warning=2, info=3))
    assert (found.word, found.severity) == ("finished", "critical")
    assert found.reason == "3 alerts (1 critical), 2 findings"
    assert found.advice == "See the findings and the alerts."
    resolved = judge_health("finished", "", [], {"loss": 0.1}, Fired(one, Counts()))
    assert (resolved.severity, resolved.reason) == ("warning", "1 critical alert")
    brief = judge_health("finished", "", [], {"loss": 0.1}, Fired(Counts(warning=1), Counts()), Counts())
    assert (brief.severity, brief.reason) == ("ok", "1 alert"), "a warning that was resolved is only counted"
    only_found = judge_health("finished", "", [], {}, NOTHING_FIRED, one)
    assert (only_found.severity, only_found.advice) == ("critical", "See the findings.")


def test_progress_comes_from_steps_else_from_epochs_else_is_not_known() -> None:
    by_steps = find_progress({"max_steps": 100}, 49, None, 2.0, live=True)
    assert (by_steps.share, by_steps.seconds_left) == (0.5, 100.0)
    by_epochs = find_progress({"trainer": {"epochs": 4}}, 100, 1.0, 1.0, live=True)
    assert (by_epochs.share, by_epochs.seconds_left) == (0.25, 300.0)
    assert find_progress({}, 10, None, 1.0, live=True).share is None
    assert find_progress({"steps": 100}, 500, None, 1.0, live=True).share is None
    assert find_progress({"steps": True, "max_steps": "x"}, 5, None, 1.0, live=True).share is None


def test_the_last_step_is_the_end_whether_steps_count_from_zero_or_one() -> None:
    assert find_progress({"max_steps": 100}, 99, None, 2.0, live=True)[2:] == (1.0, 0.0)
    assert find_progress({"max_steps": 100}, 100, None, 2.0, live=True)[2:] == (1.0, 0.0)


def test_the_pace_is_per_step_however_seldom_steps_are_logged() -> None:
    assert find_pace([(0, 100.0), (10, 105.0), (20, 110.0)]) == 0.5
    assert find_pace([(7, 100.0)]) is None and find_pace([]) is None
    assert find_pace([(7, 100.0), (7, 101.0)]) is None


def test_what_was_before_a_step_that_went_back_does_not_count() -> None:
    assert find_pace([(90, 0.0), (91, 50.0), (10, 60.0), (11, 61.0), (12, 62.0)]) == 1.0
