"""Runs beside each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.analysis.comparison import compare_configs, compare_metric, effective_size
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


def test_a_share_near_one_is_weighed_by_the_errors_that_are_left() -> None:
    accuracy = compare_metric("val/accuracy", noisy(0.990, 0.001), noisy(0.996, 0.001))
    assert accuracy.word == "better" and accuracy.change == pytest.approx(0.006, abs=1e-3)
    assert compare_metric("val/accuracy", noisy(0.90, 0.0001), noisy(0.9005, 0.0001)).word == "same"
    assert compare_metric("throughput", noisy(0.990, 0.001), noisy(0.996, 0.001)).word == "same"
    assert compare_metric("top1_acc", noisy(97.0, 0.1), noisy(97.5, 0.1)).word == "same", "per cent, or anything else"


def test_noise_is_not_a_regression() -> None:
    words = [compare_metric("loss", noisy(1.0, 0.5), noisy(1.0, 0.5)).word for _ in range(200)]
    assert words.count("worse") + words.count("better") <= 8  # 1 in 100 is what was asked for


def test_values_that_follow_each_other_count_as_fewer() -> None:
    independent = RANDOM.normal(size=2000)
    walk = np.convolve(independent, np.ones(50) / 50, mode="valid")
    assert effective_size(independent) > 1000
    assert effective_size(walk) < 200


def test_a_run_that_went_nan_is_worse() -> None:
    x, y = noisy(1.0)
    broken = y.copy()
    broken[900:] = math.nan
    assert compare_metric("loss", (x, y), (x, broken)).word == "worse"


def test_what_cannot_be_compared_is_uncertain() -> None:
    empty = np.empty(0), np.empty(0)
    assert compare_metric("loss", empty, noisy(1.0)).word == "uncertain"
    assert compare_metric("loss", noisy(1.0), (STEPS + 5000, np.ones(1000))).word == "uncertain"
    few = np.arange(5.0)
    assert compare_metric("loss", (few, few), (few, few + 1)).word == "uncertain"


@pytest.mark.parametrize("value", [0.04, 0.1, 1 / 3, 1e-7, 1e7])
def test_constant_values_differ_for_certain_or_are_the_same(value: float) -> None:
    slow, fast, again = (
        (np.arange(count), np.full(count, level)) for count, level in ((600, value), (600, 0.75 * value), (500, value))
    )
    assert effective_size(slow[1]) == 600
    found = compare_metric("batch_time", slow, fast)
    assert (found.word, found.confidence) == ("better", 1.0)
    assert compare_metric("batch_time", slow, slow).word == "same"
    assert compare_metric("batch_time", slow, again).word == "same", "another length is rounded in another way"


def test_equal_series_are_the_same_however_few_values_they_have() -> None:
    few = np.arange(5.0)
    assert compare_metric("accuracy", (few, few), (few, few)).word == "same"
    rising = STEPS, STEPS / 1000
    assert compare_metric("accuracy", rising, rising).word == "same"


def test_the_reason_says_how_few_independent_values_there_are() -> None:
    falling = STEPS, 1 - STEPS / 2000
    found = compare_metric("loss", falling, (STEPS, falling[1] * 0.9))
    assert found.word == "uncertain"
    assert "200 vs. 200 values" in found.reason and "2.5 and 2.5 independent values" in found.reason
    few = np.arange(3.0)
    assert "too few" in compare_metric("loss", (few, few), (few, few + 1)).reason


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
