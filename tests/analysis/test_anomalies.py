"""Anomalies in any series, judged by what came before only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.analysis.anomalies import AnomalyDetector, find_anomalies

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
