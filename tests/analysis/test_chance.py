"""How likely a difference is chance, against published tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis.chance import detrended_size, effective_size, t_confidence, t_quantile

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 63.657), (2, 9.925), (3, 5.841), (10, 3.169), (30, 2.750), (120, 2.617), (1e6, 2.5758)]
)
def test_t_is_that_of_the_tables(freedom: float, t: float) -> None:
    assert t_confidence(t, freedom) == pytest.approx(0.99, abs=2e-5)
    assert t_quantile(0.99, freedom) == pytest.approx(t, rel=2e-4)


def test_t_has_ends() -> None:
    assert t_confidence(0.0, 5) == 0.0
    assert t_confidence(math.inf, 5) == 1.0
    assert t_confidence(1e9, 200) == pytest.approx(1.0)
    assert t_confidence(math.nan, 5) == 0.0


def test_values_that_follow_each_other_count_as_fewer() -> None:
    independent = RANDOM.normal(size=2000)
    walk = np.convolve(independent, np.ones(50) / 50, mode="valid")
    assert effective_size(independent) > 1000
    assert effective_size(walk) < 200


@pytest.mark.parametrize("value", [0.04, 0.1, 1 / 3, 1e-7, 1e7])
def test_a_constant_is_not_autocorrelated(value: float) -> None:
    assert effective_size(np.full(600, value)) == 600


def test_what_a_fit_took_away_is_put_back() -> None:
    plain, slow = [], []
    for _ in range(30):
        noise = RANDOM.normal(size=60)
        plain.append(detrended_size(noise - noise.mean()))
        walk = np.convolve(RANDOM.normal(size=160), np.ones(40), mode="valid")[:60]
        slow.append(detrended_size(walk - np.polyval(np.polyfit(np.arange(60), walk, 1), np.arange(60))))
    assert 40 < np.median(plain) <= 60
    assert np.median(slow) < 5
