"""Very many runs below one folder: what a list of them costs.

python benchmarks/many_runs.py [--runs 1e6] [--root FOLDER]

With --root the runs are made in that folder, kept, and used again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apart  # noqa: F401
import psutil
from starlette.testclient import TestClient
from table import Table, machine

from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.web.app import make_app

RUNS_PER_PROJECT = 50_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=float, default=1e6)
    parser.add_argument("--root", type=Path)
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        root = arguments.root or Path(place)
        if not root.is_dir() or not any(root.iterdir()):
            make_runs(root, int(arguments.runs))
        print(measure(root, int(arguments.runs)).markdown())


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
            "started_at": "2026-01-01T00:00:00.000Z",
            "ended_at": "2026-01-01T01:00:00.000Z",
            "config": {"lr": number},
            "hosts": ["host"],
        }
        (folder / "run.json").write_text(json.dumps(document))


def measure(root: Path, count: int) -> Table:
    rows = [[what, *time_command(root, *words)] for what, *words in COMMANDS]
    process = psutil.Process()
    before = process.memory_info().rss
    client = TestClient(make_app(FolderRuns(root), lambda *_: b""), base_url="http://localhost")
    for what, parameters in QUESTIONS:
        start = time.perf_counter()
        answer = client.get("/api/v1/runs", params=parameters)
        answer.raise_for_status()
        rows.append([what, time.perf_counter() - start, (process.memory_info().rss - before) / 2**20])
    return Table(title=f"{count:,} runs", columns=["question", "seconds", "MB"], rows=rows)


COMMANDS = (
    ("trainvitals runs --limit 20", "runs", "--limit", "20"),
    ("trainvitals runs --json", "runs", "--json"),
    ("trainvitals runs show latest", "runs", "show", "latest"),
)
QUESTIONS = (
    ("the page's list, first time", {"limit": "100"}),
    ("the page's list, again", {"limit": "100"}),
    ("the page's list, searched", {"limit": "100", "text": "lr=123456"}),
)


def time_command(root: Path, *words: str) -> tuple[float, float]:
    """Seconds, and the peak of its memory in MB."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as sink:
        process = subprocess.Popen([sys.executable, "-m", "trainvitals", *words, "--dir", root], stdout=sink)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"trainvitals {' '.join(words)} exited with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
