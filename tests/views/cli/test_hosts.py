"""`--host`: the commands that show runs, with a machine behind a real ssh server and one that is down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_runs import make_run
from sshd import PROGRAM, SshWorld


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshWorld]:
    place = tmp_path_factory.mktemp("hosts")
    world = SshWorld(place / "ssh")
    for number, name in enumerate(("one", "two")):
        make_run(place / "runs", name, at=1_800_000_000.0 + number, status="finished", config={"lr": number})
    world.add("gpu1", {"TRAINVITALS_DIR": str(place / "runs"), "TRAINVITALS_RUNTIME_DIR": str(place / "far")})
    yield world
    world.end()


@pytest.fixture
def trainvitals(world: SshWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("PATH", world.path)
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("TRAINVITALS_REMOTE_COMMAND", PROGRAM)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, "-m", "trainvitals", *words], capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_runs_of_another_machine_are_listed_shown_reported_compared_and_exported(
    trainvitals: object, world: SshWorld, tmp_path: Path
) -> None:
    assert callable(trainvitals)
    listed = trainvitals("runs", "--host", "gpu1", "--host", "nowhere.invalid")
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [row[0] for row in rows[1:]] == ["one", "two"] and all("gpu1" in row for row in rows[1:])
    assert "machine" in rows[0]
    assert "nowhere.invalid is down: Could not resolve hostname" in listed.stderr
    found = json.loads(trainvitals("runs", "--host", "gpu1", "--json").stdout)
    assert [row["folder"].startswith("gpu1:/") for row in found] == [True, True]
    assert "loss" in trainvitals("runs", "show", "two", "--host", "gpu1").stdout
    trainvitals("report", "gpu1:latest", "--host", "gpu1", "-o", "far.md", "--format", "md")
    assert "two" in (tmp_path / "far.md").read_text()
    assert "lr" in trainvitals("compare", "one", "two", "--host", "gpu1").stdout
    for words in (("one", "lr>0"), ("lr>=0",), ("gpu1:one", "config.lr=1")):
        searched = json.loads(trainvitals("compare", *words, "--host", "gpu1", "--json").stdout)
        assert [row["name"] for row in searched["runs"]] == ["one", "two"], words
    exported = trainvitals("export", "one", "--host", "gpu1", "--format", "csv").stdout
    own = trainvitals("export", str(world.place.parent / "runs" / "p" / "one"), "--format", "csv").stdout
    assert exported == own and len(own.splitlines()) == 4
    once = trainvitals("top", "--once", "--host", "gpu1").stdout
    assert "1 machine" in once and "gpu1" in once


def test_the_list_of_machines_may_be_a_setting(trainvitals: object, tmp_path: Path) -> None:
    assert callable(trainvitals)
    (tmp_path / "trainvitals.yaml").write_text("hosts: [gpu1]\n")
    make_run(tmp_path / "own", "mine")
    assert [row["name"] for row in json.loads(trainvitals("runs", "--json").stdout)] == ["one", "two"]
    only_here = json.loads(trainvitals("runs", "--json", "--host", "local").stdout)
    assert [row["name"] for row in only_here] == ["mine"]
    both = json.loads(trainvitals("runs", "--json", "--host", "local", "--host", "gpu1").stdout)
    assert sorted(row["name"] for row in both) == ["mine", "one", "two"]


def test_what_cannot_be_done_is_said(trainvitals: object) -> None:
    assert callable(trainvitals)
    assert "'gpu1;id' is not a machine" in trainvitals("runs", "--host", "gpu1;id", code=2).stderr
    assert "is not a machine" in trainvitals("top", "--once", "--host=-oProxyCommand=id", code=2).stderr
    down = trainvitals("runs", "--host", "nowhere.invalid", code=1)
    assert "nowhere.invalid is down" in down.stderr and "no runs" not in down.stderr and down.stdout == ""
    assert "no run 'none' in gpu1" in trainvitals("runs", "show", "none", "--host", "gpu1", code=1).stderr
    missed = trainvitals("compare", "lr>5", "--host", "gpu1", "--host", "nowhere.invalid", code=2).stderr
    assert "no run matches 'lr>5'" in missed and "nowhere.invalid is down" in missed
    assert "no run 'nix'" in trainvitals("compare", "one", "gpu1:nix", "--host", "gpu1", code=1).stderr
    assert "need at least two runs" in trainvitals("compare", "lr=0", "--host", "gpu1", code=2).stderr
    refused = trainvitals("serve", "--host", "gpu1", "--allow-edit", code=2).stderr
    assert "--allow-edit works only with runs of this machine" in refused
    archive = trainvitals("export", "one", "--host", "gpu1", "--format", "zip", "-o", "x.zip", code=2).stderr
    assert "an archive requires a run folder on this machine" in archive
