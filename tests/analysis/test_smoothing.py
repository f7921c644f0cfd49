"""A curve without its noise."""

from __future__ import annotations

import math

import numpy as np

from trainvitals.analysis.smoothing import smooth

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
