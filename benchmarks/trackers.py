"""TensorBoard, MLflow and W&B beside trainvitals: what they cost.

python benchmarks/trackers.py [--points 2e5] [--values 1e6] [--rounds 3]

Mirrors: CPU time of the agent for each number. Intake (`trackers_intake.py`): what wandb.log() costs the loop, and what
our server takes. Imports: the same file read by each tool's own reader and by us, and imported into a run folder,
sealed. Each in its own process, in seconds of CPU, which other load on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import textwrap
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
from trackers_intake import bench_flood, bench_intake, bench_loop

from trainvitals.exporters import mlflow, tensorboard, wandb
from trainvitals.exporters.delivery import deliver
from trainvitals.exporters.rows import DeliveryLimits, RowExporter, RowRunner, RunDescription, RunEnd
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Relay
from trainvitals.settings import resolve
from trainvitals.trackers.tensorboard.framing import encode_record

NAMES = 10
"""Metrics of one row."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=float, default=2e5, help="to mirror; 0: none")
    parser.add_argument("--values", type=float, default=1e6, help="to import; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="of clients that log to us; 0: none")
    arguments = parser.parse_args()
    print(machine())
    if arguments.points:
        print(bench_mirrors(int(arguments.points)).markdown())
    if arguments.rounds:
        print(bench_intake().markdown(), flush=True)
        print(bench_flood().markdown(), flush=True)
        print(bench_loop(arguments.rounds).markdown(), flush=True)
    if arguments.values:
        print(bench_imports(int(arguments.values)).markdown())


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
    runner = RowRunner("bench", create, run, limits=DeliveryLimits(patience=600.0))
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


# -- in

TAGS = 10
START = 1_763_380_000.0

OWN_IMPORT = """
    from pathlib import Path
    from trainvitals import settings
    from trainvitals.trackers.importing import Import
    from trainvitals.trackers.registry import REGISTRY
    from trainvitals.trackers.run_writing import TrackedRuns

    work = Import({tool!r}, REGISTRY[{tool!r}].open({target!r}), TrackedRuns(Path({root!r}), settings.resolve()))
    count = sum(item.values for item in work.take())
    work.settle()
"""
OWN_READER = """
    from trainvitals.trackers.registry import REGISTRY

    runs = REGISTRY[{tool!r}].open({target!r}).runs()
    count = sum(piece.lines.count for run in runs for piece in run.read({{}}) if piece.lines is not None)
"""
EVENT_ACCUMULATOR = """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator({target!r}, size_guidance={{"scalars": 0}})
    found.Reload()
    count = sum(len(found.Scalars(tag)) for tag in found.Tags()["scalars"])
"""
PANDAS = """
    import pandas

    count = int(pandas.read_csv({target!r}).notna().to_numpy().sum())
"""
MLFLOW_CLIENT = """
    import os

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient({target!r} if "mlruns" in {target!r} else "sqlite:///" + {target!r})
    experiments = [item.experiment_id for item in client.search_experiments()]
    runs = client.search_runs(experiments)
    count = sum(len(client.get_metric_history(run.info.run_id, key)) for run in runs for key in run.data.metrics)
"""


def measure_reading(code: str, **names: str) -> tuple[float, int, float]:
    """(seconds of CPU, values, megabytes at most) of a process that runs this and leaves `count`."""
    script = textwrap.dedent(code).format(**names) + "\nprint('values', count)\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    timed = f"import resource\n{script}print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    done = subprocess.run([sys.executable, "-c", timed], check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    *_, values, memory = done.stdout.split()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(values), float(memory)


def bench_imports(values: int) -> Table:
    """Reading and importing, beside each tool's own reader."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for tool, kind, peer, code, make in (
            ("tensorboard", "event file", "EventAccumulator", EVENT_ACCUMULATOR, make_events),
            ("mlflow", "database", "MlflowClient", MLFLOW_CLIENT, make_mlflow),
            ("mlflow", "folder", "MlflowClient", MLFLOW_CLIENT, make_mlruns),
            ("csv", "table", "pandas.read_csv", PANDAS, make_csv),
            ("wandb", "file", "", "", make_wandb),
        ):
            target = str(make(Path(place, tool), values))
            own, count, _ = measure_reading(OWN_READER, tool=tool, target=target)
            whole, imported, memory = measure_reading(
                OWN_IMPORT, tool=tool, target=target, root=str(Path(place, "runs"))
            )
            assert count == imported, (tool, count, imported)
            theirs = measure_reading(code, target=target)[0] if code else math.nan
            ratio = f"{theirs / own:.1f}x" if code else ""
            shown = theirs if code else "no reader in Python"
            rows.append([f"{tool}, {kind}", f"{count:,}", peer, shown, own, ratio, whole, memory])
    return Table(
        "Importing runs of other trackers",
        ["source", "values", "their reader", "CPU s", "our reader, CPU s", "faster", "whole import, CPU s", "peak MB"],
        rows,
        goal="1,000,000 scalars in 5 s, those of TensorBoard at least 8 times as fast as EventAccumulator",
    )


def make_events(folder: Path, values: int) -> Path:
    """One scalar per record, as torch and tensorboardX write them."""
    folder.mkdir(parents=True)
    with open(folder / "events.out.tfevents.1.host.1.0", "wb") as file:
        file.write(encode_record(b"\x09" + struct.pack("<d", START) + b"\x1a\x0dbrain.Event:2"))
        for number in range(values):
            step, tag = divmod(number, TAGS)
            name = b"group/tag_%d" % tag
            value = b"\x0a" + bytes((len(name),)) + name + b"\x15" + struct.pack("<f", math.sin(number))
            summary = b"\x0a" + bytes((len(value),)) + value
            head = b"\x09" + struct.pack("<d", START + number * 1e-3) + b"\x10" + _varint(step + 1)
            file.write(encode_record(head + b"\x2a" + bytes((len(summary),)) + summary))
    return folder


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return found + bytes((number,))


def make_csv(folder: Path, values: int) -> Path:
    folder.mkdir(parents=True)
    path = folder / "metrics.csv"
    with open(path, "w") as file:
        file.write("step," + ",".join(f"tag_{tag}" for tag in range(TAGS)) + "\n")
        for step in range(values // TAGS):
            file.write(f"{step}," + ",".join(repr(math.sin(step + tag)) for tag in range(TAGS)) + "\n")
    return path


def make_mlflow(folder: Path, values: int) -> Path:
    """The client makes the database and the run; the points are put in directly, or it would take hours."""
    import sqlite3

    folder.mkdir(parents=True)
    path = folder / "mlflow.db"
    script = f"""
        import mlflow
        mlflow.set_tracking_uri("sqlite:///{path}")
        with mlflow.start_run() as run:
            mlflow.log_metrics({{f"tag_{{tag}}": 0.0 for tag in range({TAGS})}}, step=0)
        print(run.info.run_id)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True, cwd=folder
    )
    run_id = done.stdout.split()[-1]
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)",
            (
                (f"tag_{number % TAGS}", math.sin(number), int(START * 1000) + number, run_id, number // TAGS)
                for number in range(values - TAGS)
            ),
        )
    return path


def make_mlruns(folder: Path, values: int) -> Path:
    """As MLflow's client writes it: a file for each metric, with a line for each point."""
    root = folder / "mlruns"
    run = root / "1" / ("a" * 32)
    for inner in ("metrics", "params", "tags", "artifacts"):
        (run / inner).mkdir(parents=True)
    experiment = {"artifact_location": str(root / "1"), "experiment_id": "1", "name": "bench"}
    facts = {
        "artifact_uri": str(run / "artifacts"),
        "end_time": int(START * 1000) + values,
        "experiment_id": "1",
        "run_id": run.name,
        "run_name": "bench",
        "start_time": int(START * 1000),
        "status": 3,
        "user_id": "bench",
    }
    for place, about in ((root / "1", experiment), (run, facts)):  # JSON is YAML
        (place / "meta.yaml").write_text(json.dumps({**about, "lifecycle_stage": "active"}))
    for tag in range(TAGS):
        with open(run / "metrics" / f"tag_{tag}", "w") as file:
            for step in range(values // TAGS):
                number = step * TAGS + tag
                file.write(f"{int(START * 1000) + number} {math.sin(number)!r} {step}\n")
    return root


def make_wandb(folder: Path, values: int) -> Path:
    """By the real client, offline."""
    folder.mkdir(parents=True)
    script = f"""
        import math, wandb
        run = wandb.init(mode="offline", dir={str(folder)!r}, settings=wandb.Settings(silent=True))
        for step in range({values // TAGS}):
            run.log({{f"tag_{{tag}}": math.sin(step + tag) for tag in range({TAGS})}})
        run.finish()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, cwd=folder)
    return folder


if __name__ == "__main__":
    main()
