"""What a metric came to."""

from __future__ import annotations

import json

import pytest

from trainvitals.journal import summaries
from trainvitals.journal.encoding import encode_line
from trainvitals.journal.summaries import MetricSummary, Summary, merge


def test_metrics_beyond_the_limit_are_counted_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MOST_NAMES", 3)
    summary = Summary()
    for step in range(2):
        summary.add({"timestamp": "t", "step": step, **{f"m{number}": 1.0 for number in range(5)}})
    assert set(summary.metrics) == {"m0", "m1", "m2"} and summary.left_out == 4


def test_nan_and_infinity_are_counted_and_leave_the_extremes_alone() -> None:
    summary = Summary()
    for step, value in enumerate(("NaN", 3.0, "Infinity", 1.0, "-Infinity")):
        summary.add({"timestamp": "t", "step": step, "loss": value})
    found = summary.metrics["loss"]
    assert (found.count, found.nonfinite, found.low, found.low_step, found.high, found.high_step) == (
        5,
        3,
        1.0,
        3,
        3.0,
        1,
    )
    assert MetricSummary.read(json.loads(encode_line(found.as_json()))) == found
    assert MetricSummary.read("nonsense") is None and MetricSummary.read({"count": 3}) is None


def test_of_two_parts_the_newer_has_the_last_value_and_the_older_wins_a_tie() -> None:
    older = MetricSummary(2, 1.0, 1, 1.0, 1, 2.0, 0)
    newer = MetricSummary(3, 1.5, 4, 1.0, 2, 3.0, 3, 1)
    assert merge(older, newer) == MetricSummary(5, 1.5, 4, 1.0, 1, 3.0, 3, 1)
    assert merge(MetricSummary(1, float("inf"), 0, nonfinite=1), older) == MetricSummary(3, 1.0, 1, 1.0, 1, 2.0, 0, 1)
