"""Lowest, mean and highest, from samples as they come."""

from __future__ import annotations

import math

from trainvitals.views.cli.spread import Spread


def test_a_spread_tells_lowest_mean_and_highest() -> None:
    spread = Spread()
    for value in (10, 30.0, 80):
        spread.add(value)
    assert str(spread) == "10 / 40 / 80"


def test_what_is_missing_is_not_counted_as_zero() -> None:
    spread = Spread()
    for value in (None, math.nan, math.inf, "text"):
        spread.add(value)
    assert str(spread) == "-"
    spread.add(50)
    assert str(spread) == "50 / 50 / 50"
