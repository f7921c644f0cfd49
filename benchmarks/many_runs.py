"""Very many runs below one folder: what a list of them costs at the first look and, from the cache of rows, afterwards.

python benchmarks/many_runs.py [--runs 1e4] [--root FOLDER] [--store]

With --root the runs are made in that folder, kept, and used again. With --store they are also shipped into ClickHouse
(clickhouse-server is needed) and listed from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import apart  # noqa: F401
import psutil
from starlette.testclient import TestClient
from table import Table, machine

from trainvitals.fleet.store_runs import open_store
from trainvitals.journal.contracts import Runs
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.row_cache import SETTLED_SECONDS
from trainvitals.runtime import runtime_dir
from trainvitals.views.web.app import make_app

RUNS_PER_PROJECT = 50_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=float, default=1e4)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        root = arguments.root or Path(place)
        if not root.is_dir() or not any(root.iterdir()):
            make_runs(root, int(arguments.runs))
        time.sleep(SETTLED_SECONDS)
        print(measure(FolderRuns(root), int(arguments.runs), "--dir", str(root)).markdown())
        if arguments.store:
            with shipped(FolderRuns(root), Path(place) / "engine") as address:
                print(measure(open_store(address), int(arguments.runs), "--store", address).markdown())


@contextlib.contextmanager
def shipped(folders: FolderRuns, place: Path) -> Iterator[str]:
    """The same runs in an engine: its address."""
    tests = Path(__file__).parent.parent / "tests"
    sys.path[:0] = [str(tests), str(tests / "fleet")]
    from engines import run_debian
    from shipped import ship_all

    from trainvitals.fleet import schema
    from trainvitals.fleet.store import Store

    with run_debian(place) as engine:
        database = engine.open("many")
        schema.prepare(database)
        ship_all(Store(database), folders)
        yield engine.address("many")


def make_runs(root: Path, count: int) -> None:
    """Ended runs as they are listed: nothing but their documents."""
    for number in range(count):
        project = f"project-{number // RUNS_PER_PROJECT:03d}"
        day, second = divmod(number, 10_000)
        name = f"{20_250_101 + day}-{second // 3600:02d}{second // 60 % 60:02d}{second % 60:02d}-run-{number:07d}"
        folder = root / project / name
        os.makedirs(folder)
        document = {
            "id": name,
            "project": project,
            "name": f"run {number}",
            "status": "finished",
            "started": "2026-01-01T00:00:00.000Z",
            "ended": "2026-01-01T01:00:00.000Z",
            "config": {"lr": number, "batch_size": 32 << number % 4, "seed": number % 5, "model": {"name": "resnet50"}},
            "tags": ["sweep", f"seed-{number % 5}"],
            "packages": {f"package-{place}": "1.2.3" for place in range(60)},
            "hosts": ["host"],
        }
        (folder / "run.json").write_text(json.dumps(document))
        values = {"count": 1000, "last": number / count, "min": 0.0, "max": 1.0, "last_step": 1000}
        summary = dict.fromkeys(("train/loss", "val/loss", "val/acc", "lr", "grad_norm", "epoch"), values)
        (folder / "status.json").write_text(json.dumps({"attempt": 1, "host": "host", "summary": summary}))


def measure(runs: Runs, count: int, *where: str) -> Table:
    rows: list[list[object]] = []
    for words in COMMANDS:
        shutil.rmtree(runtime_dir() / "rows", ignore_errors=True)
        first, _, memory = time_command(*words, *where)
        again, spent, _ = time_command(*words, *where)
        rows.append([f"trainvitals {' '.join(words)}", first, again, spent, memory])
    process = psutil.Process()
    before = process.memory_info().rss
    for parameters in QUESTIONS:
        shutil.rmtree(runtime_dir() / "rows", ignore_errors=True)
        client = TestClient(make_app(runs, lambda *_: b""), base_url="http://localhost")
        first, _ = time_answer(client, parameters)
        again, spent = time_answer(client, parameters)
        memory = (process.memory_info().rss - before) / 2**20
        rows.append([f"GET /api/v1/runs?{urlencode(parameters)}", first, again, spent, memory])
    columns = ["question", "first look (s)", "again (s)", "of which CPU (s)", "MB"]
    return Table(title=f"{count:,} runs, {where[0]}", columns=columns, rows=rows)


def time_answer(client: TestClient, parameters: dict[str, str]) -> tuple[float, float]:
    """Seconds, and those of this processor."""
    start, begun = time.perf_counter(), time.process_time()
    client.get("/api/v1/runs", params=parameters).raise_for_status()
    return time.perf_counter() - start, time.process_time() - begun


COMMANDS = (
    ("runs", "--limit", "20"),
    ("runs", "lr<500 tag:seed-1"),
    ("runs", "--json"),
)
QUESTIONS = (
    {},
    {"limit": "100"},
    {"limit": "100", "q": "lr<500 tag:seed-1"},
    {"limit": "100", "sort": "-name"},
)


def time_command(*words: str) -> tuple[float, float, float]:
    """Seconds, those of a processor, and the peak of its memory in MB."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as sink:
        process = subprocess.Popen([sys.executable, "-m", "trainvitals", *words], stdout=sink)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"trainvitals {' '.join(words)} exited with {process.returncode}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
