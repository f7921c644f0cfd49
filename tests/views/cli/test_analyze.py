"""`trainvitals analyze`: the statistics of a run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeRun = Callable[..., Path]


def rows(seed: int, level: float = 1.0, slow_from: int = 10_000) -> list[dict[str, Any]]:
    noise = random.Random(seed)
    return [
        {
            "step": step,
            "loss": level + 2.0 - step / 500 + noise.gauss(0, 0.05),
            "batch_time": (0.13 if step >= slow_from else 0.1) * (1 + noise.gauss(0, 0.01)),
        }
        for step in range(1000)
    ]


@pytest.fixture
def runs(make_run: MakeRun) -> None:
    for number in range(3):
        make_run(f"usual{number}", rows=rows(number))
    make_run("slow", rows=rows(9, level=1.5, slow_from=600), config={"total_steps": 2000})


@pytest.mark.usefixtures("runs")
def test_trends_changes_and_a_forecast_as_json(machine: Any) -> None:
    done = machine.run("analyze", "slow", "--json")
    assert done.returncode == 0, done.stderr
    found = {row["metric"]: row for row in json.loads(done.stdout)["metrics"]}
    assert found["loss"]["trend"]["direction"] == "falling"
    assert found["loss"]["trend"]["slope"] == pytest.approx(-1 / 500, rel=0.05)
    assert found["loss"]["forecast"]["x"] == 2000, "the end by the configuration"
    (change,) = found["batch_time"]["changes"]
    assert abs(change["x"] - 600) <= 10 and change["change"] == pytest.approx(0.3, abs=0.03)


@pytest.mark.usefixtures("runs")
def test_a_regression_against_earlier_runs_or_a_baseline(machine: Any) -> None:
    for words in (("--earlier", "3"), ("--baseline", "usual0", "--baseline", "usual1")):
        found = json.loads(machine.run("analyze", "slow", *words, "--json").stdout)
        verdicts = {row["metric"]: row["word"] for row in found["regressions"]}
        assert verdicts == {"loss": "worse", "batch_time": "worse"}, words
    text = machine.run("analyze", "slow", "--earlier", "3").stdout
    assert "3 vs. 1 seed" in text and "falling" in text and "change" in text


@pytest.mark.usefixtures("runs")
def test_only_the_metrics_that_were_asked_for(machine: Any) -> None:
    found = json.loads(machine.run("analyze", "slow", "--metric", "loss", "--json").stdout)
    assert [row["metric"] for row in found["metrics"]] == ["loss"]
    refused = machine.run("analyze", "slow", "--metric", "lss")
    assert refused.returncode == 2 and "no metric 'lss'" in refused.stderr


def test_a_run_without_values_and_one_without_earlier_runs(machine: Any, make_run: MakeRun) -> None:
    make_run("empty", rows=[])
    done = machine.run("analyze")
    assert done.returncode == 0 and "no values were logged" in done.stdout
    refused = machine.run("analyze", "--earlier", "3")
    assert refused.returncode == 2 and "no finished run" in refused.stderr
