"""Lowest, mean, highest, and energy, from samples as they come."""

from __future__ import annotations

import math

import pytest

from trainvitals.journal.encoding import format_time
from trainvitals.views.cli.spread import Energy, Spread


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


def test_energy_follows_the_counter_across_a_new_driver() -> None:
    energy = Energy()
    for joules in (1000.0, 1500.0, 20.0, 120.0):
        energy.add({"energy_joules": joules, "power_draw_watts": 999.0})
    assert energy.joules == pytest.approx(600)


def test_without_a_counter_energy_is_power_over_time() -> None:
    energy = Energy()
    for second, watts in ((0, 100.0), (1, 200.0), (2, 200.0)):
        energy.add({"timestamp": format_time(1e9 + second), "power_draw_watts": watts})
    assert energy.joules == pytest.approx(350)


def test_a_long_pause_is_not_filled_with_energy() -> None:
    energy = Energy()
    for second in (0, 1, 7200, 7201):
        energy.add({"timestamp": format_time(1e9 + second), "power_draw_watts": 100.0})
    assert energy.joules == pytest.approx(200)


def test_without_any_reading_there_is_no_energy() -> None:
    energy = Energy()
    energy.add({"timestamp": format_time(1e9)})
    assert energy.joules is None
