"""Energy from readings as they come."""

from __future__ import annotations

import math

import pytest

from trainvitals.analysis.energy import Energy


def test_a_counter_that_begins_again_with_a_new_driver_loses_no_energy() -> None:
    energy = Energy()
    for moment, joules in enumerate((1000.0, 1500.0, 20.0, 120.0)):
        energy.add(float(moment), joules, 999.0)
    assert energy.joules == pytest.approx(500 + 20 + 100)


def test_without_a_counter_energy_is_power_over_time() -> None:
    energy = Energy()
    for second, watts in ((0.0, 100.0), (1.0, 200.0), (2.0, 200.0)):
        energy.add(second, None, watts)
    assert energy.joules == pytest.approx(350)


def test_a_long_pause_is_not_filled_with_energy() -> None:
    energy = Energy()
    for second in (0.0, 1.0, 7200.0, 7201.0):
        energy.add(second, None, 100.0)
    assert energy.joules == pytest.approx(200)


def test_without_any_reading_there_is_no_energy() -> None:
    energy = Energy()
    energy.add(0.0)
    energy.add(1.0, math.nan, math.inf)
    energy.add(None, None, 100.0)
    assert energy.joules is None
