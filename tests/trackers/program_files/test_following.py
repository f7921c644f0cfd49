"""Files of a program into its run: kills, several folders, tables that are begun again."""

from __future__ import annotations

import importlib
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from trainvitals import runtime, settings
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import new_registration
from trainvitals.journal.documents.run import COMMAND, new_run
from trainvitals.journal.follower import read_table
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter
from trainvitals.trackers.program_files import following
from trainvitals.trackers.program_files.following import FollowedRank
from trainvitals.trackers.program_files.notes import EVENT_FOLDER, EVENTS, TABLE, read_notes, write_note
from trainvitals.trackers.program_files.repeats import MOST_VALUES, Repeats, read_meaning
from trainvitals.trackers.tensorboard.writing import encode_event, encode_scalar


class Run:
    """A run of `trainvitals run` whose program writes files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run_folder.create(folder)
        file = new_run(folder.name, kind=COMMAND, project="p", name="n", facts={}, pid=os.getpid())
        run_folder.write_run(folder, file)
        self.settings = settings.resolve({}, environ={}, folder=Path("/"))
        self.begin()

    def begin(self) -> None:
        """Also after a kill: what was read and not saved is forgotten."""
        self.files = FollowedRank(self.folder, 0, self.settings)

    def note(self, kind: str, path: Path, offset: int = 0, opened: float | None = None) -> None:
        opened = time.time() if opened is None else opened
        write_note(self.folder, kind, str(path), rank=0, opened=opened, offset=offset)

    def take(self) -> list[tuple[int | None, dict[str, Any]]]:
        """All that is there; the rows of the run that came from files."""
        while self.files.look(read_notes(self.folder), is_over=True):
            continue
        return self.rows()

    def rows(self) -> list[tuple[int | None, dict[str, Any]]]:
        """Those that came from files by now."""
        rows = [row for file, row in read_table(self.folder, "training") if file.pid is not None]
        return [(row.pop("step", None), row) for row in rows if row.pop("timestamp")]

    def log(self, line: bytes) -> None:
        writer = LineWriter(self.folder, FileName("training", 1, ""))
        writer.append(line)
        writer.close()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "runs" / "p" / "20261117-120000-n-abcd")


def write_events(path: Path, *points: tuple[int, str, float]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        for step, tag, value in points:
            file.write(encode_event(time.time(), step, [encode_scalar(tag, value)]))
    return path


@pytest.mark.promise(
    "the process that follows the event files of a program is killed (kill -9)", "nothing is lost or duplicated"
)
def test_a_follower_that_is_killed_loses_and_doubles_nothing(run: Run, tmp_path: Path) -> None:
    path = write_events(tmp_path / "logs" / "events.out.tfevents.1", *((step, "a", step / 2) for step in range(5)))
    run.note(EVENTS, path)
    run.files.look(read_notes(run.folder))  # read and not written
    run.begin()
    assert run.take() == [(step, {"a": step / 2}) for step in range(5)]
    write_events(path, (5, "a", math.nan), (4, "a", 7.0))
    run.files.look(read_notes(run.folder))
    for held in run.files._held:
        run.files._write(held)  # written, and the position not saved
    run.begin()
    assert run.take() == [*((step, {"a": step / 2}) for step in range(5)), (5, {"a": "NaN"}), (4, {"a": 7.0})]


def test_several_folders_have_their_names_before_those_of_metrics(run: Run, tmp_path: Path) -> None:
    for folder in ("logs/train", "logs/validation", "logs/train/fold1", "elsewhere"):
        run.note(EVENTS, write_events(tmp_path / folder / "events.out.tfevents.1", (1, "a", 1.0)))
    assert [set(row) for _, row in run.take()] == [{"a"}, {"validation/a"}, {"fold1/a"}, {"elsewhere/a"}]


@pytest.mark.parametrize("package", ["torch.utils.tensorboard", "tensorboardX"])
def test_results_of_add_hparams_have_their_names_and_no_step(package: str, run: Run, tmp_path: Path) -> None:
    writer = importlib.import_module(package).SummaryWriter(str(tmp_path / "logs"))
    for step in range(3):
        writer.add_scalar("loss", step / 2, step)
    writer.add_hparams({"lr": 0.1}, {"hparam/accuracy": 0.5})
    writer.close()
    for path in sorted((tmp_path / "logs").rglob("events*"), key=lambda path: len(path.parts)):
        run.note(EVENTS, path)
    assert run.take() == [*((step, {"loss": step / 2}) for step in range(3)), (None, {"hparam/accuracy": 0.5})]


def test_of_a_folder_only_the_files_of_the_process_count(run: Run, tmp_path: Path) -> None:
    host, now = os.uname().nodename, int(time.time())
    for name in (f"{now}.{host}.{os.getpid()}.0.v2", f"{now}.{host}.1.0.v2", f"{now - 100}.{host}.{os.getpid()}.0.v2"):
        write_events(tmp_path / "logs" / f"events.out.tfevents.{name}", (1, name.partition(".")[2], 1.0))
    run.note(EVENT_FOLDER, tmp_path / "logs", opened=now)  # the name of a file has the second in which it was made
    assert [set(row) for _, row in run.take()] == [{f"{host}.{os.getpid()}.0.v2"}]


def test_a_host_follows_the_files_of_its_own_processes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_events(tmp_path / "events.out.tfevents.1", (1, "a", 1.0))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(runtime, "host_name", lambda: "another")
        run.note(EVENTS, path)
    assert run.take() == []
    run.note(EVENTS, path)
    assert run.take() == [(1, {"a": 1.0})]


def test_a_table_counts_from_where_the_program_began_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    run.note(TABLE, path)
    assert run.take() == []
    path.write_text("epoch,accuracy\n0,0.5\n")
    assert run.take() == [(0, {"accuracy": 0.5})]
    run.note(TABLE, path, offset=path.stat().st_size)  # a second fit() that appends
    with open(path, "a") as file:
        file.write("0,0.75\n")
    assert run.take()[1:] == [(0, {"accuracy": 0.75})]


def test_a_table_that_two_writers_share_is_read_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,accuracy\n0,0.5\n")
    run.note(TABLE, path)
    run.note(TABLE, path)
    assert run.take() == [(0, {"accuracy": 0.5})]


def test_what_the_run_has_is_not_taken_again_and_other_values_are_another_metric(run: Run, tmp_path: Path) -> None:
    run.log(b'{"timestamp":"2026-11-17T12:00:00.000Z","step":3,"loss":0.1,"gradient_norm":2.5}\n')
    path = tmp_path / "logs" / "events.out.tfevents.1"
    run.note(EVENTS, write_events(path, (3, "Loss/train", 0.1), (4, "train/grad_norm", 2.5), (3, "loss", 0.2)))
    assert run.take() == [(3, {"logged/loss": pytest.approx(0.2)})]


def test_what_the_run_logs_when_the_next_step_begins_is_waited_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST_WAIT_SECONDS", math.inf)
    path = write_events(tmp_path / "logs" / "events.out.tfevents.1", (0, "Loss/train", 0.25))
    run.note(EVENTS, path)
    registrations.register(new_registration(run.folder, os.getpid(), attempt=1, correlation_id="", settings={}))
    for _ in range(3):
        run.files.look(read_notes(run.folder))
    assert run.rows() == [], "the first step is not over"
    run.log(b'{"timestamp":"2026-11-17T12:00:00.000Z","step":0,"loss":0.25}\n')
    other = write_events(tmp_path / "other" / "events.out.tfevents.2", (0, "accuracy", 0.5))
    run.note(EVENTS, other)
    write_events(path, (1, "Loss/train", 0.125))
    for _ in range(3):
        run.files.look(read_notes(run.folder))
    assert run.rows() == [(0, {"other/accuracy": 0.5})], "the second step is not over"
    run.log(b'{"timestamp":"2026-11-17T12:00:01.000Z","step":1,"loss":0.125}\n')
    write_events(path, (2, "Loss/train", 0.5))
    run.files.look(read_notes(run.folder))
    monkeypatch.setattr(following, "MOST_WAIT_SECONDS", 0.0)
    run.files.look(read_notes(run.folder))
    assert run.rows()[1:] == [(2, {"Loss/train": 0.5})], "the run does not have it"


def test_a_file_that_is_gone_or_no_event_file_keeps_nobody_from_the_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(os.urandom(1000))
    run.note(EVENTS, tmp_path / "missing")
    run.note(EVENTS, tmp_path / "garbage")
    run.note(EVENTS, write_events(tmp_path / "events.out.tfevents.1", (1, "a", 1.0)))
    assert run.take() == [(1, {"a": 1.0})]


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("loss", "train/loss", True),
        ("Loss/train", "mean_loss", True),
        ("val_loss", "eval/loss", True),
        ("eval/loss", "evaluation_loss_vs_iterations", True),
        ("loss", "eval/loss", False),
        ("loss/generator", "loss/critic", False),
    ],
)
def test_names_that_mean_the_same(one: str, other: str, are_same: bool) -> None:
    assert (read_meaning(one) == read_meaning(other)) is are_same


def test_of_the_values_of_a_run_the_newest_are_remembered() -> None:
    repeats = Repeats()
    for step in range(MOST_VALUES + 10):
        repeats.add_row({"timestamp": "", "step": step, "loss": step, "rate": 0.5})
    assert len(repeats._order) <= MOST_VALUES
    assert repeats.has("loss", MOST_VALUES + 9, MOST_VALUES + 9, by_epoch=False)
    assert not repeats.has("rate", 3, 0.5, by_epoch=False) and repeats.has("rate", None, 0.5, by_epoch=False)
