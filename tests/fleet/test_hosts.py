"""Agents of several hosts, a balancer and two gateways, as in a cluster: links are cut and healed, gateways killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from engines import Engine
from hosts import Host, make_hosts, run_balancer
from storm import GatewayProcess
from waiting import wait_until

from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.journal import folder as run_folder
from trainvitals.journal.reader import RunReader

TRAINING = """
import os, sys, time, trainvitals
run = trainvitals.init(project="hosts", capture_git=False, rotate_size_mb=0.05, gateway_interval=0.2)
step = 0
while not os.path.exists(sys.argv[1]):
    run.log({"loss": 1 / (step + 3), "odd": float("nan") if step % 7 == 0 else step}, step=step)
    step += 1
    time.sleep(0.005)
run.finish()
"""


class Training:
    """On a host of its own, with its own agent and its own disk."""

    def __init__(self, host: Host, port: int, place: Path) -> None:
        self.host = host
        self._runs = place / host.name / "runs"
        self._stop = place / host.name / "stop"
        self._stop.parent.mkdir()
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRAINVITALS_")},
            "TRAINVITALS_DIR": str(self._runs),
            "TRAINVITALS_RUNTIME_DIR": str(place / host.name / "runtime"),
            "TRAINVITALS_GATEWAY": f"http://{host.address}:{port}",
            "TRAINVITALS_SOURCES": "system,process",
        }
        command = host.command([sys.executable, "-c", TRAINING, str(self._stop)])
        self.process = subprocess.Popen(command, env=self._environ, cwd=place, stderr=subprocess.DEVNULL)

    @property
    def folder(self) -> Path:
        return wait_until(lambda: next(iter(self._runs.glob("hosts/*/run.json")), None), "the run").parent

    def is_shipped(self) -> bool:
        """Whether its agent says that all is there."""
        return any(status.shipment.complete for status in run_folder.read_statuses(self.folder))

    def finish(self) -> None:
        self._stop.touch()
        self.process.wait()

    def end(self) -> None:
        self.finish()
        stop = [sys.executable, "-m", "trainvitals", "agent", "stop"]
        subprocess.run(self.host.command(stop), env=self._environ, check=False, capture_output=True)


@pytest.mark.promise(
    "links of hosts are cut and gateways behind a balancer killed",
    "every logged line is in the store once, with its value",
)
def test_cut_links_and_killed_gateways_lose_and_double_nothing(
    debian: Engine, prepare: Callable[[Engine], ClickHouse], tmp_path: Path
) -> None:
    opened = prepare(debian)
    store = StoreRuns(Store(opened))

    def count(training: Training) -> int:
        query = f"SELECT count() FROM points WHERE run = '{training.folder.name}' AND name = 'loss'"
        return int(opened.execute(query))

    def wait_for_more(*trainings: Training) -> None:
        for training in trainings:
            before = count(training)
            wait_until(lambda training=training, before=before: count(training) > before, training.host.name)  # type: ignore[misc]

    with ExitStack() as stack:
        hosts = stack.enter_context(make_hosts(3))
        gateways = [GatewayProcess(debian, opened.address.database) for _ in range(2)]
        for gateway in gateways:
            stack.callback(gateway.kill)
        addresses = [host.address for host in hosts]
        port = stack.enter_context(run_balancer(tmp_path / "balancer", addresses, [item.port for item in gateways]))
        trainings = []
        for host in hosts:
            trainings.append(Training(host, port, tmp_path))
            stack.callback(trainings[-1].end)
        first, second, third = trainings
        wait_for_more(*trainings)
        second.host.cut()
        gateways[0].kill()
        wait_for_more(first, third)
        gateways[0].start()
        third.host.cut()
        gateways[1].kill()
        wait_for_more(first)
        third.finish()  # a run that ends while nobody can be reached
        second.host.heal()
        third.host.heal()
        wait_for_more(second)
        gateways[1].start()
        for training in trainings:
            training.finish()
        for training in trainings:
            wait_until(training.is_shipped, f"all of {training.host.name}")
        for training in trainings:
            mine, theirs = RunReader(training.folder), store.open(training.folder.name)
            for name in ("loss", "odd"):
                (expected,), (found,) = mine.series([name]), theirs.series([name])
                assert expected.total > 50 and np.array_equal(found.x, expected.x)
                assert np.array_equal(found.y, expected.y, equal_nan=True)
            assert theirs.damage() == mine.damage()
            assert mine.statuses()[0].host == training.host.name
