"""Which files are closed, and sealing them in a process of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from trainvitals.agent.sealing import Job, Result, Sealer, find_closed
from trainvitals.journal import segments
from trainvitals.journal.encoding import encode_line, format_time
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
    write(tmp_path / OLD, age=0.0)
    write(tmp_path / NEW)
    assert closed(tmp_path) == [] and closed(tmp_path, now=time.time() + 60) == [OLD]


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


def seal(sealer: Sealer, job: Job) -> list[Result]:
    done: list[list[Result]] = []
    sealer.submit(job, done.append)
    return list(wait_until(lambda: done, "the job")[0])


def test_a_job_seals_and_says_what_it_made(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD, lines=100)
    (tmp_path / NEW).write_bytes(b'{"timestamp":"2026-01-01T00:00:00Z","step":100,"loss":2.0}\nbroken\n')
    results = seal(sealer, Job(str(tmp_path), (OLD, NEW)))
    assert [(row["file"], row["lines"], row["torn"]) for row in results] == [(OLD, 100, 0), (NEW, 1, 1)]
    assert not list(tmp_path.glob("*.jsonl")) and len(list(RunReader(tmp_path).rows())) == 101
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "segments").glob("*.parquet")} == {0o600}
    assert not sealer.busy


def test_a_file_that_cannot_be_sealed_is_kept_and_the_others_are_sealed(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD)
    (tmp_path / "segments").write_text("a file where the folder should be")
    first = seal(sealer, Job(str(tmp_path), (OLD, "gone_metrics_20260101_000000.jsonl")))
    assert [row["file"] for row in first] == [OLD] and first[0]["error"] and (tmp_path / OLD).exists()
    (tmp_path / "segments").unlink()
    assert "error" not in seal(sealer, Job(str(tmp_path), (OLD,), keep=True))[0]
    assert (tmp_path / OLD).exists()


def test_a_killed_sealer_says_so_and_the_next_one_does_its_work(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD, lines=100_000)
    done: list[list[Result]] = []
    sealer.submit(Job(str(tmp_path), (OLD,)), done.append)
    wait_until(lambda: list(tmp_path.glob("segments/.sealing-*")), "the work to begin")
    assert sealer._child is not None
    sealer._child.kill()
    ((result,),) = wait_until(lambda: done, "the end of the job")
    assert result == {"file": OLD, "error": "its process was killed by SIGKILL"}
    assert (tmp_path / OLD).exists() and list(tmp_path.glob("segments/.sealing-*"))
    assert seal(sealer, Job(str(tmp_path), (OLD,)))[0]["lines"] == 100_000
    assert [path.suffix for path in sorted((tmp_path / "segments").iterdir())] == [".parquet", ".parquet"]


def test_a_file_whose_sealer_was_killed_before_removing_it_is_removed_by_the_next(tmp_path: Path) -> None:
    write(tmp_path / OLD)
    write(tmp_path / NEW)
    segments.seal(tmp_path / OLD, keep=True)
    assert closed(tmp_path) == [OLD] and closed(tmp_path, keep=True) == []


def test_the_last_job_of_a_run_removes_runs_that_are_too_old(tmp_path: Path, sealer: Sealer) -> None:
    for name in ("old", "new"):
        run = tmp_path / "p" / name
        run.mkdir(parents=True)
        (run / "run.json").write_text('{"format": 1, "status": "finished"}')
    past = time.time() - 1e6
    os.utime(tmp_path / "p" / "old" / "run.json", (past, past))
    results = seal(sealer, Job(str(tmp_path / "p" / "new"), (), root=str(tmp_path), max_age=3600.0))
    assert results == [{"removed": [str(tmp_path / "p" / "old")]}]
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["new"]


def test_a_sealer_that_ends_leaves_files_as_they_are(tmp_path: Path, sealer: Sealer) -> None:
    write(tmp_path / OLD, lines=200_000)
    done: list[list[Result]] = []
    sealer.submit(Job(str(tmp_path), (OLD,)), done.append)
    sealer.submit(Job(str(tmp_path), (OLD,)), done.append)
    sealer.end()
    wait_until(lambda: len(done) == 2, "both jobs to be given up")
    assert len(list(RunReader(tmp_path).rows())) == 200_000
    assert not list(tmp_path.glob("segments/.sealing-*"))
