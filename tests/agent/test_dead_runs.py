"""Registrations that nobody is behind any more: hundreds of them, and the living do not wait."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from trainvitals import runtime
from trainvitals.agent.dead_runs import AT_ONCE, Backlog
from trainvitals.agent.log import Log
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile

NOBODY = 2**22 + 1
"""No process has this number."""


def registration(run_id: str, folder: Path, rank: int = 0) -> Registration:
    return Registration(
        run_id=run_id,
        folder=str(folder),
        rank=rank,
        pid=NOBODY,
        pid_start=1.0,
        host=runtime.host_name(),
        settings={"interval": 0.05},
    )


@pytest.fixture
def backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    return Backlog(Log(tmp_path / "agent.log").bind())


def leave(folder: Path, run_id: str, *, ranks: int = 1) -> list[tuple[Path, Registration]]:
    found = [registration(run_id, folder, rank) for rank in range(ranks)]
    return [(registrations.register(item), item) for item in found]


def build_silence(folder: Path) -> Path:
    """A library under which nothing in a folder named `silent` can be opened, nor refused."""
    library = folder / "silence.so"
    source = Path(__file__).parent / "silent_folder.c"
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.promise("hundreds of dead runs after a crash of the machine", "a new run is sampled at once")
def test_a_new_run_is_sampled_while_hundreds_of_dead_ones_wait(machine: Any, tmp_path: Path) -> None:
    for number in range(500):
        leave(tmp_path / "removed" / f"r{number}", f"r{number}")
    silent = tmp_path / "silent"
    for number in range(AT_ONCE // 2):
        (silent / f"s{number}").mkdir(parents=True)
        leave(silent / f"s{number}", f"s{number}")
    dead = [tmp_path / "dead" / f"d{number}" for number in range(4)]
    for folder in dead:
        folder.mkdir(parents=True)
        run_folder.write_run(folder, RunFile.parse({"id": folder.name, "status": "running", "attempt": 1}))
        leave(folder, folder.name)
    training = machine.train("while True: time.sleep(0.05); run.log({'loss': 1.0})", simulate_gpus=2, interval=0.1)

    machine.start_agent(LD_PRELOAD=str(build_silence(tmp_path)))
    wait_until(lambda: len(training.rows("gpu")) >= 4 and training.rows("system"), "samples of the new run")
    assert {item.folder for _, item in registrations.read_all()} >= {str(path) for path in silent.iterdir()}
    wait_until(
        lambda: all((runtime.read_json(folder / "run.json") or {})["status"] == "crashed" for folder in dead),
        "the end of the dead runs",
    )

    def dropped() -> int:
        return sum(line["count"] for line in machine.log_lines() if "without a run folder" in line["message"])

    wait_until(lambda: dropped() == 500, lambda: f"500 removed registrations; there were {dropped()}")
    lines = machine.log_lines()
    assert not any("cannot write" in line["message"] for line in lines)
    assert len(lines) < 200 and not (tmp_path / "removed").exists()


def test_a_registration_whose_folder_is_gone_is_dropped_and_counted(backlog: Backlog, tmp_path: Path) -> None:
    entries = leave(tmp_path / "gone", "a", ranks=3)
    backlog.put(entries)
    assert backlog.next([]) == []
    wait_until(lambda: not registrations.read_all(), "the registrations to go")
    log = tmp_path / "agent.log"
    wait_until(lambda: log.exists() and '"count":3' in log.read_text(), "the line that says so")
    assert backlog.take(entries[0][1].folder) == []


def test_the_ranks_of_a_dead_run_are_handed_out_together_and_each_run_once(backlog: Backlog, tmp_path: Path) -> None:
    for number in range(AT_ONCE + 3):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        backlog.put(leave(folder, f"run{number}", ranks=2))
    first: list[Any] = []
    wait_until(lambda: first.extend(backlog.next([])) or len(first) >= AT_ONCE, "the first few")
    assert all(len(entries) == 2 for entries in first)  # all ranks of a run together
    names = [entries[0][1].run_id for entries in first]
    assert len(set(names)) == len(names)


def test_no_more_are_handed_out_than_there_is_room_for(
    backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    for number in range(3):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        backlog.put(leave(folder, f"run{number}"))
    full = [moment] * AT_ONCE
    backlog.next(full)
    for thread in threading.enumerate():
        if thread.name == "backlog":
            thread.join()
    assert backlog.next(full) == []
    (only,) = backlog.next(full[1:])
    assert only[0][1].run_id == "run2"
    moment += 60.0  # those under way hang: they do not hold up the rest
    assert [entries[0][1].run_id for entries in backlog.next(full)] == ["run1", "run0"]


def test_a_dead_rank_of_a_run_that_lives_is_taken_out_of_turn(backlog: Backlog, tmp_path: Path) -> None:
    entries = leave(tmp_path, "run", ranks=2)
    backlog.put(entries)
    backlog.forget(*entries[0])
    assert backlog.take(str(tmp_path)) == entries[1:]
    assert backlog.take(str(tmp_path)) == []
