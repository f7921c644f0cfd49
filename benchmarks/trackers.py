"""TensorBoard, MLflow and W&B beside trainvitals: what they cost.

python benchmarks/trackers.py [--points 1e6]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import apart  # noqa: F401
from table import Table, machine

from trainvitals.exporters import mlflow, tensorboard, wandb
from trainvitals.exporters.delivery import deliver
from trainvitals.exporters.rows import Limits, RowExporter, RowRunner, RunDescription, RunEnd
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Relay
from trainvitals.settings import resolve

NAMES = 10
"""Metrics of one row."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=float, default=2e5)
    arguments = parser.parse_args()
    print(machine())
    print(bench_mirrors(int(arguments.points)).markdown())


# -- out


def bench_mirrors(points: int) -> Table:
    """CPU time of the agent for each number that it mirrors; the time of children is beside it."""
    settings = resolve({"wandb_offline": True}, environ={}, folder=Path("/"))
    rows = []
    with FakeMlflow() as address:
        for name, create in (
            ("reading alone", lambda: Nothing()),
            ("TensorBoard", lambda: tensorboard.create("on", settings)),
            ("MLflow, over HTTP", lambda: mlflow.create(address, settings)),
            ("W&B, offline", lambda: wandb.create("bench", settings)),
        ):
            rows.append([name, *measure(create, points)])
    return Table(
        "What a mirrored number costs",
        ["mirror", "agent CPU, µs per number", "child CPU, µs per number", "numbers per second"],
        rows,
        note=f"{points:,} numbers, {NAMES} in a row, from the files of a run. MLflow's server is a stand-in that "
        "answers at once, and the CPU time of its own process is not counted.",
    )


class Nothing:
    """An exporter that takes everything."""

    def open(self, run: Any) -> None: ...
    def write(self, rows: Any) -> None: ...
    def close(self, end: Any) -> None: ...


def measure(create: Callable[[], RowExporter], points: int) -> list[float]:
    """In a process of its own, so that what it used is known."""
    ours, theirs = get_context("fork").Pipe()
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "run", points)
        process = get_context("fork").Process(target=_measure, args=(create, folder, points, theirs))
        process.start()
        found: list[float] = ours.recv()
        process.join()
    return found


def _measure(create: Callable[[], RowExporter], folder: Path, points: int, answer: Connection) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = RunDescription("run", folder, "box", 1, run_folder.read_run(folder), os.environ)
    runner = RowRunner("bench", create, run, limits=Limits(patience=600.0))
    stop = threading.Event()
    assert deliver([runner], Relay(folder), RunEnd("finished"), lambda exports: None, stop=stop, patience=600.0)
    seconds = time.perf_counter() - began
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    answer.send([_used(before, own) / points * 1e6, _used(children, others) / points * 1e6, points / seconds])


def _used(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_run(folder: Path, points: int) -> Path:
    folder.mkdir()
    about = RunFile(id="run", project="bench", name="bench", status="finished", created=format_time(1e9))
    run_folder.write_run(folder, about)
    with open(folder / "training_metrics_20260101_000000.rank0.jsonl", "wb") as file:
        for step in range(points // NAMES):
            values = {f"metric{number}": 1.0 / (step + number + 1) for number in range(NAMES)}
            file.write(encode_line({"timestamp": format_time(1e9 + step), "step": step, **values}))
    return folder


class FakeMlflow:
    """Says yes to everything, in a process of its own."""

    def __enter__(self) -> str:
        ours, theirs = get_context("fork").Pipe()
        self._process = get_context("fork").Process(target=self._serve, args=(theirs,), daemon=True)
        self._process.start()
        return f"http://127.0.0.1:{ours.recv()}"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def _serve(self, answer: Connection) -> None:
        body = json.dumps(
            {
                "experiment": {"experiment_id": "1", "lifecycle_stage": "active"},
                "run": {"info": {"run_id": "r"}},
                "run_info": {"run_id": "r", "artifact_uri": "s3://b/r"},
            }
        ).encode()

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *arguments: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        answer.send(server.server_address[1])
        server.serve_forever()


if __name__ == "__main__":
    main()
