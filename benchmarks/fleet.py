"""A fleet: what a gateway takes per second of processor time, what a row costs on the way and in the engine, how soon a
store answers beside a folder, and what many agents cost a gateway in memory.

python benchmarks/fleet.py [--steps 1000000] [--runs 10000] [--agents 1000]

Needs Debian's clickhouse-server. Engine, gateway and agents share the processors of one machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apart  # noqa: F401
import numpy as np
from table import Table, machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fleet"))

from engines import run_debian
from storm import GatewayProcess

from trainvitals.fleet import schema, wire
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess
from trainvitals.fleet.intake import End, take
from trainvitals.fleet.shipping import RunShipment
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.wire import Frame
from trainvitals.journal.contracts import Runs
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder import write_run
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.layout import FileName
from trainvitals.journal.segment_writer import Lines, write_segment

METRICS = 10
FILE_STEPS = 65_536
START = 1.8e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--agents", type=int, default=1_000)
    arguments = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as found:
        place = Path(found)
        print(measure_intake().markdown(), flush=True)
        with run_debian(place / "engine") as engine:
            opened = engine.open("fleet")
            schema.prepare(opened)
            gateway = GatewayProcess(engine)
            wait_for(gateway)
            try:
                for table in measure_run(place / "runs", opened, gateway, arguments.steps):
                    print(table.markdown(), flush=True)
                print(measure_list(opened, arguments.runs).markdown(), flush=True)
                print(measure_agents(gateway, arguments.agents).markdown(), flush=True)
            finally:
                gateway.kill()
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def make_lines(first: int, end: int, chance: random.Random) -> bytes:
    rows = (
        {
            "timestamp": format_time(START + step / 10),
            "step": step,
            **{f"metric {number}": float(np.float32(chance.gauss(1, 0.1))) for number in range(METRICS)},
        }
        for step in range(first, end)
    )
    return b"".join(map(encode_line, rows))


def measure_intake() -> Table:
    """Of one core, without the engine and without HTTP."""
    chance = random.Random(1)
    table = Table(
        "What a gateway makes of what it gets", ["sent as", "values", "values per second", "bytes per value sent"], []
    )
    name = FileName("training", 1, "20261118_060000", rank=0)
    body = make_lines(0, 20_000, chance)
    sent = wire.encode_frames([Frame(name.jsonl, "lines", body)])
    table.rows.append(["lines, compressed", *_rate(sent, 20_000 * METRICS, True)])
    with tempfile.TemporaryDirectory() as place:
        lines = Lines("training")
        for line in body.splitlines():
            lines.add(line)
        path = write_segment(Path(place), name, lines)
        frame = Frame(f"segments/{path.name}", "segment", path.read_bytes())
    table.rows.append(["a sealed file", *_rate(wire.encode_frames([frame], compress=False), 20_000 * METRICS, False)])
    return table


def _rate(body: bytes, values: int, compressed: bool) -> tuple[int, int, float]:
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        plain = wire.decompress(body) if compressed else body
        known: dict[str, End] = {}
        take(wire.decode_frames(plain), known, "p", "r", 20261118)
        best = min(best, time.process_time() - began)
    return values, round(values / best), len(body) / values


def make_run(root: Path, steps: int) -> Path:
    """Sealed, as a run of that length is."""
    folder = root / "bench" / "20261118-060000-bench-aaaa"
    folder.mkdir(parents=True)
    about = {"format": 1, "id": folder.name, "project": "bench", "status": "finished"}
    write_run(folder, RunFile.parse({**about, "created": format_time(START), "started": format_time(START)}))
    chance = np.random.default_rng(1)
    for number, first in enumerate(range(0, steps, FILE_STEPS)):
        count = min(FILE_STEPS, steps - first)
        place = np.arange(first, first + count)
        lines = Lines("training")
        values = chance.normal(1, 0.1, (METRICS, count)).astype(np.float32).astype(np.float64)
        columns = {f"metric {metric}": (np.arange(count), values[metric]) for metric in range(METRICS)}
        lines.add_columns(((START + place / 10) * 1e6).astype(np.int64), place, columns)
        write_segment(folder, FileName("training", 1, f"20261118_{number:06d}", rank=0), lines)
    return folder


def measure_run(root: Path, opened: ClickHouse, gateway: GatewayProcess, steps: int) -> list[Table]:
    folder = make_run(root, steps)
    shipment, client = RunShipment(folder, None), FarGateway(GatewayAccess(gateway.address, "env:NO_TOKEN"))
    before, began = gateway_cpu(gateway), time.perf_counter()
    while not shipment.has_all:
        shipment.ship(client)
    seconds, cpu = time.perf_counter() - began, gateway_cpu(gateway) - before
    values = steps * METRICS
    opened.execute("OPTIMIZE TABLE points FINAL")
    size = int(
        opened.execute("SELECT sum(bytes) FROM system.parts WHERE active AND table = 'points' AND database = 'fleet'")
    )
    shipped = Table(
        f"A run of {steps:,} steps with {METRICS} metrics, shipped whole",
        ["values per second", "per second of the gateway's processor time", "bytes per value in the engine"],
        [],
    )
    shipped.rows.append([round(values / seconds), round(values / max(cpu, 1e-9)), size / values])
    answers = Table(
        "Read from the store beside the folder, ms",
        ["asked", "folder, first", "again", "store, first", "again", "ratio, again"],
        [],
    )
    folders, stores = FolderRuns(root), StoreRuns(Store(opened))
    for title, how in (
        ("one metric, 2,000 points", {"max_points": 2000}),
        ("every metric, 500 points", {"max_points": 500}),
        ("one metric, 1 % of the steps", {"start": steps * 0.5, "end": steps * 0.51}),
    ):
        names = [f"metric {number}" for number in range(METRICS)] if "every" in title else ["metric 3"]
        mine, theirs = (
            [clock(functools.partial(_read, place, folder.name, names, how)) for _ in range(3)]
            for place in (folders, stores)
        )
        answers.rows.append(
            [title, mine[0], min(mine[1:]), theirs[0], min(theirs[1:]), min(theirs[1:]) / min(mine[1:])]
        )
    return [shipped, answers]


def _read(runs: Runs, key: str, names: list[str], how: dict[str, Any]) -> None:
    runs.open(key).series(names, **how)


def measure_list(opened: ClickHouse, runs: int) -> Table:
    store = Store(opened)
    for first in range(0, runs, 1000):
        for number in range(first, min(first + 1000, runs)):
            run = f"20261118-{number:06d}-many-aaaa"
            about = {"format": 1, "id": run, "project": "many", "name": f"run {number}", "status": "finished"}
            document = Frame("run.json", "document", encode_line({**about, "created": format_time(START + number)}))
            taken = take([document], {}, "many", run, 20261118)
            if number % 1000 == 0:
                together = taken.intake
            else:
                together.merge(taken.intake)
        store.write(together.blocks)
    table = Table(f"A list of {runs:,} runs, ms", ["first", "again", "after one changed"], [])
    listed = StoreRuns(store)
    first = clock(listed.list_keys)
    time.sleep(1.1)
    again = clock(listed.list_keys)
    run = "20261118-000000-many-aaaa"
    document = Frame("run.json", "document", encode_line({"format": 1, "id": run, "project": "many", "name": "other"}))
    store.write(take([document], store.read_ends("many", run), "many", run, 20261118).intake.blocks)
    time.sleep(1.1)
    table.rows.append([first, again, clock(listed.list_keys)])
    return table


def measure_agents(gateway: GatewayProcess, agents: int) -> Table:
    """Each sends ten lines of ten metrics, and does so again and again."""
    chance = random.Random(2)
    body = make_lines(0, 10, chance)
    rounds = 3

    def ship(number: int) -> None:
        client = FarGateway(GatewayAccess(gateway.address, "env:NO_TOKEN"))
        name = FileName("training", 1, "20261118_060000", rank=0).jsonl
        for turn in range(rounds):
            client.send("agents", f"20261118-{number:06d}-agent-aaaa", [Frame(name, "lines", body, turn * len(body))])

    before, began = gateway_cpu(gateway), time.perf_counter()
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(ship, range(agents)))
    seconds, cpu = time.perf_counter() - began, gateway_cpu(gateway) - before
    requests = agents * rounds
    table = Table(
        f"{agents:,} agents, a request with 100 values each, {rounds} times",
        ["requests per second", "per second of the gateway's processor time", "gateway's memory, MB"],
        [],
    )
    table.rows.append([round(requests / seconds), round(requests / max(cpu, 1e-9)), gateway_memory(gateway)])
    return table


def clock(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def gateway_cpu(gateway: GatewayProcess) -> float:
    parts = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def gateway_memory(gateway: GatewayProcess) -> int:
    pages = int(Path(f"/proc/{gateway.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def wait_for(gateway: GatewayProcess) -> None:
    import urllib.request

    while True:
        try:
            urllib.request.urlopen(f"{gateway.address}/health", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
