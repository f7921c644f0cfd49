"""A fleet: what a gateway takes per second of processor time, what a row costs on the way and in the engine, how soon a
store answers beside a folder, what many agents cost a gateway in memory, and how soon an hour without it is made up.

python benchmarks/fleet.py [--steps 1000000] [--runs 10000] [--rows 100000000] [--agents 1000] [--nodes 8]

Needs Debian's clickhouse-server. Engine, gateway and agents share the processors of one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apart  # noqa: F401
import numpy as np
from table import Table, machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fleet"))

from engines import Engine, run_debian
from storm import GatewayProcess

from trainvitals.fleet import schema, wire
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess, NotNow
from trainvitals.fleet.intake import End, RowBlocks, take
from trainvitals.fleet.shipping import RunShipment
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.contracts import Runs
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder import write_run
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.layout import FileName
from trainvitals.journal.segment_writer import Lines, write_segment
from trainvitals.views.data.run_listing import list_json

METRICS = 10
FILE_STEPS = 65_536
START = 1.8e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100_000_000, help="of all runs together")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="for which they ship")
    parser.add_argument("--nodes", type=int, default=8, help="that were cut off for an hour")
    parser.add_argument("--only", choices=("run", "outage", "agents", "many"), help="one of the parts")
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
                for part, measure in (
                    ("run", lambda: measure_run(place / "runs", opened, gateway, arguments.steps)),
                    ("outage", lambda: [measure_outage(place / "nodes", gateway, arguments.nodes)]),
                    ("agents", lambda: [measure_agents(engine, arguments.agents, arguments.seconds)]),
                    ("many", lambda: measure_many(place / "many", opened, arguments.runs, arguments.rows)),
                ):
                    for table in measure() if arguments.only in (None, part) else ():
                        print(table.markdown(), flush=True)
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
    sent = wire.encode_frames([FileRange(name.jsonl, "lines", body)])
    table.rows.append(["lines, compressed", *_rate(sent, 20_000 * METRICS, True)])
    with tempfile.TemporaryDirectory() as place:
        lines = Lines("training")
        for line in body.splitlines():
            lines.add(line)
        path = write_segment(Path(place), name, lines)
        frame = FileRange(f"segments/{path.name}", "segment", path.read_bytes())
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


def make_run(root: Path, steps: int, name: str = "20261118-060000-bench-aaaa") -> Path:
    """Sealed, as a run of that length is."""
    folder = root / "bench" / name
    folder.mkdir(parents=True)
    about = {"format": 1, "id": folder.name, "project": "bench", "name": name, "status": "finished"}
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


def measure_many(root: Path, opened: ClickHouse, runs: int, rows: int) -> list[Table]:
    """Copies of one run: of its folder, and in the engine by SQL, for shipping them would take an hour."""
    first = "20261118-000000-many-aaaa"
    steps = rows // runs // METRICS
    folder = make_run(root, steps, first)
    store = Store(opened)
    held: dict[str, End] = {}
    for frame in _frames(folder):
        taken = take([frame], held, "bench", first, 20261118)
        held.update(taken.ends)
        store.write(taken.intake.blocks)
    began = time.perf_counter()
    for start in range(1, runs, 50):
        _multiply(opened, first, start, min(50, runs - start))
    seconds = time.perf_counter() - began
    documents = RowBlocks()
    for number in range(1, runs):
        name = first.replace("000000", f"{number:06d}")
        copy = folder.with_name(name)
        shutil.copytree(folder, copy)
        document = copy / "run.json"
        document.write_bytes(document.read_bytes().replace(first.encode(), name.encode()))
        frame = FileRange("run.json", "document", document.read_bytes())
        documents.merge(take([frame], {}, "bench", name, 20261118).intake)
    store.write(documents.blocks)
    count = int(opened.execute("SELECT count() FROM points WHERE run LIKE '%-many-%'"))
    every = int(opened.execute("SELECT count() FROM points"))
    where = "WHERE active AND table = 'points' AND database = 'fleet'"
    size = int(opened.execute(f"SELECT sum(bytes) FROM system.parts {where}"))
    made = Table("Rows made in the engine by SQL", ["rows", "rows per second", "bytes per row"], [])
    made.rows.append([f"{count:,}", round(count / seconds), size / every])
    table = Table(
        f"{runs:,} runs with {steps:,} steps and {METRICS} metrics each, ms",
        ["asked", "folder, first", "again", "store, first", "again"],
        [],
    )
    places: list[Runs] = [FolderRuns(root), StoreRuns(store)]
    listed, rowed, charted = [], [], []
    for place in places:
        listed += [clock(place.list_keys)]
        time.sleep(1.1)
        listed += [clock(place.list_keys)]
        keys = place.list_keys()
        newest = keys[-200:]
        rowed += [clock(lambda place=place, newest=newest: list_json(place, newest)) for _ in range(2)]
        names = [f"metric {number}" for number in range(METRICS)]
        chosen = random.Random(3).sample(keys, 11)
        times = [
            [clock(functools.partial(_read, place, key, names, {"max_points": 500})) for key in chosen]
            for _ in range(2)
        ]
        charted += [sorted(found)[len(found) // 2] for found in times]
    table.rows += [
        ["the list of runs", *listed],
        ["rows of the newest 200", *rowed],
        ["a chart of every metric", *charted],
    ]
    return [made, table]


def _frames(folder: Path) -> Iterator[FileRange]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        kind = wire.kind_of(name) if path.is_file() else None
        if kind is not None:
            yield FileRange(name, kind, path.read_bytes(), generation="1" if kind == "bytes" else "")


def _multiply(opened: ClickHouse, first: str, start: int, count: int) -> None:
    before, _, after = first.partition("000000")
    name = f"concat('{before}', substring(toString(1000000 + number), 2), '{after}')"
    for table in ("points", "extremes", "ends"):
        columns = {column: column for column in schema.TABLES[table].columns}
        columns["run"] = name
        if table == "points":
            columns["value"] = "value + number / 1000"
        opened.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} "
            f"FROM (SELECT * FROM {table} WHERE project = 'bench' AND run = '{first}') "
            f"CROSS JOIN (SELECT number FROM numbers({start}, {count}))"
        )


HOUR_STEPS = 410 * 3600 // METRICS
"""What a node with 8 GPUs and 8 ranks logs and measures within an hour."""


def measure_outage(root: Path, gateway: GatewayProcess, nodes: int) -> Table:
    """Nodes that were cut off for an hour ship what they have, four of them at a time."""
    folders = [make_run(root, HOUR_STEPS, f"20261118-07{node:04d}-node-aaaa") for node in range(nodes)]

    def ship(folder: Path) -> None:
        shipment, client = RunShipment(folder, None), FarGateway(GatewayAccess(gateway.address, "env:NO_TOKEN"))
        while not shipment.has_all:
            with contextlib.suppress(NotNow):
                shipment.ship(client)
            time.sleep(client.wait)

    before, began = gateway_cpu(gateway), time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ship, folders))
    seconds, cpu = time.perf_counter() - began, gateway_cpu(gateway) - before
    values = nodes * HOUR_STEPS * METRICS
    table = Table(
        f"After an hour without a gateway: {nodes} nodes with {HOUR_STEPS * METRICS:,} values each",
        ["seconds", "values per second", "per second of the gateway's processor time", "nodes' hours per hour",
         "gateway's memory at most, MB"],
        [],
    )  # fmt: skip
    table.rows.append(
        [
            seconds,
            round(values / seconds),
            round(values / max(cpu, 1e-9)),
            nodes * 3600 / seconds,
            gateway_memory(gateway),
        ]
    )
    return table


def measure_agents(engine: Engine, agents: int, seconds: float) -> Table:
    """Each sends ten lines of ten metrics every two seconds, as agents do; to a gateway that has done nothing else."""
    gateway = GatewayProcess(engine)
    try:
        return _measure_agents(gateway, agents, seconds)
    finally:
        gateway.kill()


def _measure_agents(gateway: GatewayProcess, agents: int, seconds: float) -> Table:
    body = make_lines(0, 10, random.Random(2))
    name = FileName("training", 1, "20261118_060000", rank=0).jsonl
    clients = [FarGateway(GatewayAccess(gateway.address, "env:NO_TOKEN")) for _ in range(agents)]
    offsets = [0] * agents
    waited: list[float] = []
    late = 0

    def send(number: int) -> None:
        nonlocal late
        sent = time.perf_counter()
        try:
            frame = FileRange(name, "lines", body, offsets[number])
            clients[number].send("agents", f"20261118-{number:06d}-agent-aaaa", [frame])
            offsets[number] += len(body)
            waited.append(time.perf_counter() - sent)
        except NotNow:
            late += 1

    def ship(number: int) -> None:
        due = began + 2.0 * number / agents
        while due < began + seconds:
            time.sleep(max(due - time.perf_counter(), clients[number].wait, 0.0))
            send(number)
            due = max(due + 2.0, time.perf_counter())

    with ThreadPoolExecutor(agents) as pool:
        began = time.perf_counter()
        list(pool.map(send, range(agents)))  # of runs that this gateway has never heard of, all at once
        first = time.perf_counter() - began
        waited.clear()
        before, began = gateway_cpu(gateway), time.perf_counter()
        list(pool.map(ship, range(agents)))
    passed, cpu = time.perf_counter() - began, gateway_cpu(gateway) - before
    table = Table(
        f"{agents:,} agents, a request with 100 values every 2 s each, for {seconds:g} s",
        ["first request of all, s", "requests per second", "not taken at once", "answered within, median s", "99 %",
         "per second of the gateway's processor time", "gateway's memory at most, MB"],
        [],
    )  # fmt: skip
    waited.sort()
    quantiles = [waited[len(waited) // 2], waited[len(waited) * 99 // 100]]
    rates = [round(len(waited) / passed), late, *quantiles, round(len(waited) / max(cpu, 1e-9))]
    table.rows.append([first, *rates, gateway_memory(gateway)])
    return table


def clock(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def gateway_cpu(gateway: GatewayProcess) -> float:
    parts = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def gateway_memory(gateway: GatewayProcess) -> int:
    """The most that it had."""
    lines = Path(f"/proc/{gateway.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) >> 10


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
