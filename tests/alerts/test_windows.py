"""Windows give what numpy gives over the same values, whatever comes and goes."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.alerts import windows
from trainvitals.alerts.language import Window

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


def ask(name: str, window: Window, values: list[float], share: float = 0.5) -> float | None:
    memory = windows.create(name, window, share)
    for index, value in enumerate(values, 1):
        memory.add(value, index, float(index), float(index))
    return windows.question(name, memory, share)(float(len(values)))


REFERENCE = {
    "mean": lambda values: float(np.mean(values)),
    "median": lambda values: float(np.median(values)),
    "min": min,
    "max": max,
    "std": lambda values: float(np.std(values, ddof=1)),
    "quantile": lambda values: float(np.quantile(values, 0.9)),
}


@pytest.mark.parametrize("name", REFERENCE)
@settings(max_examples=60, deadline=None)
@given(values=st.lists(NUMBERS, min_size=8, max_size=120), length=st.integers(2, 40))
def test_the_answer_is_that_of_numpy_over_the_last_values(name: str, values: list[float], length: int) -> None:
    inside = values[-length:]
    if 2 * len(inside) < length or len(inside) < 2:
        return
    found = ask(name, Window(steps=length), values, 0.9)
    expected = REFERENCE[name](inside)
    scale = max(map(abs, inside), default=1.0) or 1.0
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * scale)


def test_a_huge_value_leaves_no_trace_once_it_has_left_the_window() -> None:
    values = [1.0, 2.0, 3.0] * 20 + [1e30] + [1.0, 2.0, 3.0] * 20
    for name in ("mean", "std"):
        expected = REFERENCE[name](values[-30:])
        assert ask(name, Window(steps=30), values) == pytest.approx(expected, rel=1e-12)


def test_slope_and_correlation_are_those_of_a_fitted_line() -> None:
    random = np.random.default_rng(1)
    values = list(0.5 * np.arange(100) + random.normal(0, 3, 100))
    fitted = np.polyfit(np.arange(40), values[-40:], 1)[0]
    assert ask("slope", Window(steps=40), values) == pytest.approx(fitted)
    correlation = np.corrcoef(np.arange(40), values[-40:])[0, 1]
    assert ask("correlation", Window(steps=40), values) == pytest.approx(correlation)


def test_nan_and_infinity_are_left_out_but_counted() -> None:
    values = [1.0, math.nan, 3.0, math.inf, 5.0, -math.inf]
    assert ask("mean", Window(steps=6), values) == 3.0
    assert ask("count", Window(steps=6), values) == 6.0


def test_a_window_that_is_not_half_full_says_nothing() -> None:
    assert ask("median", Window(steps=10), [1.0, 2.0, 3.0, 4.0]) is None
    assert ask("median", Window(steps=10), [1.0, 2.0, 3.0, 4.0, 5.0]) == 3.0
    assert ask("mean", Window(seconds=100), [1.0] * 49) is None
    assert ask("mean", Window(seconds=100), [1.0] * 60) == 1.0


def test_a_window_of_values_counts_them_and_not_the_lines_between() -> None:
    for window, answer in ((Window(steps=4), None), (Window(values=4), 8.5)):
        memory = windows.create("median", window)
        for number in range(11):
            memory.add(float(number), number * 10, number * 10, float(number))
        assert windows.question("median", memory)(0.0) == answer


def test_the_first_values_stay_the_first() -> None:
    memory = windows.create("first", Window(values=4))
    first = windows.question("first", memory)
    for number, value in enumerate([5.0, math.nan, 1.0, 3.0]):
        memory.add(value, number, number, 0.0)
    assert first(0.0) is None
    for value in (4.0, 100.0, 200.0):
        memory.add(value, 9, 9, 0.0)
    assert first(0.0) == 3.5


def test_a_window_of_seconds_empties_while_nothing_arrives() -> None:
    memory = windows.create("max", Window(seconds=60))
    for second in range(100):
        memory.add(float(second), second + 1, float(second), float(second))
    largest = windows.question("max", memory)
    assert largest(99.0) == 99.0
    assert largest(170.0) is None


def test_many_points_a_second_need_no_more_memory_than_few() -> None:
    memory = windows.create("median", Window(seconds=60))
    for index in range(60_000):
        memory.add(float(index % 7), index + 1, float(index), index / 1000)
    assert memory._sorted.size <= windows.BUCKETS + 1  # type: ignore[attr-defined]
    assert windows.question("median", memory)(60.0) == 3.0


def test_deviation_is_robust_and_zscore_is_not() -> None:
    steady = [1.0, 1.1, 0.9, 1.05, 0.95] * 20
    spiked = [*steady[:-1], 50.0]
    assert ask("deviation", Window(steps=100), spiked) > 100  # type: ignore[operator]
    two = [*steady[:-2], 50.0, 50.0]
    robust, plain = ask("deviation", Window(steps=100), two), ask("zscore", Window(steps=100), two)
    assert robust is not None and plain is not None
    assert robust > 100 > plain


def test_change_sees_a_counter_that_rose_between_two_readings() -> None:
    memory = windows.create("change", Window(seconds=10))
    memory.add(5.0, 1, 0.0, 0.0)
    memory.add(7.0, 2, 0.0, 60.0)
    assert windows.question("change", memory)(60.0) == 2.0
    assert windows.question("change", memory)(75.0) == 0.0


def test_the_best_so_far_and_the_steps_since() -> None:
    values = [5.0, 4.0, 3.0, 2.999, 3.1, 3.0]
    assert ask("since_improved", Window(), values, 0.01) == 3.0
    assert ask("min", Window(), values) == 2.999


def test_the_baseline_is_the_median_of_the_early_window_and_stays() -> None:
    values = [100.0] * 50 + [float(n) for n in range(100)] + [1e6] * 100
    expected = statistics.median_high([float(n) for n in range(100)])
    assert ask("baseline", Window(), values) == expected
    assert ask("baseline", Window(), values[:149]) is None


@pytest.mark.parametrize("name", ["mean", "std", "min", "max", "median", "slope", "count", "change"])
def test_work_per_point_does_not_grow_with_the_window(name: str) -> None:
    """Counted in interpreter events rather than seconds, so a busy machine cannot blur it."""
    import sys

    def work(length: int) -> int:
        memory = windows.create(name, Window(steps=length))
        random = np.random.default_rng(0)
        values = random.normal(size=3 * length).tolist()
        question = windows.question(name, memory)
        events = 0

        def count(frame: object, event: str, argument: object) -> object:
            nonlocal events
            events += 1
            return count

        for index, value in enumerate(values, 1):
            if index == 2 * length:
                sys.settrace(count)  # type: ignore[arg-type]
            memory.add(value, index, float(index), float(index))
            question(float(index))
        sys.settrace(None)
        return events // length

    small, large = work(100), work(5000)
    # A median walks over the blocks it lies behind: a handful of events more at fifty times the length.
    assert large <= small * 1.5 + 80


def test_a_level_that_changed_for_good_is_known_by_how_much_and_since_when() -> None:
    steady = [1.0 + 0.01 * (n % 7) for n in range(400)]
    slower = [1.2 * value for value in steady]
    assert ask("shifted", Window(), steady, 0.04) == 0.0
    assert ask("since_shifted", Window(), steady, 0.04) is None
    assert ask("shifted", Window(), steady + slower, 0.04) == pytest.approx(0.2, rel=0.05)
    assert ask("since_shifted", Window(), steady + slower, 0.04) == pytest.approx(399, abs=2)
    assert ask("shifted", Window(), steady + slower + steady, 0.04) == 0.0


def test_a_value_that_rose_from_its_best_is_known_until_it_came_back() -> None:
    low = [1.0 + 0.01 * (n % 7) for n in range(400)]
    high = [value + 0.3 for value in low]
    assert ask("risen", Window(), low, 0.1) == 0.0
    assert ask("risen", Window(), low + high, 0.1) == pytest.approx(0.3, rel=0.1)
    assert ask("since_risen", Window(), low + high, 0.1) == pytest.approx(400, abs=50)
    assert ask("risen", Window(), low + high + low, 0.1) == 0.0
