"""Clients of other trackers that log to us: what wandb.log() costs the loop, and how fast the server takes rows.

wandb.log() against our server beside W&B's own offline mode, each in a process of its own, in turns; then the rows per
second of CPU that one server takes over HTTP, and its memory. Part of benchmarks/trackers.py.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apart  # noqa: F401
import httpx
import psutil
from table import Table

from trainvitals.trackers.intake.keys import make_client_env
from trainvitals.views.web import login
from trainvitals.views.web.server import bind

STEPS = 20_000
LOOP = """
import json, sys, time
import wandb
run = wandb.init(project="bench")
times = []
for step in range(int(sys.argv[1])):
    metrics = {f"metric_{n}": step * 0.5 + n for n in range(10)}
    begin = time.perf_counter_ns()
    run.log(metrics)
    times.append(time.perf_counter_ns() - begin)
begin = time.perf_counter()
run.finish()
times.sort()
print(json.dumps([times[len(times) // 2] / 1e3, times[int(len(times) * 0.99)] / 1e3, time.perf_counter() - begin]))
"""


class Server:
    """`trainvitals serve --accept`."""

    def __init__(self, folder: Path) -> None:
        with bind("127.0.0.1", 0, False) as free:
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.token = login.read_token()
        command = ["serve", "--dir", str(folder), "--port", str(port), "--accept", "wandb,mlflow,otlp"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainvitals", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TRAINVITALS_AGENT": "0"},
        )
        self.process = psutil.Process(self._process.pid)
        self.client = httpx.Client(headers={"authorization": f"Bearer {self.token}"}, timeout=600)
        while True:
            try:
                self.client.get(f"{self.address}/health")
                return
            except httpx.TransportError:
                time.sleep(0.1)

    @property
    def cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure_loop(environ: dict[str, str], folder: Path) -> list[float]:
    script = folder / "loop.py"
    script.write_text(LOOP)
    environ = {**os.environ, "WANDB_SILENT": "true", "HOME": str(folder), **environ}
    done = subprocess.run(
        [sys.executable, str(script), str(STEPS)], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    return list(map(float, json.loads(done.stdout.splitlines()[-1])))


def bench_loop(rounds: int = 3) -> Table:
    found: dict[str, list[list[float]]] = {"trainvitals serve": [], "W&B offline": []}
    for _ in range(rounds):
        for name, results in found.items():
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                server = Server(folder / "runs") if name != "W&B offline" else None
                try:
                    environ = {"WANDB_MODE": "offline"}
                    if server is not None:
                        environ = make_client_env(server.address, server.token)
                    results.append(measure_loop(environ, folder))
                finally:
                    if server is not None:
                        server.close()
    rows = [
        [name, *(statistics.median(result[place] for result in results) for place in range(3))]
        for name, results in found.items()
    ]
    columns = ["wandb.log() of 10 scalars to", "p50 µs", "p99 µs", "finish s"]
    return Table(f"What wandb.log() costs the loop ({STEPS:,} steps)", columns, rows)


def bench_intake() -> Table:
    rows = []
    for values, steps in ((10, 100_000), (100, 20_000), (10_000, 400)):
        with tempfile.TemporaryDirectory() as text:
            server = Server(Path(text))
            variables = {"name": "one", "project": "p", "entity": "e"}
            server.client.post(
                f"{server.address}/graphql", json={"query": "mutation UpsertBucket", "variables": variables}
            )
            part = max(1, 20_000 // values)
            made = {f"metric_{n}": n * 0.123 for n in range(values)}
            begin = server.cpu
            for offset in range(0, steps, part):
                lines = [
                    json.dumps({**made, "_step": step, "_timestamp": 1.7e9 + step})
                    for step in range(offset, offset + part)
                ]
                body = {"files": {"wandb-history.jsonl": {"offset": offset, "content": lines}}}
                answer = server.client.post(f"{server.address}/files/e/p/one/file_stream", json=body)
                answer.raise_for_status()
            spent = server.cpu - begin
            rows.append([values, steps, steps / spent, steps * values / spent, server.process.memory_info().rss >> 20])
            server.close()
    columns = ["values per row", "rows", "rows per CPU s", "values per CPU s", "memory MB"]
    return Table("What one server takes of W&B's stream, on one core", columns, rows)
