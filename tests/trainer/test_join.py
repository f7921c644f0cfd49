"""The files by which the ranks of a launch meet, and when they go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainvitals import runtime, settings
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.trainer import join, ranks

HOURS = 3600.0


def gone() -> int:
    """The number of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def meet(project: Path, name: str, hours: float, status: str | None, **known: Any) -> Path:
    """A meeting of some hours ago, and its run."""
    path = project / f".launch-{name}.json"
    path.write_text(json.dumps({"run_id": name, **known}))
    touched = [path]
    if status is not None:
        run_folder.create(project / name)
        run_folder.write_run(project / name, RunFile.parse({"status": status}))
        touched.append(project / name / "run.json")
    for item in touched:
        os.utime(item, (time.time() - hours * HOURS,) * 2)
    return path


def here(pid: int) -> dict[str, Any]:
    return {"host": runtime.host_name(), "launcher": pid, "start": runtime.process_start(pid)}


@pytest.mark.parametrize(
    ("hours", "status", "known", "stays"),
    [
        (1, "finished", "gone", False),
        (1, None, "gone", False),
        (0.01, "finished", "gone", True),  # a rank may be on its way
        (1, "running", "gone", True),
        (99, "failed", "alive", True),  # it may start its ranks anew
        (1, "finished", "elsewhere", True),
        (99, "finished", "elsewhere", False),
        (99, "running", "elsewhere", True),
        (99, "finished", "unknown", False),
        (99, None, "unknown", False),
    ],
)
def test_a_meeting_is_removed_once_nobody_can_come_to_it_any_more(
    tmp_path: Path, hours: float, status: str | None, known: str, stays: bool
) -> None:
    about = {
        "gone": here(gone()),
        "alive": here(os.getpid()),
        "elsewhere": {**here(os.getpid()), "host": "elsewhere"},
        "unknown": {},
    }
    path = meet(tmp_path, "one", hours, status, **about[known])
    join.remove_old_meetings(tmp_path)
    assert path.exists() == stays


def test_a_draft_that_was_left_is_removed_after_a_day_and_other_files_are_left_alone(tmp_path: Path) -> None:
    draft = tmp_path / ".launch-0123.json.host.17"
    other = tmp_path / "notes.json"
    for path in (draft, other):
        path.write_text("{")
    join.remove_old_meetings(tmp_path)
    assert draft.exists()
    for path in (draft, other):
        os.utime(path, (time.time() - 99 * HOURS,) * 2)
    join.remove_old_meetings(tmp_path)
    assert not draft.exists() and other.exists()


def test_a_new_launch_tidies_up_and_its_own_meeting_stays(tmp_path: Path) -> None:
    old = meet(tmp_path, "old", 1, "finished", **here(gone()))
    place = ranks.Rank(0, 0, 2, 2)
    made = join.join_launch(tmp_path, None, "me", place, False)
    assert not old.exists()
    assert join.join_launch(tmp_path, None, "me", place, False) == made
    join.remove_old_meetings(tmp_path)
    assert len(list(tmp_path.glob(".launch-*"))) == 1


def test_a_further_run_of_a_command_has_the_name_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "default" / "first"
    run_folder.create(first)
    run_folder.write_run(first, RunFile.parse({"kind": "training", "name": "train"}))
    monkeypatch.setenv("TRAINVITALS_RUN_DIR", str(first))
    effective = settings.resolve({"dir": str(tmp_path)}, environ={}, folder=tmp_path)
    place = join.find_place(effective, None, False, ranks.Rank())
    assert place.folder != first and "-train-" in place.folder.name
