"""Is `trainvitals bench` right? A model against itself, one that is 5 % slower, and torch's own timer beside ours.

python benchmarks/model_bench.py [--trials 100]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from table import Table, machine

from trainvitals.analysis.timings import compare_rounds, schedule
from trainvitals.bench.child import Child
from trainvitals.bench.inputs import parse_inputs
from trainvitals.bench.plan import Plan

ROUNDS = 12
SECONDS = 0.02
"""Of one round of one model."""


def twenty() -> Any:
    return _repeated(20)


def twenty_one() -> Any:
    """5 % more work than the other."""
    return _repeated(21)


def _repeated(count: int) -> Any:
    import torch

    class Repeated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(128, 128)

        def forward(self, x: Any) -> Any:
            for _ in range(count):
                x = self.layer(x)
            return x

    return Repeated()


def start(name: str, work: Path) -> Child:
    plan = Plan(f"model_bench:{name}", inputs=parse_inputs("8x128"))
    child = Child(plan, "fp32", 1, sorted(os.sched_getaffinity(0))[-1:], work)
    child.load()
    child.ask("warm_up", batch=8, seconds=2.0)
    return child


def count_verdicts(a: Child, b: Child, trials: int) -> dict[str, int]:
    """What is said of `b` against `a`, each trial with rounds of its own."""
    found = {"no difference": 0, "slower": 0, "faster": 0}
    for trial in range(trials):
        medians: tuple[list[float], list[float]] = ([], [])
        for number in range(ROUNDS):
            for at in schedule(2, number):
                answer = (a, b)[at].ask("round", batch=8, seconds=SECONDS, most=1000)
                medians[at].append(float(np.median(answer["ms"])))
        ratio = compare_rounds(*medians, seed=trial)
        assert ratio is not None
        found[ratio.word] += 1
    return found


def beside_torch() -> list[float]:
    """Our median and that of torch.utils.benchmark, in milliseconds, in one process and in turn."""
    import torch
    from torch.utils.benchmark import Timer

    from trainvitals.bench.worker import Worker

    torch.set_num_threads(1)
    worker = Worker()
    plan = Plan("model_bench:twenty", inputs=parse_inputs("8x128"))
    worker.load(plan.as_json() | {"inputs": [tuple(spec) for spec in plan.inputs]}, "fp32", 1, tempfile.gettempdir())
    worker.warm_up(8, 2.0)
    model, given = worker._model.module, worker._inputs(8)[0][0]
    ours, theirs = [], []
    for _ in range(10):
        ours.append(float(np.median(worker.round(8, 0.3, 100_000)["ms"])))
        with torch.inference_mode():
            timer = Timer("model(given)", globals={"model": model, "given": given})
            theirs.append(timer.blocked_autorange(min_run_time=0.3).median * 1000)
    return [float(np.median(ours)), float(np.median(theirs))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    trials = parser.parse_args().trials
    os.chdir(Path(__file__).parent)  # the children import this file
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with start("twenty", work) as a, start("twenty", work) as same, start("twenty_one", work) as slower:
            rows = [
                ["itself", *count_verdicts(a, same, trials).values()],
                ["5 % more work", *count_verdicts(a, slower, trials).values()],
            ]
    columns = ["a model against", "no difference seen", "slower", "faster"]
    goal = "at least 95 of 100 for itself; the other is found"
    print(Table(f"Verdicts of {trials} trials with {ROUNDS} rounds", columns, rows, goal).markdown())
    ours, theirs = beside_torch()
    titles = ["trainvitals bench, ms", "torch.utils.benchmark, ms", "ratio"]
    print(Table("The same call by two timers", titles, [[f"{ours:.4f}", f"{theirs:.4f}", ours / theirs]]).markdown())
    print(machine())


if __name__ == "__main__":
    main()
