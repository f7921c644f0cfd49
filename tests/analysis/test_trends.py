"""Trends, growth, change points and forecasts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis import describe_values, find_change_points, find_growth, find_trend, forecast

RANDOM = np.random.default_rng(11)
STEPS = np.arange(2000.0)


def noise(spread: float) -> np.ndarray:
    return RANDOM.normal(0, spread, len(STEPS))


def test_a_line_is_found_with_its_slope_and_how_well_it_fits() -> None:
    found = find_trend(STEPS, 5 - 0.002 * STEPS + noise(0.1))
    assert found is not None and found.direction == "falling" and found.significant
    assert found.slope == pytest.approx(-0.002, rel=0.02) and found.robust_slope == pytest.approx(-0.002, rel=0.02)
    assert found.intercept == pytest.approx(5, abs=0.05) and found.r_squared > 0.95 and found.p_value < 1e-6


def test_a_curve_that_is_not_a_line_falls_nevertheless() -> None:
    found = find_trend(STEPS, 0.5 + 2 * np.exp(-STEPS / 200) + noise(0.01))
    assert found is not None and found.direction == "falling" and found.r_squared < 0.7


def test_noise_is_flat() -> None:
    flat = [find_trend(STEPS, noise(1.0)) for _ in range(100)]
    assert sum(found is not None and found.significant for found in flat) <= 5


def test_wild_values_do_not_move_the_robust_slope() -> None:
    y = 1 + 0.001 * STEPS + noise(0.01)
    y[::50] = 1e6
    found = find_trend(STEPS, y)
    assert found is not None and found.robust_slope == pytest.approx(0.001, rel=0.05)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [math.nan] * 3)])
def test_too_few_values_have_no_trend_and_no_forecast(x: list[float], y: list[float]) -> None:
    assert find_trend(np.array(x), np.array(y)) is None
    assert forecast(np.array(x), np.array(y), 10.0) is None


def test_what_keeps_growing_is_told_from_what_only_varies() -> None:
    leak = find_growth(STEPS, 1000 + 0.1 * STEPS + noise(20))
    assert leak is not None and leak.grows
    assert leak.per_unit == pytest.approx(0.1, rel=0.05) and leak.share == pytest.approx(0.2, rel=0.1)
    for y in (1000 + noise(20), 1000 - 0.1 * STEPS, np.full(len(STEPS), 7.0)):
        found = find_growth(STEPS, y)
        assert found is not None and not found.grows


def test_a_level_that_rose_and_fell_again_has_two_change_points() -> None:
    y = 0.2 * np.exp(noise(0.02))
    y[700:1400] *= 1.3
    rose, fell = find_change_points(STEPS, y)
    assert abs(rose.x - 700) <= 10 and rose.change == pytest.approx(0.3, abs=0.03) and rose.known_at > 700
    assert abs(fell.x - 1400) <= 10 and fell.change == pytest.approx(-0.23, abs=0.03)


def test_a_trend_noise_and_values_below_zero_have_no_change_points() -> None:
    assert find_change_points(STEPS, 0.5 + 2 * np.exp(-STEPS / 300) + noise(0.01)) == []
    assert find_change_points(STEPS, np.exp(noise(0.05))) == []
    assert find_change_points(STEPS, noise(1.0)) == []


def test_a_forecast_has_an_interval_that_is_right_as_often_as_it_claims() -> None:
    inside = 0
    for _ in range(200):
        ahead = forecast(STEPS, 10 + 0.01 * STEPS + noise(1.0), 2500)
        assert ahead is not None and ahead.low < ahead.value < ahead.high
        inside += ahead.low < 35 + RANDOM.normal() < ahead.high
    assert 180 <= inside <= 200


def test_a_loss_is_not_forecast_below_zero() -> None:
    ahead = forecast(STEPS, 3 * np.exp(-STEPS / 300) * np.exp(noise(0.05)), 20_000)
    assert ahead is not None and ahead.low > 0


def test_statistics_are_of_the_finite_values() -> None:
    found = describe_values(np.array([1.0, math.nan, 3.0, math.inf, 2.0]))
    assert found is not None and (found.values, found.low, found.mean, found.median, found.high) == (3, 1, 2, 2, 3)
    assert describe_values(np.array([math.nan])) is None
