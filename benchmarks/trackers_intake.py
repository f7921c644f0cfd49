"""Clients of other trackers that log to us: what wandb.log() costs the loop, and how fast the server takes rows.

wandb.log() against our server beside W&B's own offline mode, each in a process of its own, in turns; the rows per
second of CPU that one server takes over HTTP, and its memory; and a flood: clients that send 10,000 metrics a step as
fast as they can, more than a server can take. Part of benchmarks/trackers.py.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
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


FLOOD_SECONDS = 20.0
FLOOD_CLIENTS = 8
FLOOD_METRICS = 10_000
FLOOD_STEPS = 100
"""In one request, of clients that send a tenth of a second's steps at a time."""


FIRST_PLACE = {"wandb": 0, "mlflow": 1_700_000_000_000, "otlp": 1_000_000}


def make_flood(protocol: str) -> tuple[str, bytes]:
    """(path, body) of a request; `RUN` stands for the run, `PLACE` for a number that grows."""
    metrics = {f"metric_{n}": n * 0.123 for n in range(FLOOD_METRICS)}
    if protocol == "wandb":
        lines = [json.dumps({**metrics, "_step": step, "_timestamp": 1.7e9}) for step in range(FLOOD_STEPS)]
        body: object = {"files": {"wandb-history.jsonl": {"offset": 0, "content": lines}}}
        return "/files/e/p/RUN/file_stream", json.dumps(body).replace('"offset": 0', '"offset": PLACE').encode()
    if protocol == "mlflow":  # its clients send at most 1,000 metrics at once
        points = [{"key": name, "value": value, "timestamp": "PLACE", "step": 1} for name, value in metrics.items()]
        return "/api/2.0/mlflow/runs/log-batch", json.dumps({"run_id": "RUN", "metrics": points[:1000]}).encode()
    gauges = [
        {"name": name, "gauge": {"dataPoints": [{"asDouble": value, "timeUnixNano": f"{10**9 + step}00PLACE"}]}}
        for step in range(FLOOD_STEPS // 10)
        for name, value in metrics.items()
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "RUN"}}]}
    body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": gauges}]}]}
    return "/v1/metrics", json.dumps(body).encode()


def begin_run(server: Server, protocol: str, name: str) -> str:
    if protocol == "wandb":
        variables = {"name": name, "project": "p", "entity": "e"}
        body = {"query": "mutation UpsertBucket", "variables": variables}
        server.client.post(f"{server.address}/graphql", json=body).raise_for_status()
    elif protocol == "mlflow":
        answer = server.client.post(f"{server.address}/api/2.0/mlflow/runs/create", json={"experiment_id": "0"})
        return str(answer.json()["run"]["info"]["run_id"])
    return name


def bench_flood() -> Table:
    """All clients at once, without a pause but for what the server asks of them."""
    rows = []
    for protocol in ("wandb", "mlflow", "otlp"):
        with tempfile.TemporaryDirectory() as text:
            server = Server(Path(text))
            path, body = make_flood(protocol)
            names = [begin_run(server, protocol, f"r{number}") for number in range(FLOOD_CLIENTS)]
            statuses: list[int] = []
            peak = 0
            end = time.monotonic() + FLOOD_SECONDS

            def flood(name: str) -> None:
                headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}  # noqa: B023
                address = f"{server.address}{path.replace('RUN', name)}"  # noqa: B023
                place = FIRST_PLACE[protocol]  # noqa: B023
                with httpx.Client(headers=headers, timeout=600) as client:
                    while time.monotonic() < end:  # noqa: B023
                        own = body.replace(b"RUN", name.encode()).replace(b'"PLACE"', b"PLACE")  # noqa: B023
                        answer = client.post(address, content=own.replace(b"PLACE", str(place).encode()))
                        statuses.append(answer.status_code)  # noqa: B023
                        place += FLOOD_STEPS if answer.status_code == 200 else 0
                        time.sleep(float(answer.headers.get("retry-after", 0)))

            threads = [threading.Thread(target=flood, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                peak = max(peak, server.process.memory_info().rss)
                time.sleep(0.1)
            taken, asked = statuses.count(200), statuses.count(429)
            rows.append([protocol, len(body) / 2**20, taken, asked, len(statuses) - taken - asked, peak >> 20])
            server.close()
    columns = ["protocol", "MB per request", "taken", "asked to wait", "other answers", "peak memory MB"]
    return Table(f"A flood of {FLOOD_CLIENTS} clients for {FLOOD_SECONDS:g} s", columns, rows)
