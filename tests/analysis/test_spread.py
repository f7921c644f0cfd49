"""Lowest, mean and highest, from samples as they come."""

from __future__ import annotations

import math

import numpy as np

from trainvitals.analysis.spread import Spread, spread_of


def test_a_spread_has_the_lowest_mean_highest_and_last_value() -> None:
    spread = Spread()
    for value in (10, 80, 30.0):
        spread.add(value)
    assert (spread.count, spread.low, spread.mean, spread.high, spread.last) == (3, 10, 40, 80, 30)


def test_what_is_missing_is_not_counted_as_zero() -> None:
    spread = Spread()
    for value in (None, math.nan, math.inf, "text"):
        spread.add(value)
    assert spread == Spread() and spread.mean is None
    spread.add(50)
    assert (spread.low, spread.mean, spread.high) == (50, 50, 50)


def test_an_array_has_the_same_spread_as_its_values_one_by_one() -> None:
    values = [3.0, math.nan, 1.0, math.inf, 5.0]
    spread = Spread()
    for value in values:
        spread.add(value)
    assert spread_of(np.array(values)) == spread
    assert spread_of(np.array([math.nan])) == spread_of(np.empty(0)) == Spread()
