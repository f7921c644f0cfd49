"""What a scheduler did to a job reaches the runs that cannot know it, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from trainvitals.journal.documents.cause import (
    EXCEPTION,
    EXIT_CODE,
    NODE_FAILED,
    OUT_OF_MEMORY,
    SIGNAL,
    TIME_LIMIT,
    UNWATCHED,
    Cause,
)
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder import read_run
from trainvitals.journal.follower import read_table
from trainvitals.journal.job_ends import find_runs_of, note_job_end

LIMIT = Cause(kind=TIME_LIMIT, detail="Slurm job 4711")


def make(folder: Path, status: str, cause: Cause | None = None, **more: Any) -> Path:
    ended: dict[str, Any] = {"attempts": [{"number": 1, "status": status}], "job": {"slurm": "4711"}, "status": status}
    if cause is not None:
        ended |= {"cause": str(cause), "reason": cause.as_json()}
    make_run(folder, **{**ended, **more})
    return folder


@pytest.mark.parametrize(
    ("status", "cause", "told"),
    [
        ("running", None, True),
        ("killed", Cause(kind=SIGNAL, signal="SIGTERM"), True),
        ("killed", Cause(kind=SIGNAL, signal="SIGKILL"), True),
        ("crashed", Cause(kind=UNWATCHED), True),
        ("failed", Cause(kind=EXIT_CODE, exit_code=143), True),
        ("finished", None, False),
        ("failed", Cause(kind=EXCEPTION, exception="ValueError", detail="ValueError: x"), False),
        ("failed", Cause(kind=EXIT_CODE, exit_code=1), False),
        ("crashed", Cause(kind=SIGNAL, signal="SIGSEGV"), False),
        ("killed", Cause(kind=OUT_OF_MEMORY, memory="group", signal="SIGKILL"), False),
    ],
)
def test_only_a_run_that_does_not_know_better_is_told(
    status: str, cause: Cause | None, told: bool, tmp_path: Path
) -> None:
    folder = make(tmp_path / "p" / "run", status, cause)
    assert note_job_end(folder, LIMIT) is told
    run = read_run(folder)
    assert (run.status, run.cause) == (("killed", LIMIT) if told else (status, cause))
    assert [str(attempt.cause) for attempt in run.attempts] == ([str(LIMIT)] if told else ["None"])
    events = [row["message"] for _, row in read_table(folder, "events")]
    assert events == (["Slurm job 4711 reached its time limit"] if told else [])
    assert note_job_end(folder, LIMIT) is False, "a second epilog says nothing more"


def test_an_attempt_after_the_requeue_is_left_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "p" / "run", "running", started=format_time(1000.0))
    assert not note_job_end(folder, LIMIT, ended=999.0) and read_run(folder).status == "running"
    assert note_job_end(folder, LIMIT, ended=1001.0)


def test_the_runs_of_a_job_are_found_once(tmp_path: Path) -> None:
    mine = make(tmp_path / "p" / "mine", "running")
    make(tmp_path / "p" / "other", "running", job={"slurm": "471"})
    older = make(tmp_path / "p" / "older", "running", job={}, environment={"SLURM_JOB_ID": "4711"})
    (tmp_path / "link").symlink_to(mine)
    places = [mine, tmp_path / "link", tmp_path / "p" / "other", older, tmp_path / "gone"]
    assert {folder.resolve() for folder in find_runs_of("4711", places)} == {mine, older}


def test_a_cause_by_a_scheduler_is_a_sentence_and_comes_back() -> None:
    assert str(Cause(kind=NODE_FAILED, detail="Slurm job 7")) == "Slurm job 7 lost a node"
    assert str(Cause(kind=OUT_OF_MEMORY, detail="Slurm job 7")) == "Slurm job 7 ran out of memory"
    assert RunFile.parse(RunFile(cause=LIMIT).as_json()).cause == LIMIT
