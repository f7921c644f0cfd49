"""Trainings log while every part of the way to the store is killed again and again; then every value is compared.

python storm.py [RUNS] [KILLS]     from the folder of the tests
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from engines import Engine, run_debian
from waiting import free_port, wait_until

from trainvitals.fleet import schema
from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess, NotNow
from trainvitals.fleet.shipping import RunShipment
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder import write_run
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.segment_writer import seal

FILE_LINES = 600
LEAST_LINES = 600
"""Of all runs, however soon the last kill comes."""
START = 1.8e9


@dataclass
class Outcome:
    runs: int
    kills: dict[str, int]
    lines: int
    values: int
    """That are the same in the folders and in the store."""
    rows_in_engine: int
    """With those that came twice."""


class GatewayProcess:
    """One of several, behind no balancer but chance."""

    def __init__(self, engine: Engine, database: str = "fleet") -> None:
        self._store = engine.address(database)
        self.port = free_port()
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "trainvitals", "gateway", "--store", self._store]
        self._process = subprocess.Popen([*command, "--port", str(self.port)], stderr=subprocess.DEVNULL)
        # One that starts while the engine is away ends at once, and nobody here would start it again.
        wait_until(self._listens, "the gateway")

    def _listens(self) -> bool:
        assert self._process.poll() is None, "the gateway has ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Training:
    """Appends lines, begins new files, seals old ones; ships what is there to any of the gateways."""

    def __init__(self, folder: Path, gateways: list[GatewayProcess], chance: random.Random) -> None:
        self.folder = folder
        self.lines = 0
        self._gateways = gateways
        self._chance = chance
        self._ends = threading.Event()
        folder.mkdir(parents=True)
        about = {"format": 1, "id": folder.name, "project": folder.parent.name, "status": "running"}
        write_run(folder, RunFile.parse({**about, "created": format_time(START), "started": format_time(START)}))
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._log, self._ship)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No more lines; returns when all are shipped."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _log(self) -> None:
        descriptor, number, path = -1, 0, Path()
        while not self._ends.is_set():
            if self.lines % FILE_LINES == 0:
                if descriptor >= 0:
                    os.close(descriptor)
                    if self._chance.random() < 0.7:
                        seal(path)
                number += 1
                path = self.folder / FileName("training", 1, f"20261118_{number:06d}", rank=0).jsonl
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            row = {"step": self.lines, "loss": self._chance.gauss(1, 0.1), "lr": 1e-3 / (1 + self.lines)}
            if self.lines % 101 == 0:
                row["loss"] = float("nan")
            os.write(descriptor, encode_line({"timestamp": format_time(START + self.lines), **row}))
            self.lines += 1
            time.sleep(0.001)

    def _ship(self) -> None:
        shipment = RunShipment(self.folder, None)
        while True:
            ended = self._ends.is_set() and not self._threads[0].is_alive()
            gateway = FarGateway(GatewayAccess(self._chance.choice(self._gateways).address, "env:NO_TOKEN"))
            with contextlib.suppress(NotNow):
                while shipment.ship(gateway):
                    pass
                if ended and shipment.has_all:
                    return
            if self._chance.random() < 0.1:  # the agent is killed, and another one goes on
                shipment = RunShipment(self.folder, None)
            time.sleep(0.05)


def run_storm(place: Path, runs: int, kills: int, seed: int = 1) -> Outcome:
    """Raises AssertionError at the first value that differs."""
    chance = random.Random(seed)
    with run_debian(place / "engine") as engine:
        opened = engine.open("fleet")
        schema.prepare(opened)
        gateways = [GatewayProcess(engine) for _ in range(2)]
        names = [place / "runs" / "storm" / f"20261118-0600{number:02d}-run-aaaa" for number in range(runs)]
        trainings = [Training(folder, gateways, random.Random(seed + number)) for number, folder in enumerate(names)]
        done = {"engine": 0, "gateway": 0}
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0.2, 1.0))
                what = "engine" if chance.random() < 0.3 else "gateway"
                victim: Engine | GatewayProcess = engine if what == "engine" else chance.choice(gateways)
                victim.kill()
                victim.start()
                done[what] += 1
            wait_until(lambda: sum(training.lines for training in trainings) > LEAST_LINES, "enough lines")
            for training in trainings:
                training.end()
        finally:
            for gateway in gateways:
                gateway.kill()
        values = sum(_compare(training, StoreRuns(Store(opened))) for training in trainings)
        rows = int(opened.execute("SELECT count() FROM points").strip())
        return Outcome(runs, done, sum(training.lines for training in trainings), values, rows)


def _compare(training: Training, runs: StoreRuns) -> int:
    mine, theirs = RunReader(training.folder), runs.open(training.folder.name)
    compared = 0
    for name in ("loss", "lr"):
        (expected,), (found,) = mine.series([name]), theirs.series([name])
        assert expected.total == training.lines
        assert np.array_equal(found.x, expected.x)
        assert np.array_equal(found.y, expected.y, equal_nan=True)
        compared += found.total
    assert theirs.damage() == mine.damage()
    return compared


if __name__ == "__main__":
    runs, kills = (int(word) for word in [*sys.argv[1:], "20", "100"][:2])
    with tempfile.TemporaryDirectory() as place:
        print(run_storm(Path(place), runs, kills))
