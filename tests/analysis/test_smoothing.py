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
    assert smooth(STEPS, noise)[100:-100].std() < 0.25 * noise.std()
    assert np.abs(smooth(STEPS, noise)[[0, -1]]).max() < noise.std()


def test_a_trend_is_not_followed_late_nor_left_early_at_the_ends() -> None:
    assert np.allclose(smooth(STEPS, 3 * STEPS + 5), 3 * STEPS + 5)
    decay = 0.2 + 2.5 * np.exp(-STEPS / 100)
    assert np.abs(smooth(STEPS, decay) - decay).max() < 0.05
    growth = np.exp(STEPS / 100)  # a loss on its way to NaN
    assert smooth(STEPS, growth)[-1] == pytest.approx(growth[-1], rel=0.05)


def test_a_spike_is_as_wide_before_as_after_and_the_curve_stays_within_what_was_logged() -> None:
    y = np.where(STEPS == 500, 100.0, 1.0)
    smoothed = smooth(STEPS, y)
    assert np.allclose(smoothed[480:500], smoothed[501:521][::-1])
    assert smoothed[500] == smoothed.max() and smoothed.min() >= 1.0
    last = np.where(STEPS == 999, 100.0, 1.0)
    assert smooth(STEPS, last).min() >= 1.0


def test_points_left_out_change_little() -> None:
    wave = np.sin(STEPS / 100)
    assert np.abs(smooth(STEPS, wave)[::4] - smooth(STEPS[::4], wave[::4])).max() < 0.05


def test_nan_and_infinity_are_gaps_and_both_sides_know_of_each_other() -> None:
    y = np.where(STEPS < 500, 4.0, 2.0)
    y[500], y[501] = math.nan, math.inf
    smoothed = smooth(STEPS, y)
    assert np.isnan(smoothed[500:502]).all() and 2.0 < smoothed[502] < smoothed[499] < 4.0
    assert len(smooth(np.empty(0), np.empty(0))) == 0 and smooth(np.ones(1), np.ones(1)).tolist() == [1.0]


def fit_one_by_one(x: list[float], y: list[float], width: float) -> list[float]:
    """As the definition has it."""
    known = [(place, value) for place, value in zip(x, y, strict=True) if math.isfinite(value)]
    found = []
    for place, value in zip(x, y, strict=True):
        weights = [math.exp(-abs(other - place) / width) for other, _ in known]
        total = sum(weights)
        mean_x = sum(w * (other - place) for w, (other, _) in zip(weights, known, strict=True)) / total
        mean_y = sum(w * there for w, (_, there) in zip(weights, known, strict=True)) / total
        spread = sum(w * (other - place - mean_x) ** 2 for w, (other, _) in zip(weights, known, strict=True))
        product = sum(
            w * (other - place - mean_x) * (there - mean_y) for w, (other, there) in zip(weights, known, strict=True)
        )
        slope = product / spread if spread / total > 1e-9 * width**2 else 0.0
        found.append(mean_y - slope * mean_x if math.isfinite(value) else math.nan)
    return found


@pytest.mark.parametrize("shown", [2000.0, 1000.0, 100.0])
def test_it_is_the_line_of_the_definition_however_much_is_shown(shown: float) -> None:
    random = np.random.default_rng(7)
    x, y = np.sort(random.uniform(0, 1000, 300)), random.normal(size=300)
    x[150:] += 5000  # a pause in which everything before is forgotten
    y[random.uniform(size=300) < 0.1] = math.nan
    expected = np.clip(fit_one_by_one(x.tolist(), y.tolist(), shown * WINDOW), np.nanmin(y), np.nanmax(y))
    assert np.allclose(smooth(x, y, shown), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_where_only_a_point_is_in_reach_it_is_the_point() -> None:
    noise = np.random.default_rng(3).normal(size=1000)
    assert np.allclose(smooth(STEPS, noise, 0.1), noise)


def test_the_largest_numbers_and_nothing_but_nan_are_no_trouble() -> None:
    assert smooth(STEPS, np.full(1000, 1e308)).tolist() == pytest.approx([1e308] * 1000)
    assert smooth(STEPS, np.zeros(1000)).tolist() == [0.0] * 1000
    assert np.isnan(smooth(STEPS, np.full(1000, math.nan))).all()
