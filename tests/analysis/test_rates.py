"""A counter as its rate."""

from __future__ import annotations

import numpy as np

from trainvitals.analysis.rates import rate_of


def rate(x: list[float], y: list[float]) -> list[tuple[float, float]]:
    at, values = rate_of(np.array(x, dtype=float), np.array(y, dtype=float))
    return list(zip(at.tolist(), values.tolist(), strict=True))


def test_a_rate_is_the_growth_per_second() -> None:
    assert rate([0, 2, 3], [10, 20, 20]) == [(2, 5), (3, 0)]


def test_a_counter_that_falls_has_no_rate_there() -> None:
    assert rate([0, 1, 2, 3], [100, 110, 3, 5]) == [(1, 10), (3, 2)]


def test_what_has_no_length_and_what_is_not_finite_has_no_rate() -> None:
    assert rate([0, 0, 1], [1, 2, 4]) == [(1, 2)]
    assert rate([0, 1, 2], [1, float("nan"), 3]) == []
    assert rate([1], [1]) == rate([], []) == []
