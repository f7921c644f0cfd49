"""A curve without its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis.smoothing import WINDOW, smooth

STEPS = np.arange(1000.0)


def test_a_constant_stays_and_noise_becomes_less() -> None:
    assert np.allclose(smooth(STEPS, np.full(1000, 7.0)), 7.0)
    noise = np.random.default_rng(1).normal(size=1000)
    assert smooth(STEPS, noise)[100:].std() < 0.35 * noise.std()


def test_nothing_rises_before_a_spike() -> None:
    y = np.where(STEPS == 500, 100.0, 1.0)
    smoothed = smooth(STEPS, y)
    assert np.allclose(smoothed[:500], 1.0)
    assert smoothed[500] > smoothed[520] > 1.0


def test_the_first_value_is_where_it_begins() -> None:
    assert smooth(STEPS, STEPS + 5)[0] == 5.0


def test_points_left_out_change_little() -> None:
    wave = np.sin(STEPS / 100)
    assert np.abs(smooth(STEPS, wave)[::4] - smooth(STEPS[::4], wave[::4])).max() < 0.05


def test_nan_and_infinity_are_gaps_and_what_follows_remembers_what_was_before() -> None:
    y = np.where(STEPS < 500, 4.0, 2.0)
    y[500], y[501] = math.nan, math.inf
    smoothed = smooth(STEPS, y)
    assert np.isnan(smoothed[500:502]).all() and 2.0 < smoothed[502] < 4.0
    assert len(smooth(np.empty(0), np.empty(0))) == 0 and smooth(np.ones(1), np.ones(1)).tolist() == [1.0]


def average_one_by_one(x: list[float], y: list[float], width: float) -> list[float]:
    """As the definition has it."""
    total = weight = 0.0
    found = []
    for at, value in enumerate(y):
        fade = math.exp((x[at - 1] - x[at]) / width) if at else 0.0
        total, weight = total * fade, weight * fade
        if math.isfinite(value):
            total, weight = total + value, weight + 1.0
        found.append(total / weight if math.isfinite(value) else math.nan)
    return found


@pytest.mark.parametrize("shown", [2000.0, 1000.0, 10.0, 0.1])
def test_it_is_the_average_of_the_definition_however_much_is_shown(shown: float) -> None:
    random = np.random.default_rng(7)
    x, y = np.sort(random.uniform(0, 1000, 700)), random.normal(size=700)
    x[300:] += 5000  # a pause in which everything before is forgotten
    y[random.uniform(size=700) < 0.1] = math.nan
    expected = average_one_by_one(x.tolist(), y.tolist(), shown * WINDOW)
    assert np.allclose(smooth(x, y, shown), expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_the_largest_numbers_and_nothing_but_nan_are_no_trouble() -> None:
    assert smooth(STEPS, np.full(1000, 1e308)).tolist() == pytest.approx([1e308] * 1000)
    assert smooth(STEPS, np.zeros(1000)).tolist() == [0.0] * 1000
    assert np.isnan(smooth(STEPS, np.full(1000, math.nan))).all()
