"""Many series as one band."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis.bands import make_band

STEPS = np.arange(1000.0)


def test_a_band_has_the_extremes_of_all_ranks_and_the_mean_of_their_means() -> None:
    x = np.arange(100.0)
    often = np.arange(0, 100, 0.5)
    band = make_band([(x, np.full(100, 1.0)), (often, np.full(200, 4.0)), (x, np.full(100, math.nan))], 10)
    assert set(band.low) == {1.0} and set(band.high) == {4.0} and set(band.mean) == {2.5}
    assert len(make_band([], 10).x) == 0


def test_ranks_that_all_went_nan_are_marked_up_to_the_last_step() -> None:
    y = np.where(STEPS > 200, math.nan, 1.0)
    band = make_band([(STEPS, y)] * 16, 500)
    assert (band.x[0], band.x[-1]) == (0.0, 999.0)
    assert band.x[np.isfinite(band.mean)].max() == pytest.approx(200, abs=2)
    marked = band.x[[at for at, _ in band.broken]]
    assert marked.min() == pytest.approx(201, abs=2) and marked.max() == 999.0 and len(marked) > 390
    assert all(math.isnan(value) for _, value in band.broken)
    assert np.isnan(band.low[-1]) and np.isnan(band.high[-1])


def test_one_rank_that_is_infinite_for_a_step_is_marked_and_the_others_are_drawn() -> None:
    broken = np.where(STEPS == 500, -math.inf, 3.0)
    band = make_band([(STEPS, np.full(1000, 1.0)), (STEPS, broken)], 100)
    ((at, value),) = band.broken
    assert value == -math.inf and band.x[at] == pytest.approx(500, abs=10)
    assert np.isfinite(band.mean).all() and band.low[at] == 1.0


def test_a_place_where_nobody_logged_is_no_gap() -> None:
    sparse = np.array([0.0, 1.0, 2.0, 900.0])
    band = make_band([(sparse, np.ones(4)), (sparse, np.ones(4))], 4)
    assert len(band.x) == 2 and np.isfinite(band.mean).all() and band.broken == ()


def test_the_band_holds_every_curve() -> None:
    x = np.arange(10.0)
    band = make_band([(x, x + k) for k in range(6)], 19)
    assert np.array_equal(band.low + 5, band.high) and np.allclose(band.mean, band.low + 2.5)
    assert (band.x[0], band.low[0], band.x[-1], band.high[-1]) == (0, 0, 9, 14)


def test_the_edge_does_not_jump_where_a_series_was_not_logged() -> None:
    """Two GPUs are read in turn: at each moment there is a value of one of them."""
    even, odd = np.arange(0.0, 100, 2), np.arange(1.0, 100, 2)
    band = make_band([(even, np.full(50, 10.0)), (odd, np.full(50, 90.0))], 1000)
    assert set(band.low) == {10.0} and set(band.high) == {90.0} and set(band.mean) == {50.0}


@pytest.mark.parametrize("points", [7, 60, 199, 200, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_64_gpus_read_at_different_moments_have_no_notch(points: int, seed: int) -> None:
    """One GPU is far below the others, and each is read at its own moment of the interval: nowhere, not even at the
    ends, is a piece of the band without it."""
    dice = np.random.default_rng(seed)
    series = []
    for gpu in range(64):
        moments = np.sort(np.arange(200) * 2.0 + dice.uniform(0, 2) + dice.uniform(-0.3, 0.3, 200))
        series.append((moments, np.full(200, 5.0 if gpu == 3 else 90.0)))
    band = make_band(series, points)
    assert len(band.x) == min(points, 200)
    assert set(band.low) == {5.0} and set(band.high) == {90.0}
    assert np.allclose(band.mean, (63 * 90 + 5) / 64)


def test_a_series_that_ended_is_not_drawn_on() -> None:
    band = make_band([(STEPS, np.full(1000, 1.0)), (STEPS[:500], np.full(500, 9.0))], 100)
    assert set(band.high[band.x < 490]) == {9.0} and set(band.high[band.x > 510]) == {1.0}
