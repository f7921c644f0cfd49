"""The runs of several machines as one list."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from far_runs import make_run

from trainvitals.errors import MachineError, RunNotFound
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.lab.channels import Channel, DirectChannel
from trainvitals.lab.far import FarSide
from trainvitals.lab.machines import Machine
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns, open_machines, summarize_trouble
from trainvitals.views.cli.hosts import wait_for


def open_folders(**roots: Path) -> MachineRuns:
    def connect(root: Path) -> Callable[[], Channel]:
        return lambda: DirectChannel(FarSide(FolderRuns(root), dict))

    runs = MachineRuns([Machine(parse_place(name), connect(root), interval=0.05) for name, root in roots.items()])
    runs.start()
    runs.wait(600)
    return runs


def test_runs_of_all_machines_by_age(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "one", at=1_800_000_000.0)
    make_run(tmp_path / "b", "two", at=1_800_000_100.0)
    make_run(tmp_path / "a", "three", at=1_800_000_200.0)
    runs = open_folders(gpu1=tmp_path / "a", gpu2=tmp_path / "b")
    assert runs.list_keys() == ["gpu1:one", "gpu2:two", "gpu1:three"]
    assert runs.place == "gpu1, gpu2"
    assert [runs.describe(key).name for key in runs.list_keys()] == ["one", "two", "three"]
    runs.stop()


def test_two_runs_of_one_name_on_two_machines_are_two(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "one")
    make_run(tmp_path / "b", "one", at=1_800_000_100.0)
    runs = open_folders(gpu1=tmp_path / "a", gpu2=tmp_path / "b")
    assert runs.list_keys() == ["gpu1:one", "gpu2:one"]
    with pytest.raises(RunNotFound, match="matches 2 runs: gpu1:one, gpu2:one"):
        runs.find("on")
    assert (runs.find("gpu2:one"), runs.find("gpu2:on"), runs.find("latest")) == ("gpu2:one", "gpu2:one", "gpu2:one")
    assert runs.find("gpu1:latest") == "gpu1:one"
    with pytest.raises(RunNotFound, match="no run 'nix' in gpu1, gpu2"):
        runs.find("nix")
    runs.stop()


def test_a_run_on_a_shared_file_system_is_one_and_any_of_its_machines_reads_it(tmp_path: Path) -> None:
    make_run(tmp_path / "shared", "one")
    runs = open_folders(gpu1=tmp_path / "shared", gpu2=tmp_path / "shared")
    assert runs.list_keys() == ["gpu1:one"]
    runs.machines[0].stop()
    runs.machines[0]._fail(MachineError("switched off"))
    assert runs.open("gpu1:one").names() == ["loss"]
    runs.machines[1]._fail(MachineError("switched off"))
    with pytest.raises(MachineError, match="gpu1 is down: switched off"):
        runs.open("gpu1:one").names()
    assert [error.message for error in summarize_trouble(runs.states)] == [
        "gpu1 is down: switched off",
        "gpu2 is down: switched off",
    ]
    runs.stop()


def test_who_is_waited_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "here", "one")
    may_answer = threading.Event()

    def connect() -> Channel:
        may_answer.wait()
        return DirectChannel(FarSide(FolderRuns(tmp_path / "here"), dict))

    runs = MachineRuns([Machine(parse_place("gpu1"), connect, patient=True)])
    monkeypatch.setattr("trainvitals.lab.machines.SLOW_SECONDS", 0.01)
    monkeypatch.setattr("trainvitals.views.cli.hosts.print_line", lambda line: (said.append(line), may_answer.set()))
    said: list[str] = []
    runs.start()
    wait_for(runs)
    runs.stop()
    assert said == ["waiting for gpu1 to answer"]
    assert runs.list_keys() == ["gpu1:one"]


def test_this_machine_may_be_one_of_them(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    runs = open_machines([parse_place("local")], "trainvitals", tmp_path, lambda: {"origin": "agent", "age": 1.0})
    runs.start()
    runs.wait(600)
    assert runs.list_keys() == ["local:one"]
    assert runs.open("local:one").series(["loss"])[0].x.tolist() == [0.0, 1.0, 2.0]
    assert runs.states[0].hardware.origin == "agent"
    runs.stop()
