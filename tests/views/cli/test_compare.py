"""`trainvitals compare`: differences, the best, and a verdict with its confidence."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeRun = Callable[..., Path]


def rows(level: float, seed: int, steps: int = 500) -> list[dict[str, Any]]:
    noise = random.Random(seed)
    return [{"step": step, "loss": level + noise.gauss(0, 0.05), "score": level} for step in range(steps)]


@pytest.fixture
def two_runs(make_run: MakeRun) -> None:
    make_run("good", rows=rows(1.0, 1), config={"lr": 0.1, "model": {"layers": 2}})
    make_run("bad", rows=rows(1.2, 2), config={"lr": 0.2, "model": {"layers": 2}, "new": True})


@pytest.mark.usefixtures("two_runs")
def test_a_worse_loss_is_told_with_confidence_and_the_best_is_marked(machine: Any) -> None:
    lines = machine.run("compare", "good", "bad").stdout.splitlines()
    verdict = next(line for line in lines if line.startswith("worse"))
    assert "loss" in verdict and "> 99.99 %" in verdict and "+19.7 %" in verdict
    (metric,) = [line for line in lines if line.startswith("loss")]
    assert metric.index("*") < metric.index("1.", metric.index("*")), "the star is with the first run"


def test_a_run_that_diverged_has_not_the_best_loss(machine: Any, make_run: MakeRun) -> None:
    make_run("steady", rows=rows(1.0, 1))
    make_run("diverged", rows=[*rows(0.5, 2)[:-1], {"step": 499, "loss": "NaN", "score": 0.5}])
    found = json.loads(machine.run("compare", "steady", "diverged", "--json").stdout)
    (loss,) = [row for row in found["metrics"] if row["name"] == "loss"]
    assert loss["values"][1]["low"] < loss["values"][0]["low"] and loss["best"] == 0
    (line,) = [line for line in machine.run("compare", "steady", "diverged").stdout.splitlines() if "NaN (best" in line]
    assert line.index("*") < line.index("NaN")


@pytest.mark.usefixtures("two_runs")
def test_only_what_differs_in_the_configuration_is_shown(machine: Any) -> None:
    table = machine.run("compare", "good", "bad").stdout.partition("configuration differences")[2]
    assert [line.split() for line in table.splitlines()[1:]] == [["lr", "0.1", "0.2"], ["new", "-", "True"]]


@pytest.mark.usefixtures("two_runs")
def test_a_regression_can_fail_a_pipeline(machine: Any) -> None:
    assert machine.run("compare", "good", "bad", "--fail-on-regression").returncode == 3
    assert machine.run("compare", "good", "bad").returncode == 0


@pytest.mark.usefixtures("two_runs")
def test_a_regression_below_the_limit_passes(machine: Any) -> None:
    done = machine.run("compare", "good", "bad", "--fail-on-regression", "5")
    assert done.returncode == 3 and "regression: loss of bad: +19.7 %" in done.stderr
    assert machine.run("compare", "good", "bad", "--fail-on-regression", "25%").returncode == 0
    assert machine.run("compare", "--fail-on-regression", "good", "bad").returncode == 3, "a word there is a run"
    refused = machine.run("compare", "good", "bad", "--fail-on-regression=-5")
    assert refused.returncode == 2 and "0 or more" in refused.stderr


def test_seeds_of_one_configuration_are_one_side(machine: Any, make_run: MakeRun) -> None:
    for seed, (base, candidate) in enumerate([(1.0, 0.6), (1.1, 0.55), (0.9, 0.65)]):
        make_run(f"base{seed}", rows=rows(base, seed), config={"lr": 0.1, "optimizer": {"seed": seed}})
        make_run(f"new{seed}", rows=rows(candidate, 9 + seed), config={"lr": 0.2, "optimizer": {"seed": seed}})
    names = [f"{kind}{seed}" for kind in ("base", "new") for seed in range(3)]
    found = json.loads(machine.run("compare", *names, "--json").stdout)
    assert found["seeds"] == [[0, 1, 2], [3, 4, 5]]
    (verdict,) = [item for item in found["verdicts"] if item["metric"] == "loss"]
    assert (verdict["run"], verdict["word"]) == (3, "better") and verdict["reason"].startswith("3 vs. 3 seeds")
    lines = machine.run("compare", *names).stdout.splitlines()
    assert any(line.startswith("new0") and line.endswith("3 seeds") for line in lines)
    assert any(line.startswith("new1") and line.endswith("seed of new0") for line in lines)


def test_many_runs_are_one_matrix(machine: Any, make_run: MakeRun) -> None:
    levels = {"base": 1.0, "same": 1.0, "good": 0.5, "bad": 1.5, "short": 3.0}
    for number, (name, level) in enumerate(levels.items()):
        make_run(name, rows=rows(level, number)[: 2 if name == "short" else None], config={"lr": number})
    make_run("nan", rows=[*rows(1.0, 9)[:-1], {"step": 499, "loss": "NaN"}])
    done = machine.run("compare", *levels, "nan")
    _, matrix, *_ = done.stdout.split("\n\n")
    cells = {line.split()[0]: line.split() for line in matrix.splitlines()}
    assert set(cells) >= {"run", *levels, "nan"}
    assert cells["run"][1] == "loss"
    assert cells["good"][3:6] == ["%", "better", "*"], cells["good"]
    assert cells["bad"][4] == "worse" and cells["nan"][1:3] == ["NaN", "worse"]
    assert "(baseline" in cells["short"], "over the two steps that both have"
    assert "change against base over the last 20 % of the common steps" in matrix
    assert "loss of nan: NaN or infinite" in matrix and "too few to know the noise" in matrix
    assert not any(line.startswith("verdict") for line in done.stdout.splitlines())


def test_the_same_again_is_no_regression(machine: Any, make_run: MakeRun) -> None:
    make_run("one", rows=rows(1.0, 1))
    make_run("two", rows=rows(1.0, 2))
    done = machine.run("compare", "one", "two", "--fail-on-regression")
    assert done.returncode == 0, done.stdout
    assert "the configurations are identical" in done.stdout


@pytest.mark.usefixtures("two_runs")
def test_json_has_the_verdicts(machine: Any) -> None:
    found = json.loads(machine.run("compare", "good", "bad", "--json").stdout)
    (verdict,) = [item for item in found["verdicts"] if item["metric"] == "loss"]
    assert verdict["word"] == "worse" and verdict["change"] == pytest.approx(0.2, abs=0.03)


def test_three_runs_and_one_that_never_logged(machine: Any, make_run: MakeRun) -> None:
    make_run("a", rows=rows(1.0, 1))
    make_run("b", rows=[])
    make_run("c\x1b[31m", rows=rows(0.5, 3), simulated=True)
    done = machine.run("compare", "a", "b", "latest")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "simulated GPUs" in done.stdout
    assert "better" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"), [((), "at least two"), (("good",), "at least two"), (("good", "good"), "given twice")]
)
@pytest.mark.usefixtures("two_runs")
def test_one_run_is_not_a_comparison(machine: Any, words: tuple[str, ...], complaint: str) -> None:
    done = machine.run("compare", *words)
    assert done.returncode == 2 and complaint in done.stderr


def test_a_name_that_several_runs_have_is_told_with_how_to_compare_them(machine: Any, make_run: MakeRun) -> None:
    runs = [make_run("two words", rows=rows(1.0, seed=number, steps=20)).name for number in range(3)]
    done = machine.run("compare", "two words")
    assert done.returncode == 2 and "3 runs are called 'two words': " in done.stderr
    assert all(run in done.stderr for run in runs)
    (search,) = shlex.split(done.stderr.split("trainvitals compare ")[1])
    found = json.loads(machine.run("compare", search, "--json").stdout)
    assert len(found["runs"]) == 3


def test_what_else_differs_is_named_and_shown_with_config(machine: Any, make_run: MakeRun) -> None:
    make_run("a", rows=rows(1.0, 1), config={"lr": 1}, packages={"torch": "2.8"}, git={"commit": "a" * 40})
    make_run("b", rows=rows(1.0, 1), config={"lr": 2}, packages={"torch": "2.9"}, git={"commit": "b" * 40})
    text = machine.run("compare", "a", "b").stdout
    assert "also different: code, package" in text and "2.9" not in text
    lines = [line.split() for line in machine.run("compare", "a", "b", "--config").stdout.splitlines()]
    assert ["lr", "1", "2"] in lines and ["torch", "2.8", "2.9"] in lines and ["commit", "a" * 40, "b" * 40] in lines
    assert not any(line[:1] == ["loss"] for line in lines)
    described = json.loads(machine.run("compare", "a", "b", "--json").stdout)["others"]
    assert [group["title"] for group in described][:2] == ["code", "package"]


def test_runs_are_also_found_by_a_search(machine: Any, make_run: MakeRun) -> None:
    for number, rate in enumerate((0.001, 0.02, 0.03)):
        make_run(f"rate-{number}", rows=rows(1.0, seed=number, steps=20), config={"lr": rate}, tags=["sweep"])

    def compared(*words: str) -> list[str]:
        return [row["name"] for row in json.loads(machine.run("compare", *words, "--json").stdout)["runs"]]

    assert compared("tag:sweep config.lr>0.01") == ["rate-1", "rate-2"]
    assert compared("rate-0", "lr>0.01") == ["rate-0", "rate-1", "rate-2"]
    assert compared("rate-2", "tag:sweep") == ["rate-2", "rate-0", "rate-1"]


@pytest.mark.parametrize(
    ("search", "complaint"),
    [
        ("lr>50", "no run matches 'lr>50'"),
        ("lrr>5", "no run has 'lrr', did you mean 'lr'?"),
        ("lr>x", "'x' in 'lr>x' is not a number"),
        ("tag:many", "matches 21 runs, cannot compare more than 20"),
        ("unknown", "no run 'unknown'"),
        ("lr=0", "need at least two runs"),
    ],
)
def test_a_search_that_finds_nothing_or_too_much_is_refused(
    machine: Any, make_run: MakeRun, search: str, complaint: str
) -> None:
    for number in range(21):
        make_run(f"run-{number:02d}", rows=rows(1.0, seed=number, steps=2), config={"lr": number}, tags=["many"])
    done = machine.run("compare", search)
    assert done.returncode and complaint in done.stderr
