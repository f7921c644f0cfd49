"""A node with many ranks: what the agent costs with 8 GPUs and 24 processes, and log() of 300 metrics with 16 ranks.

    python benchmarks/many_ranks.py [--seconds 20]

The ranks of the second table log at the same time, each once in 50 ms; what they take from each other counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from agent_cost import build, watch
from table import Table

RANK = """
import json, os, sys, time, trainvitals
metrics, place = int(sys.argv[1]), sys.argv[2]
values = {f"metric_{number}": 0.1234567 * number for number in range(metrics)}
times, step = [], 0
with trainvitals.init(capture_git=False, summary=False) as run:
    while not os.path.exists(f"{place}/stop"):
        time.sleep(0.05)
        begin = time.perf_counter_ns()
        run.log(values, step=step)
        if os.path.exists(f"{place}/all"):
            times.append(time.perf_counter_ns() - begin)
        step += 1
print(json.dumps(times))
"""


@contextmanager
def ranks(count: int, env: dict[str, str], metrics: int, times: list[float]) -> Iterator[Path]:
    """So many ranks that log, for as long as this lasts; `times` are what each call took while all of them did, in
    microseconds. The path is their runtime folder."""
    with tempfile.TemporaryDirectory() as place:
        sizes = {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_PORT": str(count),
            "MASTER_ADDR": "localhost",
        }
        mine = {**env, **sizes, "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime", "TRAINVITALS_DIR": f"{place}/runs"}
        command = [sys.executable, "-c", RANK, str(metrics), place]
        processes = [
            subprocess.Popen(
                command, env={**mine, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(count)
        ]
        try:
            while len(list(Path(place, "runs").glob("*/*/training_metrics_*"))) < count:
                time.sleep(0.1)
                assert all(process.poll() is None for process in processes)
            Path(place, "all").touch()
            yield Path(place, "runtime")
        finally:
            Path(place, "stop").touch()
            outputs = [process.communicate()[0] for process in processes]
        times += [taken / 1000 for output in outputs for taken in json.loads(output)]


def measure_agent(env: dict[str, str], count: int, seconds: float) -> tuple[float, float]:
    """(per cent of a core, MB resident) of the agent beside so many ranks that log 3 metrics, 20 times a second."""
    with ranks(count, env, 3, []) as runtime:
        while not (runtime / "agent.json").exists():
            time.sleep(0.1)
        agent = psutil.Process(json.loads((runtime / "agent.json").read_text())["pid"])
        figures = watch(agent, seconds)
    agent.terminate()
    psutil.wait_procs([agent], timeout=10)
    return figures


def measure_log(env: dict[str, str], count: int, seconds: float) -> tuple[float, float]:
    """The median and the 99th percentile of log(), in microseconds."""
    times: list[float] = []
    with ranks(count, {**env, "TRAINVITALS_AGENT": "0"}, 300, times):
        time.sleep(seconds)
    times.sort()
    return statistics.median(times), times[len(times) * 99 // 100]


def bench_agent(seconds: float = 20) -> Table:
    with tempfile.TemporaryDirectory() as place:
        build(Path(place))
        env = {**os.environ, "LD_LIBRARY_PATH": place, "FAKE_NVML_COUNT": "8"}
        found = [(count, *measure_agent(env, count, seconds)) for count in (1, 8, 24)]
    rows = [[count, f"{cpu:.2f} %", f"{memory:.0f}"] for count, cpu, memory in found]
    return Table("The agent beside many ranks, 8 GPUs, 1 Hz", ["processes", "of one core", "MB resident"], rows)


def bench_log(seconds: float = 20) -> Table:
    rows = [[count, *measure_log(dict(os.environ), count, seconds)] for count in (1, 16)]
    return Table("log() of 300 metrics by many ranks", ["ranks", "p50 us", "p99 us"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    print(bench_agent(arguments.seconds).markdown())
    print(bench_log(arguments.seconds).markdown())
