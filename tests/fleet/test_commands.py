"""A training whose agent ships it, and every command that reads it from the store: as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from engines import Engine
from storm import GatewayProcess
from waiting import PATIENCE, free_port, wait_until

from trainvitals.fleet import tokens
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder import write_run

TRAINING = """
import math, sys, trainvitals
run = trainvitals.init(project="fleet", name=sys.argv[1], config={"lr": float(sys.argv[2])}, capture_git=False)
for step in range(300):
    run.log({"loss": math.exp(-step * float(sys.argv[2])) + 0.1, "accuracy": step / 300}, step=step)
run.finish()
"""


@pytest.fixture(scope="module")
def world(
    debian: Engine, prepare: Callable[[Engine], ClickHouse], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, str], Path, str]]:
    """Two runs that were shipped while they trained: (environment, their folder, the store)."""
    place = tmp_path_factory.mktemp("world")
    opened = prepare(debian)
    store = debian.address(opened.address.database)
    gateway = GatewayProcess(debian, opened.address.database)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRAINVITALS_")},
        "TRAINVITALS_DIR": str(place / "runs"),
        "TRAINVITALS_RUNTIME_DIR": str(place / "runtime"),
        "TRAINVITALS_GATEWAY": gateway.address,
        "TRAINVITALS_SOURCES": "system,process",
    }
    try:
        for name, rate in (("slow", "0.001"), ("fast", "0.05")):
            command = [sys.executable, "-c", TRAINING, name, rate]
            subprocess.run(command, env=environ, cwd=place, check=True, capture_output=True)
        runs = StoreRuns(Store(opened))
        wait_until(
            lambda: (
                [runs.describe(key).status for key in runs.list_keys()] == ["finished"] * 2
                and all(_is_whole(runs.open(key)) for key in runs.list_keys())
            ),
            "both runs in the store",
        )
        yield {**environ, "TRAINVITALS_DIR": str(place / "nothing here")}, place / "runs", store
    finally:
        stop = [sys.executable, "-m", "trainvitals", "agent", "stop"]
        subprocess.run(stop, env=environ, check=False, capture_output=True)
        gateway.kill()


def _is_whole(run: Reader) -> bool:
    """Whether all has come: the last is the status that says so."""
    loss = run.summary().get("loss")
    return loss is not None and loss.count == 300 and any(status.shipment.complete for status in run.statuses())


World = tuple[dict[str, str], Path, str]


def trainvitals(world: World, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "trainvitals", *words]
    done = subprocess.run(command, env=world[0], cwd=world[1].parent, text=True, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_runs_are_listed_searched_and_shown(world: World) -> None:
    listed = json.loads(trainvitals(world, "runs", "--json", "--store", world[2]))
    assert [(row["name"], row["status"], row["last_step"]) for row in listed] == [
        ("slow", "finished", 299), ("fast", "finished", 299)
    ]  # fmt: skip
    assert "fast" in trainvitals(world, "runs", "config.lr>0.01", "--store", world[2])
    assert "slow" not in trainvitals(world, "runs", "config.lr>0.01", "--store", world[2])
    shown = trainvitals(world, "runs", "show", "fast", "--store", world[2])
    assert "299" in shown and "0.1" in shown


def test_a_report_and_an_export_are_made_without_a_folder(world: World, tmp_path: Path) -> None:
    trainvitals(world, "report", "fast", "-o", str(tmp_path / "report.html"), "--store", world[2])
    assert (tmp_path / "report.html").stat().st_size > 50_000
    rows = trainvitals(world, "export", "fast", "--format", "jsonl", "-o", "-", "--store", world[2]).splitlines()
    folder = next((world[1] / "fleet").glob("*-fast-*"))
    written = [json.loads(line) for line in next(folder.glob("training_*.jsonl")).read_text().splitlines()]
    found = [json.loads(line) for line in rows]
    assert [(row["step"], row["loss"]) for row in found] == [(row["step"], row["loss"]) for row in written]


def test_runs_of_the_store_are_compared_and_drawn(world: World) -> None:
    found = json.loads(trainvitals(world, "compare", "slow", "fast", "--json", "--store", world[2]))
    assert "loss" in json.dumps(found)
    frame = trainvitals(world, "top", "fast", "--once", "--store", world[2])
    assert "fast" in frame and "loss" in frame


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "slow", "--all"),
        ("analyze", "slow", "--baseline", "fast"),
        ("analyze", "fast", "--earlier", "1"),
        ("alerts", "list", "slow"),
        ("alerts", "history", "slow", "--all", "--json"),
    ],
)
def test_the_store_answers_what_the_folder_does(world: World, words: tuple[str, ...]) -> None:
    assert trainvitals(world, *words, "--store", world[2]) == trainvitals(world, *words, "--dir", str(world[1]))


def test_the_store_can_be_a_setting(world: World) -> None:
    environ = {**world[0], "TRAINVITALS_STORE": "env:FLEET", "FLEET": world[2]}
    assert "slow" in trainvitals((environ, *world[1:]), "runs")


def test_runs_are_removed_from_the_store(world: World, tmp_path: Path) -> None:
    gateway = world[0]["TRAINVITALS_GATEWAY"]
    ids = [f"20251118-06000{number}-old{number}-aaaa" for number in range(2)]
    for name in ids:
        about = {"format": 1, "id": name, "project": "fleet", "name": name[16:20], "status": "finished"}
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, RunFile.parse({**about, "created": format_time(1.7e9)}))
        trainvitals(world, "export", str(tmp_path / name), "--to", "gateway", gateway)
    assert "--yes" in trainvitals(world, "runs", "rm", "old0", "--store", world[2], code=2)
    assert ids[0] in trainvitals(world, "runs", "--store", world[2])
    assert "is not PROJECT/ID" in trainvitals(world, "runs", "rm", "old1", "--gateway", gateway, code=2)
    unknown = trainvitals(world, "runs", "rm", "fleet/none", "--gateway", gateway, "--yes", code=1)
    assert "fleet/none was not removed" in unknown and "there is no run 'none'" in unknown
    removed = trainvitals(world, "runs", "rm", "old0", "--store", world[2], "--yes")
    assert removed == f"removed {world[2]}/fleet/{ids[0]}\n"
    removed = trainvitals(world, "runs", "rm", f"fleet/{ids[1]}", "--gateway", gateway, "--yes")
    assert removed == f"removed fleet/{ids[1]}\n"
    assert not any(name in trainvitals(world, "runs", "--store", world[2]) for name in ids)
    again = trainvitals(world, "export", str(tmp_path / ids[1]), "--to", "gateway", gateway, code=1)
    assert f"run '{ids[1]}' was removed from the store" in again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs", "--store", "clickhouse://127.0.0.1:1/x"), "cannot reach clickhouse://127.0.0.1:1/x"),
        (("runs", "--store", "mysql://h/x"), "clickhouse://HOST:8123/DATABASE"),
        (("report", "nothing", "--store", "{store}"), "no run 'nothing'"),
        (("diagnose", "slow", "--keep", "--store", "{store}"), "--keep is for runs in a folder of this machine"),
        (("serve", "--allow-edit", "--store", "{store}"), "--allow-edit works only with runs of this machine"),
    ],
)
def test_what_cannot_work_is_said(words: tuple[str, ...], said: str, world: World) -> None:
    printed = trainvitals(
        world,
        *(word.format(store=world[2]) for word in words),
        code=2 if {"serve", "--keep"} & set(words) or "mysql" in words[-1] else 1,
    )
    assert said in printed and "Traceback" not in printed


def test_viewers_of_a_server_see_their_projects_only(world: World, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    given = {project: tokens.add(file, project, "read", [project]) for project in ("fleet", "other")}
    port = free_port()
    command = [sys.executable, "-m", "trainvitals", "serve", "--port", str(port), "--store", world[2]]
    server = subprocess.Popen([*command, "--tokens", str(file)], env=world[0], stderr=subprocess.DEVNULL)

    def count(project: str) -> int | None:
        headers = {"Authorization": f"Bearer {given[project]}"}
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/runs", headers=headers, timeout=PATIENCE)
        except httpx.TransportError:
            return None
        return len(answer.json()["runs"]) if answer.status_code == 200 else None

    try:
        assert wait_until(lambda: count("fleet"), "the server") == 2
        assert count("other") == 0
    finally:
        server.kill()
        server.wait()
    refused = trainvitals(world, "serve", "--tokens", str(file), code=2)
    assert "--tokens requires --store" in refused
    assert "anyone would see" in trainvitals(
        world, "serve", "--tokens", str(file), "--no-token", "--store", world[2], code=2
    )
