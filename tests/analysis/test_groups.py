"""Several runs as one line with a band."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis.groups import make_group

STEPS = np.arange(5.0)


def test_runs_with_the_same_steps_are_averaged_at_what_they_logged() -> None:
    curves = [(STEPS, STEPS + offset) for offset in (0.0, 1.0, 5.0)]
    line = make_group(curves, 100)
    assert list(line.x) == list(STEPS) and list(line.mean) == [2, 3, 4, 5, 6] and list(line.members) == [3] * 5
    assert list(line.low) == list(STEPS) and list(line.high) == list(STEPS + 5)
    assert line.broken == ()


def test_the_bands_are_the_sample_deviation_and_students_interval() -> None:
    curves = [(STEPS, STEPS + offset) for offset in (0.0, 1.0, 5.0)]
    deviation = np.std([0, 1, 5], ddof=1)
    std = make_group(curves, 100, "std")
    assert std.high - std.mean == pytest.approx(deviation) and std.mean - std.low == pytest.approx(deviation)
    sure = make_group(curves, 100, "confidence")
    # 4.303 is Student's t for 95 % and two degrees of freedom.
    assert sure.high - sure.mean == pytest.approx(4.3027 * deviation / math.sqrt(3), rel=1e-4)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    made = np.random.default_rng(7)
    hits = []
    for _ in range(600):
        line = make_group([(np.array([0.0]), made.normal(3.0, 2.0, 1)) for _ in range(5)], 10, "confidence")
        hits.append(line.low[0] <= 3.0 <= line.high[0])
    assert np.mean(hits) == pytest.approx(0.95, abs=0.03)


def test_a_run_that_is_shorter_ends_and_is_not_extrapolated() -> None:
    line = make_group([(STEPS, np.zeros(5)), (STEPS[:3], np.full(3, 2.0))], 100, "std")
    assert list(line.mean) == [1, 1, 1, 0, 0] and list(line.members) == [2, 2, 2, 1, 1]
    assert np.isfinite(line.low[:3]).all()
    assert np.isnan(line.low[3:]).all() and np.isnan(line.high[3:]).all(), "one run has no spread"
    ranged = make_group([(STEPS, np.zeros(5)), (STEPS[:3], np.full(3, 2.0))], 100)
    assert list(ranged.high) == [2, 2, 2, 0, 0]


def test_between_its_values_a_run_is_on_the_line_through_them() -> None:
    line = make_group([(STEPS, np.zeros(5)), (np.array([0.0, 4.0]), np.array([0.0, 4.0]))], 100)
    assert list(line.x) == list(STEPS) and list(line.mean) == [0, 0.5, 1, 1.5, 2] and set(line.members) == {2}


def test_nan_takes_no_part_and_is_marked() -> None:
    broken = np.array([1.0, math.nan, 1.0, math.inf, math.nan])
    line = make_group([(STEPS, np.full(5, 3.0)), (STEPS, broken)], 100)
    assert list(line.mean) == [2, 3, 2, 3, 3] and list(line.members) == [2, 1, 2, 1, 1]
    assert [at for at, _ in line.broken] == [1, 3, 4] and line.broken[1][1] == math.inf
    alone = make_group([(STEPS, np.full(5, math.nan))], 100)
    assert len(alone.x) == 5 and np.isnan(alone.mean).all() and set(alone.members) == {0}


def test_many_different_steps_become_pieces_of_equal_width_with_each_run_counted_once() -> None:
    often, seldom = np.arange(0.0, 1000.0), np.arange(0.0, 1000.0, 7.3)
    line = make_group([(often, often), (seldom, seldom + 2.0)], 50)
    assert len(line.x) == 50 and (line.x[0], line.x[-1]) == (0.0, 999.0) and set(line.members) == {2}
    middle = slice(1, -1)
    assert line.mean[middle] == pytest.approx(line.x[middle] + 1.0, abs=4.0)
    assert (line.low <= line.mean).all() and (line.mean <= line.high).all()


def test_nothing_is_nothing() -> None:
    empty = np.empty(0)
    assert len(make_group([], 10).x) == len(make_group([(empty, empty)], 10).x) == 0
    one = make_group([(np.array([3.0]), np.array([1.5]))], 10, "confidence")
    assert list(one.x) == [3.0] and list(one.mean) == [1.5] and np.isnan(one.low[0])
