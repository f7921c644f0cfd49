"""Which files are closed, and sealing them in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_disk import FaultyDisk, build
from made_contexts import make_context
from made_runs import make_run
from waiting import wait_until

from trainvitals.agent import sealing
from trainvitals.agent.run_files import RunLines
from trainvitals.agent.sealing import Result, Sealer, SealingJob, Seals, find_closed
from trainvitals.analysis.gpu_use import GpuUses
from trainvitals.errors import JournalError
from trainvitals.journal import segment_writer
from trainvitals.journal.documents.rows import EventRow
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Follower
from trainvitals.journal.reader import RunReader

OLD, NEW = "training_metrics_20260101_000000.jsonl", "training_metrics_20260101_000001.jsonl"


def write(path: Path, lines: int = 10, age: float = 60.0) -> None:
    path.write_bytes(b"".join(encode_line({"timestamp": format_time(), "step": n, "loss": 1.0}) for n in range(lines)))
    os.utime(path, (time.time() - age, time.time() - age))


def closed(folder: Path, **more: Any) -> list[str]:
    given: dict[str, Any] = {"is_ours": lambda name: True, "ended": False, "min_bytes": 0, **more}
    return sorted(find_closed(folder, **given))


def test_of_a_living_run_all_but_the_newest_file_of_each_writer_are_closed(tmp_path: Path) -> None:
    for name in (OLD, NEW, "gpu_metrics_20260101_000000.jsonl", "events_20260101_000000.jsonl", "notes.txt"):
        write(tmp_path / name)
    write(tmp_path / "events_20260101_000001.jsonl")
    write(tmp_path / OLD.replace(".jsonl", ".rank1.jsonl"))
    assert closed(tmp_path) == [OLD]


def test_a_file_that_was_written_just_now_may_not_be_closed_yet(tmp_path: Path) -> None:
    write(tmp_path / OLD)
    write(tmp_path / NEW)
    written = (tmp_path / OLD).stat().st_mtime
    assert closed(tmp_path, now=written) == [] and closed(tmp_path, now=written + 60) == [OLD]


def test_of_an_ended_run_the_newest_is_closed_too_if_it_is_large_enough(tmp_path: Path) -> None:
    write(tmp_path / OLD)
    write(tmp_path / NEW, age=0.0)
    size = (tmp_path / NEW).stat().st_size
    assert closed(tmp_path, ended=True, min_bytes=size) == [OLD, NEW]
    assert closed(tmp_path, ended=True, min_bytes=size + 1) == [OLD]


def test_files_of_an_earlier_attempt_come_before_those_of_a_later_one(tmp_path: Path) -> None:
    later = "training_metrics_20250101_000000.attempt2.jsonl"  # the clock was set back meanwhile
    write(tmp_path / OLD)
    write(tmp_path / later)
    assert closed(tmp_path) == [OLD]


def test_files_of_other_machines_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / OLD)
    write(tmp_path / NEW)
    assert closed(tmp_path, is_ours=lambda name: False) == []


@pytest.fixture
def sealer() -> Any:
    found = Sealer()
    yield found
    found.end()


def seal(sealer: Sealer, job: SealingJob) -> list[Result]:
    done: list[list[Result]] = []
    sealer.submit(job, done.append)
    return list(wait_until(lambda: done, "the job")[0])


def test_a_job_seals_and_says_what_it_made(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD, lines=100)
    (tmp_path / NEW).write_bytes(b'{"timestamp":"2026-01-01T00:00:00Z","step":100,"loss":2.0}\nbroken\n')
    results = seal(sealer, SealingJob(str(tmp_path), (OLD, NEW)))
    assert [(row["file"], row["lines"], row["torn"]) for row in results] == [(OLD, 100, 0), (NEW, 1, 1)]
    assert not list(tmp_path.glob("*.jsonl")) and len(list(RunReader(tmp_path).rows())) == 101
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "segments").glob("*.parquet")} == {0o600}
    assert not sealer.busy


def test_a_file_that_cannot_be_sealed_is_kept_and_the_others_are_sealed(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD)
    (tmp_path / "segments").write_text("a file where the folder should be")
    first = seal(sealer, SealingJob(str(tmp_path), (OLD, "gone_metrics_20260101_000000.jsonl")))
    assert [row["file"] for row in first] == [OLD] and first[0]["error"] and (tmp_path / OLD).exists()
    (tmp_path / "segments").unlink()
    assert "error" not in seal(sealer, SealingJob(str(tmp_path), (OLD,), keep=True))[0]
    assert (tmp_path / OLD).exists()


@pytest.mark.promise("a sealer is killed midway", "the next one does its work")
def test_a_killed_sealer_says_so_and_the_next_one_does_its_work(tmp_path: Path, sealer: Sealer) -> None:
    done: list[list[Result]] = []

    def kill_in_the_middle() -> bool:
        """False if it was done before it could be killed."""
        shutil.rmtree(tmp_path / "segments", ignore_errors=True)
        write(tmp_path / OLD, lines=100_000)
        done.clear()
        sealer.submit(SealingJob(str(tmp_path), (OLD,)), done.append)
        wait_until(lambda: done or list(tmp_path.glob("segments/.sealing-*")), "the work to begin")
        if (child := next(iter(sealer._children), None)) is not None:
            child.send_signal(signal.SIGSTOP)
            is_stopped = psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD
            with contextlib.suppress(psutil.NoSuchProcess):
                wait_until(lambda: psutil.Process(child.pid).status() in is_stopped, "it to stop")
            is_in_the_middle = (tmp_path / OLD).exists() and list(tmp_path.glob("segments/.sealing-*"))
            child.send_signal(signal.SIGKILL if is_in_the_middle else signal.SIGCONT)
            if is_in_the_middle:
                return True
        wait_until(lambda: done, "the end of the job")
        return False

    wait_until(kill_in_the_middle, "a sealer killed in the middle")
    ((result,),) = wait_until(lambda: done, "the end of the job")
    assert result == {"file": OLD, "error": "the sealing process was killed by SIGKILL"}
    assert (tmp_path / OLD).exists() and list(tmp_path.glob("segments/.sealing-*"))
    assert seal(sealer, SealingJob(str(tmp_path), (OLD,)))[0]["lines"] == 100_000
    assert [path.suffix for path in sorted((tmp_path / "segments").iterdir())] == [".parquet", ".parquet"]


def test_a_file_whose_sealer_was_killed_before_removing_it_is_removed_by_the_next(tmp_path: Path) -> None:
    write(tmp_path / OLD)
    write(tmp_path / NEW)
    segment_writer.seal(tmp_path / OLD, keep=True)
    assert closed(tmp_path) == [OLD] and closed(tmp_path, keep=True) == []


def test_the_last_job_of_a_run_keeps_its_findings(tmp_path: Path, sealer: Sealer) -> None:
    folder = make_run(tmp_path / "runs" / "mnist" / "20260101-000000-old-abcd")
    write(folder / OLD)
    done: list[list[Result]] = []
    sealer.submit(SealingJob(str(folder), (), diagnose=True), done.append)
    wait_until(lambda: bool(done))
    kept = RunReader(folder).findings()
    assert kept is not None and kept.attempt == 1 and kept.not_judged


def test_the_last_job_of_a_run_removes_runs_that_are_too_old(tmp_path: Path, sealer: Sealer) -> None:
    for name in ("old", "new"):
        run = tmp_path / "p" / name
        run.mkdir(parents=True)
        (run / "run.json").write_text('{"format": 1, "status": "finished"}')
    past = time.time() - 1e6
    os.utime(tmp_path / "p" / "old" / "run.json", (past, past))
    results = seal(sealer, SealingJob(str(tmp_path / "p" / "new"), (), root=str(tmp_path), max_age=3600.0))
    assert results == [{"removed": [str(tmp_path / "p" / "old")]}]
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["new"]


def test_a_sealer_that_ends_leaves_files_as_they_are(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD, lines=200_000)
    done: list[list[Result]] = []
    sealer.submit(SealingJob(str(tmp_path), (OLD,)), done.append)
    sealer.submit(SealingJob(str(tmp_path), (OLD,)), done.append)
    sealer.end()
    wait_until(lambda: len(done) == 2, "both jobs to be given up")
    assert len(list(RunReader(tmp_path).rows())) == 200_000
    assert not list(tmp_path.glob("segments/.sealing-*"))


@pytest.mark.promise("the disk stalls while a file is sealed", "files of runs on other file systems are sealed")
def test_a_disk_that_stalls_holds_up_no_job_on_another(
    tmp_path: Path, small_disk: Path, sealer: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(build(tmp_path), tmp_path / "faulty")
    for name, value in disk.env().items():
        monkeypatch.setenv(name, value)  # for the sealer's children
    write(disk.folder / OLD)
    write(small_disk / OLD)
    disk.hold("open")
    held: list[list[Result]] = []
    sealer.submit(SealingJob(str(disk.folder), (OLD,)), held.append)
    wait_until(lambda: disk.count("open"), "the first job to be held up")
    assert seal(sealer, SealingJob(str(small_disk), (OLD,)))[0]["lines"] == 10
    assert not held and sealer.busy
    disk.heal()
    assert wait_until(lambda: held, "the first job")[0][0]["lines"] == 10


# -- the files of one run


class Run:
    """The seals of a run whose oldest files are all read."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        self.folder = folder
        self.behind: dict[str, list[Any]] = {}
        context = make_context(folder, sealer)
        self.seals = Seals(context, RunLines(context, 1, GpuUses()))

    def request(self) -> set[str]:
        """The files that are sealed at once."""
        before = set(self.folder.glob("*.jsonl"))
        self.seals.request(lambda file: True, lambda name: True, lambda name: self.behind.get(name, []))
        wait_until(lambda: not self.seals.busy, "the sealer")
        return {path.name for path in before - set(self.folder.glob("*.jsonl"))}

    def events(self) -> list[EventRow]:
        return [row for row in RunReader(self.folder).events() if row.event == "listener_behind"]

    def read(self, path: Path, first: int) -> list[int]:
        rows = wait_until(lambda: self.seals.read_sealed(path, first), "the segment to be opened")
        return [row["step"] for row in rows]


FILES = [f"training_metrics_20260101_00000{number}.jsonl" for number in range(4)]


@pytest.fixture
def run(tmp_path: Path, sealer: Sealer) -> Run:
    for name in FILES:
        write(tmp_path / name)
    return Run(tmp_path, sealer)


@pytest.mark.promise("an exporter is behind", "its file is not sealed until it has been read")
def test_a_file_waits_for_a_listener_that_is_behind_and_only_that_file(run: Run) -> None:
    run.behind = {FILES[1]: [Follower(run.folder, ())]}
    assert run.request() == {FILES[0], FILES[2]}
    assert run.request() == set() and run.events() == []
    run.behind = {}
    assert run.request() == {FILES[1]}


def test_a_listener_is_given_up_after_a_while_and_that_is_reported_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.behind = {FILES[0]: [Follower(run.folder, ())]}
    assert run.request() == {FILES[1], FILES[2]}
    monkeypatch.setattr(sealing, "HELD_SECONDS", -1.0)
    assert run.request() == {FILES[0]} and run.seals.given_up == 1
    (event,) = run.events()
    assert event.data == {"file": FILES[0], "listeners": "follower", "files": 1} and event.severity == "warning"


def test_when_too_much_waits_for_a_listener_the_oldest_is_sealed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (run.folder / FILES[0]).stat().st_size
    monkeypatch.setattr(sealing, "HELD_BYTES", 2 * size + 1)
    run.behind = {name: [Follower(run.folder, ())] for name in FILES}
    assert run.request() == {FILES[0]} and run.request() == set()


def test_the_rows_of_a_segment_are_read_by_another_process(run: Run, sealer: Sealer) -> None:
    seal(sealer, SealingJob(str(run.folder), (FILES[0],)))
    path = run.folder / "segments" / FILES[0].replace(".jsonl", ".parquet")
    assert run.read(path, 0) == list(range(10)) and run.read(path, 7) == [7, 8, 9]
    rows = wait_until(lambda: run.seals.read_sealed(path, 0), "the segment to be opened")
    assert next(rows)["step"] == 0
    rows.close()
    path.write_bytes(b"no Parquet")
    with pytest.raises(JournalError):
        run.read(path, 0)


def test_a_segment_that_was_read_to_its_end_before_it_was_made_needs_no_process(run: Run) -> None:
    assert run.request() == set(FILES[:3])
    path = run.folder / "segments" / FILES[0].replace(".jsonl", ".parquet")
    assert list(run.seals.read_sealed(path, 10) or [1]) == []
