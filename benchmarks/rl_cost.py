"""What reinforcement learning pays: the plugin of verl in a worker, lines of 300 metrics, the agent of a node.

    python benchmarks/rl_cost.py [--seconds 20]

CPU time. Needs gcc for the eight GPUs (tests/sources/fake_nvml.c).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from agent_cost import build, watch
from table import Table

GPUS, PROCESSES, RANKS, METRICS = 8, 24, 16, 300
IMPORT = """
import sys, time, types
for name in ("verl", "verl.utils", "verl.utils.tracking"):
    sys.modules[name] = types.ModuleType(name)
class Tracking:
    supported_backend = ["console"]
    def __init__(self, project_name, experiment_name, default_backend="console", config=None): self.logger = {}
    def finish(self, exit_code=0): pass
sys.modules["verl.utils.tracking"].Tracking = Tracking
import functools, importlib  # what verl and Ray have imported long before
began = time.process_time()
import trainvitals.integrations.verl_plugin
print(1e3 * (time.process_time() - began))
assert "trainvitals" in Tracking.supported_backend
"""
LOG = """
import sys, time, trainvitals
run = trainvitals.init(agent=False, capture_git=False, console="off")
metrics = {f"group_{number % 12}/metric_{number}": 0.1 * number for number in range(int(sys.argv[1]))}
took = []
for step in range(300):
    began = time.thread_time()
    run.log(metrics, step=step)
    took.append(1e6 * (time.thread_time() - began))
print(sorted(took)[len(took) // 2])
"""
WORKER = """
import sys, time, trainvitals
run = trainvitals.init(capture_git=False, console="off")
print(flush=True)
end = time.monotonic() + float(sys.argv[1])
for step in range(10**6):
    if time.monotonic() > end: break
    run.log({"reward": 0.5, "response_length": 100.0}, step=step)
    time.sleep(5)
"""


def ranks_of(count: int, env: dict[str, str], program: str, *words: str) -> list[subprocess.Popen[str]]:
    world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            env={**env, **world, "RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank % GPUS)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def measure_import(env: dict[str, str]) -> float:
    times = [
        float(
            subprocess.run([sys.executable, "-c", IMPORT], env=env, capture_output=True, text=True, check=True).stdout
        )
        for _ in range(15)
    ]
    return statistics.median(times)


def measure_log(env: dict[str, str]) -> float:
    processes = ranks_of(RANKS, env, LOG, str(METRICS))
    return statistics.median(float(process.communicate()[0]) for process in processes)


def measure_agent(env: dict[str, str], folder: Path, seconds: float) -> tuple[float, float]:
    processes = ranks_of(PROCESSES, env, WORKER, str(seconds + 25))
    users: dict[int, list[int]] = {}
    for rank, process in enumerate(processes):
        assert process.stdout is not None
        process.stdout.readline()
        users.setdefault(rank % GPUS, []).append(process.pid)
    lines = [f"gpu.{gpu}.procs = {';'.join(f'C:{pid}:1Gi:10' for pid in pids)}" for gpu, pids in users.items()]
    (folder / "script").write_text("\n".join([f"count = {GPUS}", *lines, ""]))
    about = Path(env["TRAINVITALS_RUNTIME_DIR"], "agent.json")
    agent = psutil.Process(json.loads(about.read_text())["pid"])
    time.sleep(10)  # until every process is measured
    figures = watch(agent, seconds)
    for process in processes:
        process.communicate()
    agent.terminate()
    psutil.wait_procs([agent], timeout=10)
    shutil.rmtree(about.parent, ignore_errors=True)
    return figures


def bench(seconds: float = 20) -> Table:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(folder)
        (folder / "script").write_text(f"count = {GPUS}\n")
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": place,
            "FAKE_NVML_SCRIPT": f"{place}/script",
            "TRAINVITALS_DIR": f"{place}/runs",
            "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime",
            "TRAINVITALS_SUMMARY": "0",
        }
        rows = [
            ["import of the plugin in a worker of verl", f"{measure_import(env):.1f} ms of CPU"],
            [f"log() of {METRICS} metrics, each of {RANKS} ranks", f"{measure_log(env):.0f} µs of CPU"],
        ]
        cpu, memory = measure_agent(env, folder, seconds)
        what = f"agent of a node, 1 Hz: {GPUS} GPUs, {PROCESSES} processes on them"
        rows.append([what, f"{cpu:.1f} % of a core, {memory:.0f} MB"])
    note = "Fake driver: the time a real driver takes is not included."
    return Table("Reinforcement learning", ["what", "cost"], rows, note=note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    print(bench(parser.parse_args().seconds).markdown())
