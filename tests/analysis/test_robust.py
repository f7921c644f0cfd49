"""Statistics that a few wild values do not move."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals.analysis.robust import blocks, rises, scale_of, slope_of, thin, usual_highs


def test_a_scale_is_that_of_normal_values_and_ignores_wild_ones() -> None:
    values = np.random.default_rng(0).normal(10, 2, 10_000)
    values[:100] = 1e9
    assert scale_of(values) == pytest.approx(2, rel=0.05)


def test_a_scale_has_a_floor_and_nothing_has_none() -> None:
    assert scale_of(np.full(10, 100.0)) == 0.5
    assert scale_of(np.empty(0)) == 0.0


def test_blocks_leave_the_odd_ones_out_at_the_beginning() -> None:
    x = np.arange(7.0)
    first, middle, _ = blocks(x, x * 10, 3)
    assert first.tolist() == [1.0, 4.0] and middle.tolist() == [20.0, 50.0]


def test_thinning_keeps_the_level() -> None:
    _, y = thin(np.arange(1000.0), np.arange(1000.0), 100)
    assert len(y) == 100 and y[0] == pytest.approx(4.5)


def test_a_slope_ignores_wild_values() -> None:
    x = np.arange(200.0)
    y = 3 * x
    y[::10] = 1e6
    assert slope_of(x, y) == pytest.approx(3)
    assert slope_of(x[:1], y[:1]) == 0.0


def test_a_rise_is_told_from_noise() -> None:
    random = np.random.default_rng(1)
    x = np.arange(2000.0)
    assert rises(x, x * 0.001 + random.normal(0, 0.1, 2000)) < 0.001
    assert rises(x, random.normal(0, 0.1, 2000)) > 0.01
    assert rises(x, -x) == 1.0
    assert rises(x, np.zeros(2000)) == 1.0


def test_usual_highs_are_of_the_pieces_before() -> None:
    y = np.concatenate([np.arange(10.0), np.zeros(10), np.full(10, 5.0)])
    assert usual_highs(y, 10).tolist() == [7.0, 7.0]
