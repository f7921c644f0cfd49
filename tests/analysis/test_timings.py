"""What is said about repeated timings, on simulated ones whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals.analysis.timings import (
    compare_processes,
    is_precise,
    is_steady,
    median_interval,
    process_interval,
    schedule,
    summarize,
)


def simulate_processes(seed: int, ratio: float, processes: int = 6) -> tuple[list[list[float]], list[list[float]]]:
    """Medians of rounds on a machine whose load changes (5 %), of processes that differ from each other (1 %), with
    noise of its own for each round (2 %)."""
    random = np.random.default_rng(seed)
    found: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(processes):
        own = np.exp(random.normal(0, 0.01, 2)) * (1.0, ratio)
        loads = np.exp(random.normal(0, 0.05, 8))
        for times, slower in zip(found, own, strict=True):
            calls = (slower * loads * np.exp(random.normal(0, 0.02, 8)))[:, None] * (1 + random.gamma(1, 0.03, (8, 20)))
            times.append(np.median(calls, axis=1).tolist())
    return found


def test_the_interval_of_the_median_contains_the_true_one_in_95_of_100_cases() -> None:
    random = np.random.default_rng(0)
    intervals = [median_interval(random.exponential(1.0, 200)) for _ in range(400)]
    inside = sum(item is not None and item.low <= np.log(2) <= item.high for item in intervals)
    assert inside / 400 > 0.92


def test_calls_that_are_like_their_neighbours_widen_the_interval() -> None:
    random = np.random.default_rng(0)
    alone = 1 + 0.1 * random.standard_normal(1000)
    alike = np.repeat(alone[:50], 20)
    wide, narrow = median_interval(alike), median_interval(alone)
    assert wide is not None
    assert narrow is not None
    assert wide.width_of(1.0) > 2 * narrow.width_of(1.0)


def test_five_calls_have_no_interval() -> None:
    assert median_interval([1.0, 1.1, 1.2, 1.0, 1.1]) is None


@pytest.mark.parametrize(("calls", "known"), [(99, []), (100, [90]), (200, [90, 95]), (1000, [90, 95, 99])])
def test_a_percentile_is_reported_only_with_enough_calls(calls: int, known: list[int]) -> None:
    assert list(summarize(np.linspace(1, 2, calls)).percentiles) == known


def test_outliers_are_counted_and_do_not_move_the_median() -> None:
    random = np.random.default_rng(0)
    usual = 1 + 0.01 * random.standard_normal(990)
    found = summarize(np.concatenate([usual, np.full(10, 9.0)]))
    assert found.outliers == 10
    assert found.calls == 1000
    assert found.median == pytest.approx(1.0, abs=0.002)
    assert found.mean > 1.05


def test_a_slower_second_half_is_a_drift_and_noise_is_none() -> None:
    random = np.random.default_rng(0)
    noise = 1 + 0.01 * random.standard_normal(400)
    assert summarize(noise).drift is None
    assert summarize(np.concatenate([noise, 1.1 * noise])).drift == pytest.approx(0.1, abs=0.01)


def test_a_warm_up_ends_when_two_windows_agree() -> None:
    slow_then_steady = [10.0, 5.0, 3.0] + [1.0] * 40
    ended = next(count for count in range(1, 44) if is_steady(slow_then_steady[:count]))
    assert 20 <= ended <= 26
    assert not is_steady([1.0] * 10)
    assert not is_steady([2.0 - 0.05 * at for at in range(20)])


def test_enough_is_timed_when_the_interval_is_narrow() -> None:
    random = np.random.default_rng(0)
    times = 1 + 0.05 * random.standard_normal(2000)
    assert not is_precise(times[:20], 0.02)
    assert is_precise(times, 0.02)


def test_rounds_go_forwards_and_backwards() -> None:
    assert [schedule(3, number) for number in range(3)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def test_a_model_against_itself_shows_no_difference_in_at_least_95_of_100() -> None:
    found = [compare_processes(*simulate_processes(seed, 1.0)) for seed in range(200)]
    assert sum(item is not None and item.word == "no difference" for item in found) >= 190


def test_one_that_is_5_percent_slower_is_found() -> None:
    found = [compare_processes(*simulate_processes(seed, 1.05)) for seed in range(40)]
    assert sum(item is not None and item.word == "slower" for item in found) >= 38


def test_many_rounds_of_a_few_processes_do_not_make_their_difference_look_real() -> None:
    # Each process is the same in all of its rounds, and no two are alike.
    found = compare_processes([[1.0] * 1000, [1.01] * 1000, [1.02] * 1000, [1.0] * 1000], [[1.02] * 1000] * 4)
    assert found is not None
    assert found.value == pytest.approx(1.0125, abs=0.001)
    assert found.word == "no difference"


def test_separate_measurements_are_compared_with_a_wider_interval() -> None:
    a, b = simulate_processes(3, 1.5)
    paired, apart = compare_processes(a, b), compare_processes(a, b, paired=False)
    assert paired is not None
    assert apart is not None
    assert paired.word == apart.word == "slower"
    assert apart.high / apart.low > paired.high / paired.low


def test_all_rounds_of_a_process_are_used() -> None:
    found = compare_processes([[1.0] * 200] * 3, [[1.0] * 100 + [3.0] * 100] * 3)
    assert found is not None
    assert found.value == pytest.approx(3**0.5, rel=0.1)
    assert found.processes == 3


def test_two_processes_are_not_compared_and_have_no_interval_of_their_own() -> None:
    assert compare_processes([[1.0] * 40] * 2, [[2.0] * 40] * 6) is None
    assert process_interval([[1.0] * 40] * 2) is None


def test_the_interval_of_a_latency_covers_how_its_processes_differ() -> None:
    found = process_interval([[value] * 8 for value in (0.99, 1.0, 1.01)])
    assert found is not None
    assert found.low < 0.98 < 1.02 < found.high
    assert found.including(1.5) == (found.low, 1.5)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([2.0, 2.0, 2.0], "1.50x faster [1.50, 1.50]"),
        ([3.0, 3.0, 3.0], "no difference seen (± 0.0 %)"),
        ([2.9, 3.0, 3.3], "too noisy to tell (± 50 %)"),
        ([0.1, 3.0, 90.0], "too noisy to tell (± over 100 %)"),
        ([6.0, 7.0, 8.0], "at least 1.02x slower, too noisy to tell how much"),
    ],
)
def test_a_verdict_reads_as_a_sentence(other: list[float], text: str) -> None:
    assert str(compare_processes([[3.0]] * 3, [[value] for value in other])) == text
