"""What began at some step: found in time, dated well, and never taken back when more values come."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainvitals.analysis.episodes import find_rises, find_shifts, find_spikes
from trainvitals.analysis.findings import Curve
from trainvitals.episodes import Episode, ShiftJudge

Find = Callable[[Curve], list[Episode]]


def curve(values: np.ndarray, every: int = 1) -> Curve:
    """Logged every so many steps."""
    return Curve(np.arange(len(values), dtype=np.float64)[::every], np.asarray(values, dtype=np.float64)[::every])


def shifts(found: Curve) -> list[Episode]:
    return find_shifts(found, 0.04)


def spikes(found: Curve) -> list[Episode]:
    return find_spikes(found, 8)


def rises(found: Curve) -> list[Episode]:
    return find_rises(found, 0.1)


def step_times(seed: int = 1, steps: int = 5000, noise: float = 0.004) -> np.ndarray:
    return 0.2 * np.exp(np.random.default_rng(seed).normal(0, noise, steps))


def falling(seed: int = 1, steps: int = 3000, noise: float = 0.08) -> np.ndarray:
    return 3 + 2 * np.exp(-np.arange(steps) / 200) + np.random.default_rng(seed).normal(0, noise, steps)


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("drift", [0, 0.002, 0.005, 0.009])
@pytest.mark.parametrize("slower", [0.06, 0.2])
def test_slower_steps_are_named_soon_and_dated_to_the_step(slower: float, drift: float, every: int) -> None:
    values = step_times() * (1 + drift * np.arange(5000) / 3500)
    values[3500:] *= 1 + slower
    (found,) = shifts(curve(values, every))
    assert abs(found.since - 3500) <= every
    assert found.named_at <= 3650
    assert found.after / found.before - 1 == pytest.approx(slower, rel=0.1)
    assert found.until is None


def test_slower_steps_are_found_in_loud_noise_later() -> None:
    values = step_times(noise=0.1)
    values[2500:] *= 1.1
    (found,) = shifts(curve(values))
    assert abs(found.since - 2500) <= 50 and found.named_at <= 3200


def test_steps_that_are_as_fast_as_before_again_end_the_episode() -> None:
    values = step_times()
    values[1000:2000] *= 1.3
    values[3000:] *= 1.1
    first, second = shifts(curve(values))
    assert (first.since, first.until) == (1000, 2000)
    assert (second.since, second.until) == (3000, None)


def test_steps_that_slow_down_bit_by_bit_are_found() -> None:
    values = step_times() * (1 + 0.3 * np.arange(5000) / 5000)
    assert shifts(curve(values))


@pytest.mark.parametrize(
    "kind", ["plain", "loud", "heavy-tailed", "evaluation", "accumulation", "two modes", "warm-up"]
)
@pytest.mark.parametrize("every", [1, 10])
def test_a_steady_pace_has_no_shifts(kind: str, every: int) -> None:
    steps = np.arange(4000)
    for seed in range(5):
        random = np.random.default_rng(seed)
        values = {
            "plain": step_times(seed, 4000),
            "loud": step_times(seed, 4000, 0.1),
            "heavy-tailed": 0.2 * np.exp(0.01 * random.standard_t(3, 4000)),
            "evaluation": step_times(seed, 4000, 0.01) * np.where(steps % 100 == 99, 8, 1),
            "accumulation": step_times(seed, 4000, 0.02) * np.where(steps % 4 == 3, 5, 1),
            "two modes": step_times(seed, 4000, 0.01) * np.where(random.random(4000) < 0.15, 1.3, 1),
            "warm-up": step_times(seed, 4000, 0.01) * (1 + 2 * np.exp(-steps / 20)),
        }[kind]
        assert shifts(curve(values, every)) == []


def test_batches_of_two_lengths_in_changing_shares_are_no_shift() -> None:
    for seed in range(40):
        random = np.random.default_rng(seed)
        long = random.random(4000) < 0.42
        values = step_times(seed, 4000, 0.02) * np.where(long, 1.35, 1)
        assert shifts(curve(values)) == []
    values[2000:] *= 1.1
    (found,) = shifts(curve(values))
    assert abs(found.since - 2000) <= 300


@pytest.mark.parametrize("first", [0.15, 0.3])
def test_a_first_value_that_is_low_by_chance_makes_no_explosion(first: float) -> None:
    for seed in range(30):
        random = np.random.default_rng(seed)
        values = np.abs(0.7 + 1.4 * (1 - np.exp(-np.arange(4000) / 1000)) + random.normal(0, 0.4, 4000))
        values[:3] = first
        assert rises(curve(values)) == []


@pytest.mark.parametrize("at", [300, 600, 900, 1200])
def test_a_spike_is_found_however_far_the_loss_fell_before(at: int) -> None:
    values = 4 + 6 * np.exp(-np.arange(1500) / 60) + np.random.default_rng(1).normal(0, 0.08, 1500)
    values[at] += 3
    assert [found.since for found in spikes(curve(values))] == [at]


def test_a_spike_stays_found_as_the_run_goes_on() -> None:
    values = 3 + np.random.default_rng(1).normal(0, 0.2, 1900)
    values[1500] += 2.4
    assert {tuple(item.since for item in spikes(curve(values[:n]))) for n in range(1501, 1901)} == {(1500,)}


@pytest.mark.parametrize("every", [1, 10])
def test_a_quiet_divergence_is_named_within_200_steps(every: int) -> None:
    values = falling()
    values += np.clip((np.arange(3000) - 2000) / 200, 0, 1) * 0.9
    (found,) = rises(curve(values, every))
    assert 1900 <= found.since <= 2060
    assert found.named_at <= 2200 + every
    assert found.until is None


def test_a_loss_that_exploded_at_the_start_is_above_where_it_began() -> None:
    values = np.concatenate([[3, 9, 1e3, 1e6, 300], 50 + np.random.default_rng(1).normal(0, 8, 800)])
    (found,) = rises(curve(values))
    assert found.since < 10 and found.before < 10 and found.until is None


def test_a_loss_that_comes_back_ends_the_episode() -> None:
    values = falling()
    values[1500:1800] += 1
    (found,) = rises(curve(values))
    assert abs(found.since - 1500) <= 50 and found.until is not None and abs(found.until - 1800) <= 80


@pytest.mark.parametrize("odd", [[float("nan"), 0.0], [0.0, float("nan")], [-1.0, float("nan"), float("nan")], [0.0]])
def test_what_is_no_positive_number_is_left_out_of_shifts(odd: list[float]) -> None:
    values = [0.2] * 1000 + [0.3] * 1000
    steps = [float(step) for step in range(len(values))]
    with_odd = [*values[:500], *odd, *values[500:]]
    their_steps = [*steps[:500], *([500.0] * len(odd)), *steps[500:]]
    plain, mixed, one_by_one = ShiftJudge(0.04), ShiftJudge(0.04), ShiftJudge(0.04)
    plain.extend(steps, values)
    mixed.extend(their_steps, with_odd)
    for step, value in zip(their_steps, with_odd, strict=True):
        one_by_one.add(step, value)
    assert plain.episodes and mixed.episodes == plain.episodes == one_by_one.episodes


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("noise", [0.01, 0.08, 0.5])
def test_a_healthy_loss_neither_rises_nor_spikes(noise: float, every: int) -> None:
    for seed in range(5):
        values = curve(falling(seed, noise=noise), every)
        assert rises(values) == [] and spikes(values) == []


@pytest.mark.parametrize("find", [shifts, spikes, rises], ids=["shifts", "spikes", "rises"])
def test_what_was_named_stays_named(find: Find) -> None:
    """Of the first n values what is found is what was known at that step, whatever came later."""
    random = np.random.default_rng(7)
    values = falling(steps=2000) if find is not shifts else step_times(steps=2000, noise=0.02)
    values[700:1100] *= 1.3
    values[1400] *= 4
    values[1500:] *= 1.25
    whole = find(curve(values))
    assert whole
    for length in sorted(random.integers(200, 2000, 40)):
        part = find(curve(values[:length]))
        expected = [item for item in whole if item.named_at < length]
        assert [(item.since, item.named_at) for item in part] == [(item.since, item.named_at) for item in expected]


@pytest.mark.parametrize("find", [shifts, spikes, rises], ids=["shifts", "spikes", "rises"])
@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [1.0, 2.0, 3.0],
        [5.0] * 1000,
        [0.0] * 1000,
        [-1.0] * 500,
        [1e-300] * 300,
        [1e300] * 300,
        [1.0, 1e9] * 200,
    ],
    ids=["none", "one", "three", "constant", "zero", "negative", "tiny", "huge", "wild"],
)
def test_odd_series_are_no_trouble(find: Find, values: list[float]) -> None:
    with np.errstate(all="raise", under="ignore"):
        assert find(curve(np.array(values))) == []


@pytest.mark.parametrize("every", [1, 10])
def test_a_loss_that_never_fell_and_rises_from_the_start_does_not_diverge(every: int) -> None:
    """As that of a generator while its discriminator learns."""
    random = np.random.default_rng(3)
    values = 1.4 - 0.6 * np.exp(-np.arange(4000) / 300) + random.normal(0, 0.05, 4000)
    assert rises(curve(values, every)) == []
    values[2500:] *= 2
    (found,) = rises(curve(values, every))
    assert abs(found.since - 2500) <= 60


@pytest.mark.parametrize("every", [1, 10])
def test_a_jump_that_is_learned_again_is_no_divergence_though_the_new_task_is_harder(every: int) -> None:
    step = np.arange(3500)
    values = 1 + 0.75 * np.exp(-(step % 700) / 150) + 0.15 * (step // 700)
    values *= 1 + np.random.default_rng(4).normal(0, 0.03, 3500)
    assert [found for found in rises(curve(values, every)) if found.until is None] == []


@pytest.mark.parametrize("every", [1, 10])
def test_a_jump_that_is_learned_again_at_once_is_never_named(every: int) -> None:
    step = np.arange(3500)
    values = 1 + 0.75 * np.exp(-(step % 700) / 70)
    values *= 1 + np.random.default_rng(4).normal(0, 0.03, 3500)
    assert rises(curve(values, every)) == []


@pytest.mark.parametrize(("rise", "steps"), [(0.12, 500), (0.2, 1000), (0.3, 2000), (0.6, 4000)])
def test_a_slow_rise_is_named_within_200_steps_of_what_counts(rise: float, steps: int) -> None:
    """What counts is a tenth above the best."""
    step = np.arange(1500 + steps + 500)
    for seed in range(4):
        values = 2 + 3 * (1 + np.minimum(step, 1500) / 20) ** -0.5
        values *= 1 + rise * np.clip((step - 1500) / steps, 0, 1)
        values *= np.exp(np.random.default_rng(seed).normal(0, 0.03, len(step)))
        (found,) = rises(curve(values))
        assert found.until is None and abs(found.since - 1500) <= 0.05 / rise * steps
        assert found.named_at <= 1500 + 0.1 / rise * steps + 200, seed


def test_a_rise_of_a_fifth_is_named_within_200_steps() -> None:
    random = np.random.default_rng(5)
    values = 2 + 3 * (1 + np.arange(3000) / 20) ** -0.5
    values[1800:] *= 1 + 0.2 * np.minimum(np.arange(1200) / 150, 1)
    (found,) = rises(curve(values * (1 + random.normal(0, 0.03, 3000))))
    assert abs(found.since - 1800) <= 60 and found.named_at <= 2000


def test_a_spike_in_a_loss_far_below_its_start_is_found() -> None:
    values = (0.001 + 0.05 * (1 + np.arange(3000) / 20) ** -0.7) * np.exp(
        np.random.default_rng(6).normal(0, 0.05, 3000)
    )
    assert spikes(curve(values)) == []
    values[2000:2003] *= 2.5
    (found,) = spikes(curve(values))
    assert found.since == 2000


@pytest.mark.parametrize("every", [1, 10])
def test_a_rise_soon_after_a_steep_fall_is_named_in_time(every: int) -> None:
    """How steeply it fell is not how far it goes up by chance."""
    step = np.arange(2500)
    for seed in range(5):
        values = 1 + 3 / (1 + np.exp((step - 600) / 40)) + np.random.default_rng(seed).normal(0, 0.01, 2500)
        assert rises(curve(values, every)) == []
        values[1000:] *= 1 + 0.3 * np.minimum((step[1000:] - 1000) / 50, 1)
        (found,) = rises(curve(values, every))
        assert abs(found.since - 1000) <= 60 and found.named_at <= 1200 and found.until is None


@pytest.mark.parametrize("every", [1, 10])
def test_a_rise_of_which_most_came_back_is_over(every: int) -> None:
    step = np.arange(2500)
    values = 1 + 3 * np.exp(-step / 100) + np.random.default_rng(1).normal(0, 0.01, 2500)
    values[1000:] += 0.15 + 0.9 * np.exp(-np.maximum(step[1000:] - 1150, 0) / 100)
    (found,) = rises(curve(values, every))
    assert found.until is not None and 1200 <= found.until <= 1500


@pytest.mark.parametrize("ramp", [200, 260])
@pytest.mark.parametrize("at", [450, 600])
def test_a_rise_that_takes_its_time_does_not_set_its_own_bar(at: int, ramp: int) -> None:
    step = np.arange(1600)
    for seed in range(5):
        values = 0.06 + 0.2 / (1 + np.exp((step - 200) / 25)) + 0.04 * np.exp(-np.minimum(step, at) / 400)
        values[at:] *= 1 + 0.16 * np.clip((step[at:] - at) / ramp, 0, 1)
        values *= np.exp(np.random.default_rng(seed).normal(0, 0.015, 1600))
        (found,) = rises(curve(values))
        assert abs(found.since - at) <= 80 and found.named_at <= at + 320 and found.until is None


def test_a_rise_is_found_where_few_lines_were_logged_before_it() -> None:
    step = np.arange(2700)
    for seed in range(5):
        values = 1.7 + 3 * np.exp(-step / 200) + 0.7 * np.clip((step - 1800) / 100, 0, 1)
        values *= np.exp(np.random.default_rng(seed).normal(0, 0.007, 2700))
        assert rises(curve(values[:1800], 50)) == []
        (found,) = rises(curve(values, 50))
        assert abs(found.since - 1800) <= 120 and found.until is None


@pytest.mark.parametrize("every", [1, 10])
def test_absurd_values_are_spikes_however_few_values_there_were_and_however_often_they_come(every: int) -> None:
    for seed in range(5):
        values = 0.4 * np.exp(np.random.default_rng(seed).normal(0, 0.4, 2000))
        assert spikes(curve(values, every)) == []
        values[390::200] = 20
        assert [found.since for found in spikes(curve(values, every))] == list(range(390, 2000, 200))
