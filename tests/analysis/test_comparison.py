"""Runs beside each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis.comparison import compare_configs, compare_metric, group_seeds
from trainvitals.analysis.metric_sense import better

RANDOM = np.random.default_rng(3)
STEPS = np.arange(1000.0)


def noisy(level: float, spread: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    return STEPS, level + RANDOM.normal(0, spread, len(STEPS))


def test_a_lower_loss_is_better_and_a_higher_one_worse() -> None:
    assert compare_metric("loss", noisy(1.0), noisy(0.9)).word == "better"
    found = compare_metric("val/loss", noisy(1.0), noisy(1.2))
    assert found.word == "worse" and found.change == pytest.approx(0.2, abs=0.02) and (found.confidence or 0) > 0.99


def test_a_higher_accuracy_is_better_and_an_unknown_metric_only_different() -> None:
    assert compare_metric("eval/accuracy", noisy(0.5), noisy(0.6)).word == "better"
    assert compare_metric("temperature", noisy(0.5), noisy(0.6)).word == "different"


def test_a_number_at_the_end_of_a_word_does_not_hide_it() -> None:
    assert [better(name) for name in ("rouge1", "eval/bleu4", "mAP50", "top5_acc", "f1")] == ["higher"] * 5
    assert [better(name) for name in ("loss_2", "val/err1")] == ["lower"] * 2
    assert [better(name) for name in ("layer3", "bitmap", "conv1/scores2d")] == [None] * 3


def test_a_share_near_one_is_weighed_by_the_errors_that_are_left() -> None:
    accuracy = compare_metric("val/accuracy", noisy(0.990, 0.001), noisy(0.996, 0.001))
    assert accuracy.word == "better" and accuracy.change == pytest.approx(0.006, abs=1e-3)
    assert compare_metric("val/accuracy", noisy(0.90, 0.0001), noisy(0.9005, 0.0001)).word == "same"
    assert compare_metric("throughput", noisy(0.990, 0.001), noisy(0.996, 0.001)).word == "same"
    assert compare_metric("top1_acc", noisy(97.0, 0.1), noisy(97.5, 0.1)).word == "same", "per cent, or anything else"


def test_noise_is_not_a_regression() -> None:
    words = [compare_metric("loss", noisy(1.0, 0.5), noisy(1.0, 0.5)).word for _ in range(200)]
    assert words.count("worse") + words.count("better") <= 8  # 1 in 100 is what was asked for


def test_a_run_that_went_nan_is_worse() -> None:
    x, y = noisy(1.0)
    broken = y.copy()
    broken[900:] = math.nan
    assert compare_metric("loss", (x, y), (x, broken)).word == "worse"


def test_a_run_that_is_finite_where_the_baseline_is_not_is_better() -> None:
    x, y = noisy(1.0)
    found = compare_metric("loss", (x, np.where(x > 900, math.nan, y)), (x, y))
    assert found.word == "better" and found.value == pytest.approx(1.0, abs=0.05)


def test_what_cannot_be_compared_is_uncertain() -> None:
    empty = np.empty(0), np.empty(0)
    assert compare_metric("loss", empty, noisy(1.0)).word == "uncertain"
    assert compare_metric("loss", noisy(1.0), (STEPS + 5000, np.ones(1000))).word == "uncertain"
    one, other = (np.array([90.0]), np.array([1.0])), (np.array([90.0]), np.array([0.9]))
    assert compare_metric("loss", one, other).word == "uncertain"


def evaluations(*values: float) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(1.0, len(values) + 1) * 100, np.array(values)


def test_a_few_evaluations_show_their_noise_around_the_trend() -> None:
    falling = evaluations(2.0, 1.7, 1.5, 1.3, 1.2)
    found = compare_metric("val/loss", falling, evaluations(1.5, 0.7, 0.4, 0.3, 0.24))
    assert found.word == "better" and found.change == pytest.approx(-0.8) and (found.confidence or 0) > 0.99
    assert found.reason == "last 20 % of the common steps, 1 vs. 1 value"
    jumping = evaluations(1.3, 0.9, 1.4, 0.8, 1.2)
    assert compare_metric("val/loss", jumping, evaluations(1.1, 1.3, 0.9, 1.2, 1.0)).word == "uncertain"


def test_single_values_far_apart_are_not_called_chance_though_no_noise_is_known() -> None:
    found = compare_metric("val/loss", evaluations(1.2), evaluations(0.24))
    assert (found.word, found.confidence) == ("better", None)
    assert found.reason.endswith("too few to know the noise, but far apart")


def test_evaluations_at_other_steps_are_compared_at_the_same_place() -> None:
    every, often = np.arange(0.0, 1001, 250), np.arange(0.0, 1001, 50)
    found = compare_metric("val/loss", (every, 3 - every / 500), (often, 3 - often / 500))
    assert found.word == "same", found


def test_a_trend_is_not_noise() -> None:
    falling = 1 - STEPS / 2000
    noise = RANDOM.normal(0, 0.02, (2, len(STEPS)))
    assert compare_metric("loss", (STEPS, falling + noise[0]), (STEPS, 0.9 * falling + noise[1])).word == "better"
    words = [
        compare_metric("loss", *((STEPS, falling + RANDOM.normal(0, 0.2, len(STEPS))) for _ in range(2))).word
        for _ in range(200)
    ]
    assert words.count("worse") + words.count("better") <= 8


def test_noise_with_a_long_memory_is_not_a_regression() -> None:
    def wander() -> np.ndarray:
        steps = RANDOM.normal(0, 0.1, 3000)
        return 1 + np.convolve(steps, 0.98 ** np.arange(300), mode="full")[2000:3000]

    words = [compare_metric("loss", (STEPS, wander()), (STEPS, wander())).word for _ in range(100)]
    assert words.count("worse") + words.count("better") <= 8


def test_seeds_show_how_much_runs_differ_without_a_reason() -> None:
    spread = [noisy(level) for level in (1.0, 1.2, 0.9)]
    found = compare_metric("loss", spread, [noisy(level) for level in (0.95, 1.1, 0.85)])
    assert found.word == "uncertain" and found.reason.startswith("3 vs. 3 seeds")
    assert compare_metric("loss", spread, noisy(0.97)).word == "uncertain", "one that is alone spreads as the others"
    assert compare_metric("loss", spread, [noisy(level) for level in (0.35, 0.3, 0.4)]).word == "better"


def test_runs_with_another_seed_and_nothing_else_belong_together() -> None:
    configs = [{"lr": 1, "seed": 0}, {"lr": 2, "seed": 0}, {"lr": 1, "seed": 1}, {"lr": 1}, {"lr": 1, "seed": 1}]
    assert group_seeds(configs) == [[0, 2], [1], [3], [4]]
    assert group_seeds([{"seed": 0}, {"seed": 1}]) == [[0], [1]], "with nothing else to compare them with"


@pytest.mark.parametrize("value", [0.04, 0.1, 1 / 3, 1e-7, 1e7])
def test_constant_values_differ_for_certain_or_are_the_same(value: float) -> None:
    slow, fast, again = (
        (np.arange(count), np.full(count, level)) for count, level in ((600, value), (600, 0.75 * value), (500, value))
    )
    found = compare_metric("batch_time", slow, fast)
    assert (found.word, found.confidence) == ("better", 1.0)
    assert compare_metric("batch_time", slow, slow).word == "same"
    assert compare_metric("batch_time", slow, again).word == "same", "another length is rounded in another way"


def test_equal_series_are_the_same_however_few_values_they_have() -> None:
    few = np.arange(5.0)
    assert compare_metric("accuracy", (few, few), (few, few)).word == "same"
    rising = STEPS, STEPS / 1000
    assert compare_metric("accuracy", rising, rising).word == "same"


def test_only_the_steps_both_have_are_compared() -> None:
    x, y = noisy(1.0)
    longer = np.arange(5000.0), np.concatenate([y, np.full(4000, 0.1)])
    verdict = compare_metric("loss", (x, y), longer)
    assert verdict.word == "same"
    assert "differ by less than 1 %" in verdict.reason


def test_configurations_differ_where_a_key_differs_or_is_missing() -> None:
    found = compare_configs([{"lr": 1, "opt": {"name": "adam", "eps": 1}}, {"lr": 2, "opt": {"name": "adam"}}])
    assert [(item.key, item.values) for item in found] == [("lr", (1, 2)), ("opt.eps", (1, None))]


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("loss", "lower"),
        ("val/perplexity", "lower"),
        ("batch_time", "lower"),
        ("acc", "higher"),
        ("throughput_samples_per_sec", "higher"),
        ("learning_rate", None),
        ("glossary", None),
    ],
)
def test_a_name_tells_which_way_is_better(name: str, direction: str | None) -> None:
    assert better(name) == direction


def test_a_few_values_with_a_memory_are_not_sure() -> None:
    """Of 40 pairs of short curves that differ by chance alone, hardly one is told apart; a fifth less mostly is."""
    random = np.random.default_rng(8)
    steps = np.arange(30.0)

    def short(memory: float) -> np.ndarray:
        noise = np.zeros(30)
        for place in range(1, 30):
            noise[place] = memory * noise[place - 1] + random.normal(0, 0.05 * np.sqrt(1 - memory**2))
        return np.asarray((2 + 2 * np.exp(-steps / 8)) * (1 + noise))

    pairs = [(short(0.9), short(0.9)) for _ in range(40)]
    sure = [compare_metric("loss", (steps, a), (steps, b)).word in ("better", "worse") for a, b in pairs]
    assert sum(sure) <= 4
    plain = [(short(0.0), short(0.0)) for _ in range(40)]
    assert sum(compare_metric("loss", (steps, a), (steps, 0.8 * b)).word == "better" for a, b in plain) >= 28
