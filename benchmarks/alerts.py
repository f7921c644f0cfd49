"""What judging rules costs: `python benchmarks/alerts.py [--quick]`. How soon messages come: alert_delays.py; how often
they are wrong: alert_quality.py.

CPU seconds of this process, best of three, so that a busy machine blurs little. The agent's are those of a real one,
with the built-in rules and without, in turn.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from table import Table

from trainvitals import catalog
from trainvitals.alerts import builtin, windows
from trainvitals.alerts.engine import Engine, Point
from trainvitals.alerts.language import Window
from trainvitals.alerts.rules import parse_rules
from trainvitals.conditions import Conditions

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "alerts")]

LENGTHS = (100, 1_000, 10_000)
START = 1_800_000_000.0


def best(work: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def bench_windows() -> Table:
    rows = []
    for name in ("mean", "std", "min", "median", "quantile", "slope", "change"):
        row: list[object] = [f"`{name}`"]
        for length in LENGTHS:
            memory = windows.create(name, Window(steps=length), 0.9)
            ask = windows.question(name, memory, 0.9)

            def work(
                first: int, last: int, memory: windows.Memory = memory, ask: Callable[[float], object] = ask
            ) -> None:
                for index in range(first, last):
                    memory.add((index * 7919 % 1009) / 7, index, index, index)
                    ask(index)

            work(0, 2 * length)
            row.append(best(lambda work=work, length=length: work(2 * length, 2 * length + 20_000)) / 20_000 * 1e6)  # type: ignore[misc]
        rows.append(row)
    return Table(
        "A function of the rule language: one new point and one question, µs",
        ["function", *(f"{length:,} points" for length in LENGTHS)],
        rows,
        goal="does not grow with the window",
    )


def measure_many(seconds: int) -> list[list[object]]:
    """50 rules with a median each, 64 GPUs x 20 metrics at 10 Hz, a trainer at 1,000 steps/s."""
    names = [row.name for row in catalog.GPU if row.kind != "text"][:20]
    rules = [
        {"name": f"gpu{n}", "when": f"gpu[*].{names[n % 20]} > 2 * median(gpu[*].{names[n % 20]}, {50 + n})"}
        for n in range(25)
    ] + [{"name": f"loss{n}", "when": f"loss{n % 5} > 2 * median(loss{n % 5}, {100 + n})"} for n in range(25)]
    engine = Engine(parse_rules(rules, {}))
    gpu_rows = [
        Point("gpu", {"gpu_index": gpu}, {name: float(50 + gpu + k) for k, name in enumerate(names)}, START)
        for gpu in range(64)
    ]
    step_row = {f"loss{n}": 1.0 for n in range(5)}

    def gpus() -> None:
        for tick in range(10 * seconds):
            for row in gpu_rows:
                engine.feed(row._replace(time=START + tick / 10))

    def steps() -> None:
        for step in range(1000 * seconds):
            engine.feed(Point("training", {"rank": 0}, step_row, START + step / 1000, step))

    gpus(), steps()
    cost_gpu, cost_step = best(gpus) / seconds, best(steps) / seconds
    judged = 640 * 25 + 1000 * 25
    return [
        ["50 rules: 64 GPUs x 20 metrics at 10 Hz", f"{cost_gpu / 12_800 * 1e6:.1f} µs", f"{100 * cost_gpu:.1f} %"],
        ["50 rules: 5 metrics, 1,000 steps/s", f"{cost_step / 5_000 * 1e6:.1f} µs", f"{100 * cost_step:.1f} %"],
        ["the two together", f"{judged / (cost_gpu + cost_step):,.0f} rules judged per second of CPU", ""],
    ]


def measure_defaults() -> list[list[object]]:
    import curves

    curves.KEPT["bench"] = curves.synthetic(1, "cosine", 0.06, "power")[:2000]
    points = list(curves.play(1, "bench"))
    rules = builtin.make_rules(Conditions())
    steps = [point for point in points if point.table == "training"]
    wide = []
    for point in points:
        if point.table == "gpu" and point.labels["gpu_index"] == 0:
            wide += [point._replace(labels={"gpu_index": n, "gpu_uuid": f"GPU-{n}"}) for n in range(8)]
        elif point.table not in ("gpu", "training"):
            wide.append(point)
    seconds = points[-1].time - points[0].time

    def host() -> None:
        engine = Engine(rules, context={"host": "h"}, enrich=builtin.enrich)
        last = 0
        for point in wide:
            engine.feed(point)
            if int(point.time) != last:
                last = int(point.time)
                engine.tick(point.time)

    def training() -> None:
        engine = Engine(rules, context={"host": "h"}, enrich=builtin.enrich)
        for point in steps:
            engine.feed(point)

    cost_host, cost_step = best(host) / seconds, best(training) / len(steps)
    values = sum(len(point.values) for point in wide) / seconds
    return [
        [
            "the default rules: 8 GPUs, host, process at 1 Hz",
            f"{cost_host / values * 1e6:.1f} µs",
            f"{100 * cost_host:.3f} %",
        ],
        [
            "the same: 20 lines of 8 metrics a second, the most that they look at of a rank",
            f"{cost_step / 8 * 1e6:.1f} µs",
            f"{2000 * cost_step:.2f} %",
        ],
    ]


TRAINING = """
import time, trainvitals
with trainvitals.init(project="p", summary=False, capture_git=False) as run:
    print(run.folder, flush=True)
    step = 0
    while True:
        time.sleep(0.05)
        run.log({"loss": 1 / (step + 1), "learning_rate": 1e-3, "gradient_norm": 1.0}, step=step)
        step += 1
"""


def measure_agent(seconds: float, times: int) -> list[list[object]]:
    """A real agent beside a training of 20 steps a second and eight fake GPUs, with the built-in rules and without."""
    from fake_nvml import FakeNvml, build

    found: dict[str, list[float]] = {"": [], "all": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        fake = FakeNvml(build(Path(place) / "built"), Path(place) / "fake")
        fake.script("count = 8\ngpu.*.temp_gpu = 60")
        for turn in range(times):
            for disabled in found:
                folder = Path(place) / f"{turn}{disabled}"
                env = {key: value for key, value in fake.env().items() if not key.startswith("TRAINVITALS_")}
                env |= {"TRAINVITALS_RUNTIME_DIR": f"{folder}/runtime", "TRAINVITALS_DIR": f"{folder}/runs"}
                env |= {"TRAINVITALS_AGENT": "0", "TRAINVITALS_ALERTS_DISABLE": disabled}
                agent = psutil.Popen([sys.executable, "-P", "-m", "trainvitals.agent"], env=env)
                training = subprocess.Popen([sys.executable, "-c", TRAINING], env=env, stdout=subprocess.DEVNULL)
                time.sleep(5)
                before = sum(agent.cpu_times()[:2])
                began = time.monotonic()
                time.sleep(seconds)
                found[disabled].append(100 * (sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - began))
                training.kill()
                training.wait()
                agent.terminate()
                agent.wait(30)
    on, off = statistics.median(found[""]), statistics.median(found["all"])
    return [
        ["a real agent, 1 Hz, 8 GPUs, 20 steps/s, all default rules", "", f"{on:.2f} %"],
        ["the same without rules", "", f"{off:.2f} %"],
    ]


def bench_cost(quick: bool = False) -> Table:
    rows = measure_many(3 if quick else 10) + measure_defaults()
    if os.name == "posix":
        rows += measure_agent(5 if quick else 20, 1 if quick else 3)
    return Table(
        "Judging rules",
        ["what", "per new point", "of one core"],
        rows,
        goal="default rules at 1 Hz with 8 GPUs under 0.5 % of a core",
    )


if __name__ == "__main__":
    print(bench_windows().markdown())
    print(bench_cost("--quick" in sys.argv).markdown())
