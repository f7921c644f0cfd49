"""Is `trainvitals bench` right? A model against itself and one with 5 % more work, each trial a whole benchmark in new
processes; then a model that sleeps, one that holds memory, and torch's own timer beside ours.

python benchmarks/model_bench.py [--trials 100] [--library onnx|torch]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from table import Table, machine

from trainvitals.bench.inputs import parse_inputs
from trainvitals.bench.machine import read_load
from trainvitals.bench.measuring import measure
from trainvitals.bench.plan import PROCESSES, Plan
from trainvitals.bench.worker import Worker
from trainvitals.journal.documents.benchmark import MeasuredVariant

SECONDS = 2.0
"""Of each model in a trial: a fifth of what the command takes."""
WIDTH, BATCH = 128, 8
LAYERS = {"itself": 20, "5 % more work": 21}
WORDS = ("no difference seen", "slower", "faster", "too noisy to tell")
SLEEP, HELD_MB = 0.02, 64


# -- models, which the children import from this file


def twenty() -> Any:
    return _repeated(20)


def twenty_one() -> Any:
    return _repeated(21)


def _repeated(count: int) -> Any:
    import torch

    class Repeated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            for _ in range(count):
                x = self.layer(x)
            return x

    return Repeated()


def sleeper() -> Any:
    import torch

    class Sleeper(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            time.sleep(SLEEP)
            return x

    return Sleeper()


def hoarder() -> Any:
    return _holding(HELD_MB << 20)


def modest() -> Any:
    return _holding(4)


def _holding(size: int) -> Any:
    import torch

    class Hoarder(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.ones(size // 4).mean()

    return Hoarder()


def write_onnx(path: Path, layers: int) -> None:
    """The same without torch, whose import takes longer than a trial."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    names = [f"x{number}" for number in range(layers + 1)]
    weights = [
        numpy_helper.from_array(random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5, f"w{number}")
        for number in range(layers)
    ]
    nodes = [helper.make_node("MatMul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(layers)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, WIDTH]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "repeated", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(path))


# -- verdicts


def run_trials(library: str, trials: int, work: Path) -> Iterator[tuple[str, str, float]]:
    """What a model is compared with, the verdict, and its ratio: in turn, so that both meet the same machine."""
    targets = {"itself": "model_bench:twenty", "5 % more work": "model_bench:twenty_one"}
    common: dict[str, Any] = {"seconds": SECONDS, "inputs": parse_inputs(f"{BATCH}x{WIDTH}")}
    if library == "onnx":
        targets = {name: str(work / f"{layers}.onnx") for name, layers in LAYERS.items()}
        for name, layers in LAYERS.items():
            write_onnx(Path(targets[name]), layers)
        common = {"seconds": SECONDS, "variants": ("onnx",)}
    for number in range(trials):
        for name, target in targets.items():
            found = measure(Plan(target, against=targets["itself"], **common)).results[-1]
            word = next((word for word in WORDS if word in found.verdict), found.verdict)
            print(f"{number + 1}/{trials} {name}: {found.verdict}, load {read_load():.0f}", flush=True)
            yield name, word, found.ratio or float("nan")


def tabulate_trials(library: str, trials: int, work: Path) -> Table:
    done = list(run_trials(library, trials, work))
    rows = []
    for name in LAYERS:
        words = Counter(word for of, word, _ in done if of == name)
        ratios = [ratio for of, _, ratio in done if of == name]
        rows.append([name, *(words[word] for word in WORDS), round(statistics.median(ratios), 3)])
    return Table(
        f"Verdicts of {trials} trials, {library}, {PROCESSES} processes each",
        ["a model against", *WORDS, "median ratio"],
        rows,
        "faster or slower than itself in at most 5 of 100; 5 % more work is found",
    )


# -- figures whose truth is known


def measure_one(name: str) -> MeasuredVariant:
    plan = Plan(f"model_bench:{name}", inputs=parse_inputs(f"{BATCH}x{WIDTH}"), seconds=2.0, processes=1)
    return measure(plan).results[0]


def time_beside(rounds: int = 10) -> list[float]:
    """Medians of ours, of torch.utils.benchmark, and of a plain loop as hyperfine has one: single calls, in
    milliseconds of CPU time and in turn. (Torch's blocks of calls have means, which take in what disturbs some.)"""
    import torch
    from torch.utils.benchmark import Timer

    torch.set_num_threads(1)
    worker = Worker(time.thread_time_ns)
    plan = Plan("model_bench:twenty", inputs=parse_inputs(f"{BATCH}x{WIDTH}"))
    worker.load(plan.as_json() | {"inputs": [tuple(spec) for spec in plan.inputs]}, "fp32", 1, tempfile.gettempdir())
    worker.warm_up(BATCH, 2.0)
    model, given = worker._model.module, worker._inputs(BATCH)[0][0]
    found: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        found[0].append(float(np.median(worker.round(BATCH, 0.3, 100_000)["ms"])))
        with torch.inference_mode():
            timer = Timer("model(given)", globals={"model": model, "given": given}, timer=time.thread_time)
            deadline, calls = time.thread_time() + 0.3, []
            while time.thread_time() < deadline:
                calls.append(timer.timeit(1).median)
            found[1].append(float(np.median(calls)) * 1000)
            plain = []
            deadline = time.thread_time() + 0.3
            while time.thread_time() < deadline:
                begin = time.thread_time()
                model(given)
                plain.append(time.thread_time() - begin)
            found[2].append(float(np.median(plain)) * 1000)
    return [float(np.median(item)) for item in found]


def tabulate_known() -> Table:
    slept = measure_one("sleeper").latency.median or 0.0
    held = (measure_one("hoarder").memory.peak or 0.0) - (measure_one("modest").memory.peak or 0.0)
    rows = [
        ["a call that sleeps, ms", SLEEP * 1000, round(slept, 3), f"{slept / SLEEP / 1000 - 1:+.1%}"],
        ["a call that holds memory, MB", HELD_MB, round(held, 1), f"{held / HELD_MB - 1:+.1%}"],
    ]
    return Table("What is known", ["of", "truth", "measured", "apart"], rows, "within 2 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--library", choices=("onnx", "torch"), default="onnx")
    arguments = parser.parse_args()
    os.chdir(Path(__file__).parent)  # the children import this file
    with tempfile.TemporaryDirectory() as folder:
        if arguments.trials:
            print(tabulate_trials(arguments.library, arguments.trials, Path(folder)).markdown())
    print(tabulate_known().markdown())
    ours, theirs, plain = time_beside()
    titles = ["trainvitals bench, ms of CPU", "torch.utils.benchmark", "plain loop", "ours by torch's"]
    values = [f"{ours:.4f}", f"{theirs:.4f}", f"{plain:.4f}", round(ours / theirs, 3)]
    print(Table("The same call by three timers", titles, [values], "within 2 %").markdown())
    print(machine())


if __name__ == "__main__":
    main()
