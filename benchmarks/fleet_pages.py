"""How long the fleet pages take for 1,000 nodes of 8 simulated GPUs, from a folder and from ClickHouse.

    python benchmarks/fleet_pages.py --nodes 1000

Processor time of the server's own work, median of 5, and how much is sent. Needs clickhouse-server.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "fleet")]

from engines import run_debian  # noqa: E402
from made_fleet import make_fleet  # noqa: E402
from shipped import ship_all  # noqa: E402

from trainvitals.conditions import Conditions  # noqa: E402
from trainvitals.fleet import schema  # noqa: E402
from trainvitals.fleet.store import Store  # noqa: E402
from trainvitals.fleet.store_runs import StoreRuns  # noqa: E402
from trainvitals.journal.contracts import Runs  # noqa: E402
from trainvitals.journal.folder_runs import FolderRuns  # noqa: E402
from trainvitals.views.data import fleet_runs  # noqa: E402
from trainvitals.views.data.fleet import describe_fleet  # noqa: E402
from trainvitals.views.data.fleet_faults import describe_faults, list_rules  # noqa: E402
from trainvitals.views.data.fleet_runs import FleetBook  # noqa: E402
from trainvitals.views.data.fleet_use import describe_use  # noqa: E402
from trainvitals.views.data.wire import encode  # noqa: E402
from trainvitals.views.web.app import _compress  # noqa: E402

ROUNDS = 5


def measure(place: str, runs: Runs) -> None:
    fleet_runs.FRESH_SECONDS = 0.0
    fleet_runs.REST = 0
    book = FleetBook()
    book.read(runs, runs.list_keys())
    conditions = Conditions()
    now = time.time()
    questions = {
        "read what the live runs report": lambda: book.read(runs, runs.list_keys()),
        "every GPU now": lambda: describe_fleet(book._found),
        "every GPU over 30 days": lambda: describe_fleet(book._found, window="month"),
        "use by user over 30 days": lambda: describe_use(book._found, period="month"),
        "faulty nodes over 28 days": lambda: describe_faults(
            book._found, runs.tally_alerts(list_rules(conditions), now - 28 * 86_400, now), conditions
        ),
    }
    for title, ask in questions.items():
        spent, waited, sent = [], [], 0
        for _ in range(ROUNDS):
            cpu, wall = time.process_time(), time.perf_counter()
            answer = ask()
            body = encode(answer) if isinstance(answer, dict) else b""
            spent.append(time.process_time() - cpu)
            waited.append(time.perf_counter() - wall)
            sent = len(_compress(body))
        took = f"{1000 * statistics.median(spent):.0f} ms of processor time, {1000 * statistics.median(waited):.0f} ms"
        print(f"{place}: {title}: {took}, {sent / 1000:.0f} KB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as place, run_debian(Path(place) / "engine") as engine:
        # An hour from now: what the agents said last is fresh as long as this takes.
        make_fleet(Path(place) / "runs", nodes, time.time() + 3600)
        folders = FolderRuns(Path(place) / "runs")
        measure("folder", folders)
        database = engine.open("fleet")
        schema.prepare(database)
        ship_all(Store(database), folders)
        measure("store", StoreRuns(Store(database)))


if __name__ == "__main__":
    main()
