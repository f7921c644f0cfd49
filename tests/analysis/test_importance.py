"""Which parameter of a sweep matters, on made sweeps in which it is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from trainvitals.analysis.importance import find_importances, rank


def make(runs: int, seed: int = 0) -> list[dict[str, Any]]:
    made = np.random.default_rng(seed)
    return [
        {
            "lr": float(10 ** made.uniform(-4, 0)),
            "optimizer": ("adam", "sgd", "lion")[int(made.integers(3))],
            "width": int(2 ** made.integers(5, 9)),
            "noise": float(made.uniform()),
            "batch": 32,
        }
        for _ in range(runs)
    ]


def shares(configs: list[dict[str, Any]], metric: list[Any]) -> dict[str, float | None]:
    return {item.key: item.share for item in find_importances(configs, metric)[0]}


def test_a_known_division_of_the_variance_is_found() -> None:
    # Independent terms with variances 3, 1 and 1: 60 %, 20 % and 20 % of the whole.
    made = np.random.default_rng(1)
    configs = [
        {"a": float(a), "b": str(b)} for a, b in zip(made.uniform(size=3000), made.integers(4, size=3000), strict=True)
    ]
    means = {"0": -math.sqrt(2), "1": 0.0, "2": 0.0, "3": math.sqrt(2)}
    metric = [math.sqrt(36) * (c["a"] - 0.5) + means[c["b"]] + float(made.normal()) for c in configs]
    found = shares(configs, metric)
    assert found["a"] == pytest.approx(0.6, abs=0.06) and found["b"] == pytest.approx(0.2, abs=0.05)


def test_a_best_value_in_the_middle_is_important_without_a_direction() -> None:
    configs = make(300)
    found = {item.key: item for item in find_importances(configs, [(math.log10(c["lr"]) + 2) ** 2 for c in configs])[0]}
    assert found["lr"].share is not None and found["lr"].share > 0.8
    assert abs(found["lr"].direction or 0.0) < 0.2 and found["optimizer"].direction is None
    rising = {item.key: item for item in find_importances(configs, [math.log(c["lr"]) for c in configs])[0]}
    assert rising["lr"].direction == pytest.approx(1.0)


def test_what_has_no_effect_comes_out_near_zero_whatever_the_number_of_runs() -> None:
    for runs in (30, 100, 1000):
        found = []
        for seed in range(30):
            made = np.random.default_rng(1000 + seed)
            found += find_importances(make(runs, seed), list(made.normal(size=runs)))[0]
        assert np.mean([item.share for item in found]) < 1.5 / math.sqrt(runs) / 2
        covers = [item.low is not None and item.low < 0.02 for item in found]
        assert np.mean(covers) > 0.9, "the interval reaches 0"


def test_the_interval_has_the_true_share_as_often_as_it_says() -> None:
    hits = []
    for seed in range(120):
        made = np.random.default_rng(seed)
        group = made.integers(2, size=120)
        metric = group * 2.0 + made.normal(size=120)
        (item,), _ = find_importances([{"g": str(g)} for g in group], list(metric))
        hits.append((item.low, item.high))
    # Of a very large sample, the share that the others estimate.
    made = np.random.default_rng(9999)
    group = made.integers(2, size=200_000)
    (truth,), _ = find_importances(
        [{"g": str(g)} for g in group[:20_000]], list((group * 2.0 + made.normal(size=200_000))[:20_000])
    )
    assert truth.share is not None
    assert np.mean([low <= truth.share <= high for low, high in hits]) > 0.88  # type: ignore[operator]


def test_two_parameters_that_only_matter_together_are_named() -> None:
    made = np.random.default_rng(3)
    configs = [{"a": int(made.integers(2)), "b": int(made.integers(2)), "c": int(made.integers(2))} for _ in range(200)]
    metric = [float(c["a"] ^ c["b"]) + 0.1 * float(made.normal()) for c in configs]
    found, (pair,) = find_importances(configs, metric)
    assert {pair.first, pair.second} == {"a", "b"} and pair.share > 0.5
    assert all(item.share is not None and item.share < 0.1 for item in found)
    added = [float(c["a"]) + float(c["b"]) + 0.1 * float(made.normal()) for c in configs]
    assert find_importances(configs, added)[1] == []


def test_too_few_runs_and_too_many_values_are_said() -> None:
    few = find_importances(make(8), [float(at) for at in range(8)])[0]
    assert {item.reason for item in few} == {"not enough runs"} and all(item.share is None for item in few)
    named = find_importances([{"name": f"run{at}"} for at in range(40)], [float(at) for at in range(40)])[0]
    assert named[0].share is None and named[0].reason.startswith("too many different values")
    assert find_importances([], []) == ([], [])


def test_runs_that_diverged_are_left_out_and_an_outlier_does_not_decide() -> None:
    configs = make(100)
    metric: list[float | None] = [math.log(c["lr"]) for c in configs]
    metric[:3] = [math.nan, None, math.inf]
    found = find_importances(configs, metric)[0]
    assert found[0].key == "lr" and found[0].runs == 97 and (found[0].share or 0.0) > 0.9
    metric[5] = 1e12
    far = find_importances(configs, metric)[0][0].share
    metric[5] = 100.0
    assert far == find_importances(configs, metric)[0][0].share and (far or 0.0) > 0.8, (
        "how far off it is does not matter"
    )
    assert "batch" not in {item.key for item in found}, "the same in all runs"


def test_equal_values_share_their_rank() -> None:
    assert list(rank(np.array([5.0, 1.0, 5.0, 9.0]))) == [1.5, 0.0, 1.5, 3.0]
