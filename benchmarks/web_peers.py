"""The first chart of other dashboards: the same ten metrics, the same browser, each with its own server and page.

Called by benchmarks/web.py --peers PYTHON, an interpreter that has them installed; what is not installed is named as
skipped. Some take so long to take the steps in that they are given as many as fit in a time: fewer steps are in their
favour, and the table says how many there were.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from table import Table

HERE = Path(__file__).parent
WAIT_SECONDS = 300.0
VISITS = 4

# Written by the peer's interpreter, given: folder, file with the values, steps, seconds. Prints {"steps": ..., ...}.
BEGIN = """
import json, os, sys, time
import numpy as np
folder, file, steps, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
stored = np.load(file)
names = stored.files
columns = [stored[name].tolist() for name in names]
deadline = time.monotonic() + seconds
rows = zip(*columns)
"""
TENSORBOARD = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(folder, max_queue_size=1000)
for step, row in enumerate(rows):
    values = [Summary.Value(tag=name, simple_value=value) for name, value in zip(names, row)]
    writer.add_event(Event(step=step, wall_time=1.8e9 + step, summary=Summary(value=values)))
    if step % 1000 == 0 and time.monotonic() > deadline:
        break
writer.close()
print(json.dumps({"steps": step + 1}))
"""
# The rows go straight into its own tables: its log_batch takes a hundred times as long for the same rows.
MLFLOW = """
import sqlite3
import mlflow
mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
client = mlflow.MlflowClient()
experiment = client.create_experiment("bench")
run = client.create_run(experiment).info.run_id
for name, column in zip(names, columns):
    client.log_metric(run, name, column[-1], timestamp=1_800_000_000_000 + steps, step=steps - 1)
database = sqlite3.connect(f"{folder}/mlflow.db")
insert = "INSERT OR IGNORE INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)"
for name, column in zip(names, columns):
    many = ((name, value, 1_800_000_000_000 + step, run, step) for step, value in enumerate(column[:-1]))
    database.executemany(insert, many)
database.commit()
client.set_terminated(run)
print(json.dumps({"steps": steps, "experiment": experiment, "run": run}))
"""
TRACKIO = """
os.environ["TRACKIO_DIR"] = folder
from trackio.sqlite_storage import SQLiteStorage
step = 0
while step < steps and time.monotonic() < deadline:
    some = [dict(zip(names, row)) for row, _ in zip(rows, range(10_000))]
    SQLiteStorage.bulk_log("bench", "run", some, steps=list(range(step, step + len(some))))
    step += 10_000
print(json.dumps({"steps": min(step, steps)}))
"""
AIM = """
from aim import Run
run = Run(repo=folder, system_tracking_interval=None, log_system_params=False)
for step, row in enumerate(rows):
    for name, value in zip(names, row):
        run.track(value, name=name, step=step)
    if time.monotonic() > deadline:
        break
run.close()
print(json.dumps({"steps": step + 1, "run": run.hash}))
"""

SHOW_TRACKIO = "import trackio; trackio.show(project='bench', open_browser=False"
UP_AIM = "from aim.cli.cli import cli_entry_point; cli_entry_point()"

# True once a curve is drawn: a long path, or a canvas with something of colour in it. One that is drawn by a worker
# cannot be looked into: it counts when `told`, which the page shows with the data, is there.
DRAWN = """([curve, told]) => {
  const isDrawn = (item) => {
    if (item.tagName !== 'CANVAS') return (item.getAttribute('d') ?? '').length > 300;
    if (item.width < 100 || item.height < 50) return false;
    let flat = null;
    try { flat = item.getContext('2d'); } catch { }
    if (!flat) return true;
    const data = flat.getImageData(0, 0, item.width, item.height).data;
    let coloured = 0;
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue, alpha] = data.slice(at, at + 4);
      if (alpha > 60 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40) coloured += 1;
    }
    return coloured > 100;
  };
  return (!told || document.querySelector(told) !== null) && [...document.querySelectorAll(curve)].some(isDrawn);
}"""


@dataclass(frozen=True)
class Peer:
    """One other dashboard."""

    name: str
    write: str
    serve: Callable[[Path, int], list[str]]
    """Words after the interpreter."""
    page: Callable[[dict[str, Any]], str]
    curve: str
    """Selector of what a curve is drawn with."""
    told: str = ""
    """Selector of what is there only with the data."""


PEERS = (
    Peer(
        "TensorBoard",
        TENSORBOARD,
        lambda folder, port: ["-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)],
        lambda made: "#timeseries",
        "line-chart canvas",
        "scalar-card-data-table",
    ),
    Peer(
        "MLflow",
        MLFLOW,
        lambda folder, port: [
            *("-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
            *("--port", str(port), "--workers", "1"),
        ],
        lambda made: f"#/experiments/{made['experiment']}/runs/{made['run']}/model-metrics",
        ".js-plotly-plot .scatterlayer path",
    ),
    Peer(
        "trackio",
        TRACKIO,
        lambda folder, port: ["-c", f"{SHOW_TRACKIO}, server_port={port})"],
        lambda made: "?project=bench",
        "canvas.marks",
    ),
    Peer(
        "Aim",
        AIM,
        lambda folder, port: ["-c", UP_AIM, "up", "--repo", str(folder), "--port", str(port), "--workers", "1"],
        lambda made: f"runs/{made['run']}/metrics",
        "path.Line",
    ),
)


def bench(
    python: str,
    values: dict[str, Any],
    browser: Callable[[], Any],
    own: Callable[[Path], Any],
    seconds: float,
) -> Table:
    """`own` makes our run in a folder and gives a context with the address of its page."""
    import numpy as np

    steps = len(next(iter(values.values())))
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as place, browser() as chromium:
        file = Path(place) / "values.npz"
        np.savez(file, **values)
        ours = _visit(chromium, own(Path(place) / "own"), ".chart canvas")
        rows.append(["trainvitals", f"{steps:,}", *ours, ""])
        for peer in PEERS:
            folder = Path(place) / peer.name.lower()
            folder.mkdir()
            words = [python, "-c", BEGIN + peer.write, str(folder), str(file), str(steps), str(seconds)]
            written = subprocess.run(words, capture_output=True, text=True, check=False, env=_environ(folder))
            if written.returncode:
                reason = (written.stderr.strip().splitlines() or ["?"])[-1]
                rows.append([peer.name, "skipped", reason[:80], "", ""])
                continue
            made = json.loads(written.stdout.strip().splitlines()[-1])
            found = _visit(chromium, _serve(python, peer, folder, made), peer.curve, peer.told)
            times = f"{found[1] / ours[1]:.1f}x" if isinstance(found[1], float) and isinstance(ours[1], float) else ""
            rows.append([peer.name, f"{made['steps']:,}", *found, times])
    return Table(
        "First chart beside other dashboards",
        [
            "dashboard",
            "steps x 10 metrics",
            "server started to first chart, s",
            "later visits, median ms",
            "times ours",
        ],
        rows,
        "at least 5x faster than each at 1e6 steps",
        "An empty browser cache each time. A dashboard with fewer steps got as many as it took in within "
        f"{seconds:.0f} s.",
    )


def _environ(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TRACKIO_DIR": str(folder),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GRADIO_ANALYTICS_ENABLED": "0",
    }


@contextmanager
def _serve(python: str, peer: Peer, folder: Path, made: dict[str, Any]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [python, *peer.serve(folder, port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environ(folder), start_new_session=True,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}/{peer.page(made)}"
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def _visit(chromium: Any, serving: Any, curve: str, told: str = "") -> list[Any]:
    """[seconds from starting the server to the first curve, median milliseconds of later visits]."""
    from playwright.sync_api import Error

    began = time.perf_counter()
    times: list[float] = []
    with serving as address:
        while len(times) < VISITS:
            context = chromium.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            start = began if not times else time.perf_counter()
            try:
                page.goto(address, wait_until="commit")
                page.wait_for_function(DRAWN, arg=[curve, told], polling=20, timeout=WAIT_SECONDS * 1000)
                times.append(time.perf_counter() - start)
            except Error:
                time.sleep(0.1)  # it does not listen yet
                if time.perf_counter() - began > WAIT_SECONDS:
                    return [f"none within {WAIT_SECONDS:.0f} s", ""]
            finally:
                context.close()
    return [times[0], statistics.median(times[1:]) * 1000]
