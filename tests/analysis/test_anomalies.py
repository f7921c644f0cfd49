"""Anomalies in any series, judged by what came before only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.analysis.anomalies import AnomalyDetector, find_anomalies, find_season

LENGTH = 3000
AT = 2000


def noise(seed: int = 1, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(10.0, 1.0, length)


def found_in(values: np.ndarray) -> list[tuple[int, str]]:
    return [(item.place, item.kind) for item in find_anomalies(values)]


@pytest.mark.parametrize(("height", "kind"), [(15.0, "high"), (-15.0, "low")])
def test_a_single_wild_value_is_found_where_it_is(height: float, kind: str) -> None:
    values = noise()
    values[AT] += height
    assert (AT, kind) in found_in(values)


def test_a_lasting_change_of_the_level_is_one_anomaly() -> None:
    values = noise()
    values[AT:] += 3.0
    near = [place for place, _ in found_in(values) if place >= AT]
    assert near and near[0] < AT + 20 and len(near) == 1


def test_noise_that_becomes_louder_is_found() -> None:
    values = noise()
    values[AT:] = 10 + (values[AT:] - 10) * 4
    assert any(AT <= place < AT + 60 for place, _ in found_in(values))


def test_a_wild_value_among_few_is_found_only_if_it_is_very_wild() -> None:
    values = noise(length=120)
    values[100] += 5.0
    assert found_in(values) == []
    values[100] += 50.0
    assert found_in(values)[0] == (100, "high")


@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "periodic", "random walk in bounds", "square", "constant"])
def test_ordinary_series_raise_few_false_alarms(kind: str) -> None:
    alarms = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        place = np.arange(4000)
        values = {
            "normal": random.normal(0, 1, 4000),
            "heavy-tailed": random.standard_t(3, 4000),
            "periodic": np.sin(place / 45.8) + random.normal(0, 0.1, 4000),
            "random walk in bounds": np.sin(np.cumsum(random.normal(0, 0.05, 4000))),
            "square": (place // 144 % 2) * 50.0 + random.normal(0, 1, 4000),
            "constant": np.full(4000, 7.0),
        }[kind]
        alarms += len(found_in(values))
    assert alarms / 40 <= (1.0 if kind == "heavy-tailed" else 0.4), f"{alarms} in 40,000 values"


def season(length: int, count: int = 4000, seed: int = 1) -> np.ndarray:
    return 5 + 2 * np.sin(2 * np.pi * np.arange(count) / length) + np.random.default_rng(seed).normal(0, 0.2, count)


@pytest.mark.parametrize("length", [24, 96, 288])
def test_a_value_that_is_usual_but_not_at_that_time_is_found(length: int) -> None:
    values = season(length)
    assert found_in(values) == []
    top = 2880 + length // 4
    values[top : top + length // 6] = 5.0
    assert "low for its time" in [kind for place, kind in found_in(values) if top <= place < top + length // 6]


def test_missing_values_have_their_place_in_a_season() -> None:
    values = season(96)
    values[np.random.default_rng(2).random(4000) < 0.05] = math.nan
    values[1500:1517] = math.nan
    assert found_in(values) == []
    values[2880 + 24 : 2880 + 40] = 5.0
    assert [kind for _, kind in found_in(values)] == ["low for its time"]


@pytest.mark.parametrize("length", [24, 100, 336])
def test_the_length_of_a_season_is_found(length: int) -> None:
    assert abs(find_season(season(length)) - length) <= 1
    assert abs(find_season(season(length) + np.arange(4000) / 400) - length) <= 1


@pytest.mark.parametrize("kind", ["noise", "walk", "trend", "constant", "missing"])
def test_what_does_not_come_again_has_no_season(kind: str) -> None:
    values = {
        "noise": noise(),
        "walk": np.cumsum(np.random.default_rng(1).normal(0, 1, 4000)),
        "trend": np.arange(4000.0) + noise(length=4000),
        "constant": np.full(4000, 7.0),
        "missing": np.full(4000, math.nan),
    }[kind]
    assert find_season(values) == 0


@settings(max_examples=10, deadline=None)
@given(st.integers(8, 300), st.integers(0, 2500), st.integers(0, 5))
def test_a_season_does_not_look_ahead_either(length: int, cut: int, seed: int) -> None:
    values = season(length, 2500, seed)
    values[2000:2010] += 3
    whole = list(find_anomalies(values))
    assert list(find_anomalies(values[:cut])) == [item for item in whole if item.place < cut]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300), st.integers(0, 300))
def test_nothing_looks_ahead(values: list[float], cut: int) -> None:
    whole = list(find_anomalies(values))
    assert list(find_anomalies(values[:cut])) == [item for item in whole if item.place < cut]
    assert all(item.score >= 1 for item in whole)


def test_values_whose_squares_overflow_are_judged() -> None:
    values = noise()
    values[AT] = 1e300
    values[AT + 100] = -1e308
    assert (AT, "high") in found_in(values) and (AT + 100, "low") in found_in(values)


def test_missing_values_are_no_anomalies_and_keep_the_places() -> None:
    values = noise()
    values[500:600] = math.nan
    values[AT] += 20
    assert [place for place, _ in found_in(values) if place in {*range(500, 600), AT}] == [AT]


def test_infinity_is_an_anomaly_from_the_first_value_on() -> None:
    (only,) = find_anomalies([1.0, math.inf, math.inf, 2.0])
    assert (only.place, only.kind) == (1, "not finite")


def test_a_change_of_the_last_digit_of_a_constant_is_rounding() -> None:
    values = np.full(LENGTH, 7.0)
    values[AT:] += 1e-12
    assert found_in(values) == []
    values[AT:] += 1.0
    assert found_in(values)[0][0] == AT


def test_sums_do_not_drift_at_a_high_level() -> None:
    values = noise() + 1e9
    assert found_in(values) == [] or found_in(values) == found_in(noise())
    detector = AnomalyDetector()
    for value in values:
        detector.add(float(value))
    assert detector.seen == LENGTH
