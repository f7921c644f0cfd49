"""One run with ranks on two hosts and one folder that both see: what happens on one host is told on the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.lab.channels import DirectChannel
from trainvitals.lab.far import FarSide
from trainvitals.lab.machines import Machine
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns
from trainvitals.views.data.run_details import describe_run
from trainvitals.views.data.run_listing import list_json

TRAIN = """
import signal, sys, time
import trainvitals

stopped = []
signal.signal(signal.SIGUSR1, lambda *_: stopped.append(1))
run = trainvitals.init(project="p", name="two-nodes", interval=0.2, stall_after=1)
step = 0
while True:
    if not stopped:
        run.log({"loss": 1 / (step + 1)}, step=step)
        step += 1
    time.sleep(0.02)
"""


class Node:
    """A host with a name and a runtime folder of its own; its ranks start its agent."""

    def __init__(self, place: Path, name: str, rank: int) -> None:
        self.runtime = place / name
        environment = {
            **os.environ,
            "TRAINVITALS_DIR": str(place / "shared"),
            "TRAINVITALS_RUNTIME_DIR": str(self.runtime),
            "TRAINVITALS_AGENT_IDLE_TIMEOUT": "1s",
            "MASTER_ADDR": "node1",
            "MASTER_PORT": "29511",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
        }
        script = place / "train.py"
        script.write_text(TRAIN)
        command = f'hostname {name} && exec "$0" "$1"'
        words = ["unshare", "--uts", "sh", "-c", command, sys.executable, str(script)]
        self.process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not (self.runtime / "agent.json").exists(), "its agent to end")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    found = [Node(tmp_path, "node1", 0), Node(tmp_path, "node2", 1)]
    yield found
    for node in found:
        node.end()


def open_both(root: Path) -> MachineRuns:
    """Both machines, as somebody sees them who asks both."""
    runs = MachineRuns(
        [
            Machine(parse_place(name), lambda: DirectChannel(FarSide(FolderRuns(root), dict)), interval=0.1)
            for name in ("node1", "node2")
        ]
    )
    runs.start()
    runs.wait(600)
    return runs


@pytest.mark.promise(
    "a rank stalls and dies on another host of a run, in a folder that both see",
    "it is one run, and what happened to the rank, and where, is told on every page of both hosts",
)
def test_stall_and_death_of_a_rank_on_another_host_are_told(tmp_path: Path, nodes: list[Node]) -> None:
    root = tmp_path / "shared"
    (folder,) = wait_until(lambda: [path.parent for path in root.glob("p/*/run.json")], "the run")
    reader = RunReader(folder)

    def hosts() -> dict[str, set[Participant]]:
        return {status.host: set(status.participants()) for status in reader.statuses()}

    wait_until(
        lambda: hosts() == {"node1": {Participant.parse("0")}, "node2": {Participant.parse("1")}}, lambda: str(hosts())
    )
    # Before its second line a rank may take any time.
    wait_until(
        lambda: all((rank.lines or 0) > 5 for status in reader.statuses() for rank in status.participants().values()),
        "some steps",
    )
    runs = open_both(root)
    (key,) = wait_until(runs.list_keys, "the run on both machines")

    def row() -> Any:
        return list_json(runs, [key])[0]

    def rank(number: int) -> Any:
        ranks = describe_run(runs.open(key), key)["ranks"]
        return next((item for item in ranks if str(item["rank"]) == str(number)), {})

    nodes[1].process.send_signal(signal.SIGUSR1)
    wait_until(lambda: rank(1).get("state") in ("stalled", "hung"), lambda: str(rank(1)))
    wait_until(lambda: row()["status"] in ("stalled", "hung"), lambda: str(row()))
    assert (rank(0)["host"], rank(1)["host"]) == ("node1", "node2")

    nodes[1].process.kill()
    wait_until(lambda: [item for item in reader.events() if item.event == "rank_lost"], "its death")
    (lost,) = [item for item in reader.events() if item.event == "rank_lost"]
    assert lost.participant == Participant.parse("1")
    wait_until(lambda: rank(1).get("alive") is False, lambda: str(rank(1)))
    wait_until(lambda: any(alert.rule == "rank_lost" for alert in reader.alerts()), "the alert")
    assert rank(0)["alive"] is True and row()["live"]
    runs.stop()
