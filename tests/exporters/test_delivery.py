"""What is left of a run that has ended: sent from its files, now or by the next agent."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import made_runs
import pytest
from waiting import PATIENCE, wait_until

from trainvitals.agent import late_exports, status
from trainvitals.agent.late_exports import LateExports, list_unsent
from trainvitals.agent.log import Log
from trainvitals.exporters.delivery import deliver
from trainvitals.exporters.registry import REGISTRY, ExporterRow
from trainvitals.exporters.rows import DeliveryLimits, RowRunner, RunDescription, RunEnd, RunRow
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import RankStatus, RowExport, Status
from trainvitals.journal.follower import Relay
from trainvitals.journal.segment_writer import seal
from trainvitals.settings import Settings, resolve

HOST = "here"
END = RunEnd("finished")


class Probe:
    """An exporter of rows that may be away."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ends: list[RunEnd | None] = []
        self.is_away = False

    def open(self, run: RunDescription) -> None:
        self._check()

    def write(self, rows: Sequence[RunRow]) -> None:
        self._check()
        self.steps += [row.values["step"] for row in rows]

    def close(self, end: RunEnd | None) -> None:
        self._check()
        self.ends.append(end)

    def _check(self) -> None:
        if self.is_away:
            raise OSError("away")


def make_run(folder: Path, *, sealed: bool = True, **more: Any) -> Path:
    """Ended, with 300 lines in three files, the oldest of them sealed."""
    made_runs.make_run(folder, process={"host": HOST}, **more)
    for number in range(3):
        steps = range(100 * number, 100 * number + 100)
        rows = [{"step": step, "loss": 1.0} for step in steps]
        path = made_runs.write(folder, rows, f"training_metrics_20260101_00000{number}")
        if number == 0 and sealed:
            seal(path)
    run_folder.write_status(folder, Status(host=HOST, ranks={"0": RankStatus()}))
    return folder


def start(probe: Probe, folder: Path, known: RowExport | None = None) -> RowRunner:
    run = RunDescription(folder.name, folder, HOST, 1, RunFile())
    return RowRunner("probe", lambda: probe, run, known, limits=DeliveryLimits(10, 0.001, PATIENCE))


def test_all_rows_and_the_end_are_handed_over_and_saved(tmp_path: Path) -> None:
    folder, probe, saved = make_run(tmp_path / "p" / "r"), Probe(), list[Mapping[str, RowExport]]()
    relay, stop = Relay(folder), threading.Event()
    assert deliver([start(probe, folder)], relay, END, saved.append, stop=stop, patience=PATIENCE)
    assert (probe.steps, probe.ends) == (list(range(300)), [END])
    assert saved[-1]["probe"].complete and saved[-1]["probe"].written == 300
    again, nothing = Probe(), list[Mapping[str, RowExport]]()
    runner = start(again, folder, saved[-1]["probe"])
    assert deliver([runner], Relay(folder), END, nothing.append, stop=stop, patience=PATIENCE)
    assert (again.steps, again.ends) == ([], [END])


def test_one_that_stays_away_is_given_up_and_goes_on_another_time(tmp_path: Path) -> None:
    folder, probe, saved = make_run(tmp_path / "p" / "r"), Probe(), list[Mapping[str, RowExport]]()
    probe.is_away = True
    run = RunDescription(folder.name, folder, HOST, 1, RunFile())
    runner = RowRunner("probe", lambda: probe, run, limits=DeliveryLimits(10, 0.001, 0.0))
    wait_until(lambda: runner.describe().trouble, "a first try")
    assert not deliver([runner], Relay(folder), END, saved.append, stop=threading.Event(), patience=0.2)
    assert not saved[-1]["probe"].complete and "away" in (saved[-1]["probe"].trouble or "")
    probe.is_away = False
    runner = start(probe, folder, saved[-1]["probe"])
    assert deliver([runner], Relay(folder), END, saved.append, stop=threading.Event(), patience=PATIENCE)
    assert (probe.steps, probe.ends) == (list(range(300)), [END])


# -- by the agent


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Probe:
    """Asked for by the settings of every run."""
    found = Probe()
    row = ExporterRow("probe", "probing", "rows")
    monkeypatch.setattr(REGISTRY, "own", (row,))
    monkeypatch.setattr("trainvitals.exporters.start._create", lambda wish, run: found)
    monkeypatch.setattr("trainvitals.exporters.rows.FIRST_PAUSE", 0.01)
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    return found


def settings() -> Settings:
    return resolve({"export": {"probe": "there"}}, environ={}, folder=Path("/"))


def make_late() -> LateExports:
    return LateExports(HOST, Log(Path(os.devnull)).bind())


def test_the_agent_sends_the_rest_of_an_ended_run(probe: Probe, tmp_path: Path) -> None:
    folder, late = make_run(tmp_path / "p" / "r"), make_late()
    late.add(folder, settings(), {})
    wait_until(lambda: not late.busy, "the rest")
    assert (probe.steps, probe.ends) == (list(range(300)), [END])
    assert status.read_own(folder, HOST).row_exports["probe"].complete
    assert list_unsent() == []


@pytest.mark.promise("the agent is ended before a tracker has all of a run", "the next agent sends the rest")
def test_the_next_agent_takes_up_what_this_one_could_not_send(probe: Probe, tmp_path: Path) -> None:
    folder, late = make_run(tmp_path / "p" / "r"), make_late()
    probe.is_away = True
    late.add(folder, settings(), {})
    assert late.busy
    late.close()
    assert list_unsent() == [folder]
    note = json.loads(next((tmp_path / "runtime" / "exports").glob("*.json")).read_text())
    assert note["settings"]["export"] == {"probe": "there"}
    probe.is_away = False
    after = make_late()
    assert after.take_up(lambda values: settings()) == 1
    wait_until(lambda: not after.busy, "the rest")
    assert (probe.steps, probe.ends[-1]) == (list(range(300)), END)
    assert list_unsent() == []


def test_runs_of_one_name_in_two_folders_are_both_remembered(probe: Probe, tmp_path: Path) -> None:
    one, other = (make_run(tmp_path / place / "p" / "r") for place in ("one", "other"))
    late = make_late()
    probe.is_away = True
    late.add(one, settings(), {})
    late.add(other, settings(), {})
    late.adopt(one)
    late.close()
    assert list_unsent() == [other]


def test_a_run_that_is_watched_again_is_left_to_its_watch(probe: Probe, tmp_path: Path) -> None:
    folder, late = make_run(tmp_path / "p" / "r"), make_late()
    probe.is_away = True
    late.add(folder, settings(), {})
    late.adopt(folder)
    assert not late.busy and list_unsent() == []


def test_a_run_that_was_removed_or_goes_on_or_is_somebody_elses_is_left_alone(probe: Probe, tmp_path: Path) -> None:
    gone, living, foreign = (tmp_path / "p" / name for name in ("gone", "living", "foreign"))
    make_run(living, status="running")
    make_run(foreign).chmod(0o777)
    late = make_late()
    for folder in (gone, living, foreign):
        late.add(folder, settings(), {})
    wait_until(lambda: not late.busy, "all of them")
    assert probe.steps == [] and list_unsent() == []


def test_many_runs_are_sent_a_few_at_a_time(probe: Probe, tmp_path: Path) -> None:
    late = make_late()
    probe.is_away = True
    for number in range(3 * late_exports.AT_ONCE):
        late.add(make_run(tmp_path / "p" / f"r{number}", sealed=False), settings(), {})
    assert sum(thread.name == "late exports" for thread in threading.enumerate()) <= late_exports.AT_ONCE
    probe.is_away = False
    wait_until(lambda: not late.busy, "all of them")
    assert len(probe.steps) == 3 * late_exports.AT_ONCE * 300
    assert list_unsent() == []
