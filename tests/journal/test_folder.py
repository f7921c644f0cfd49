"""Listing the runs of a folder, oldest first, however their folders are called; and writing within one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainvitals import runtime
from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile


def make(root: Path, name: str, created: str | None) -> None:
    folder = root / "p" / name
    run_folder.create(folder)
    run_folder.write_run(folder, RunFile.parse({"id": name, **({"created": created} if created else {})}))


def test_runs_are_listed_oldest_first_by_id_and_where_that_does_not_tell_by_when_they_were_created(
    tmp_path: Path,
) -> None:
    make(tmp_path, "20260101-000002-b-2222", "2026-01-01T00:00:02.100000Z")
    make(tmp_path, "20260101-000001-zeta-1111", "2026-01-01T00:00:01.100000Z")
    make(tmp_path, "20260101-000001-alpha-1111", "2026-01-01T00:00:01.900000Z")
    make(tmp_path, "20260101-000009-copied-1111", None)
    make(tmp_path, "imported", "2026-01-01T00:00:01.500000Z")
    names = [folder.name for folder in run_folder.list_folders(tmp_path)]
    assert names == [
        "20260101-000001-zeta-1111",
        "imported",
        "20260101-000001-alpha-1111",
        "20260101-000002-b-2222",
        "20260101-000009-copied-1111",
    ]
    assert run_folder.find("latest", tmp_path).name == names[-1]


def test_a_run_is_found_by_name_or_part_and_the_nearest_names_are_suggested(tmp_path: Path) -> None:
    for run_id, name in {
        "20260101-000001-lr0-001-bs32-aaaa": "lr0.001-bs32",
        "20260101-000002-lr0-001-bs64-bbbb": "lr0.001-bs64",
        "20260101-000003-again-cccc": "again",
        "20260101-000004-again-dddd": "again",
        "imported": "",
    }.items():
        make(tmp_path, run_id, None)
        folder = tmp_path / "p" / run_id
        run_folder.write_run(folder, replace(run_folder.read_run(folder), name=name))

    def find(text: str, **more: bool) -> str:
        return run_folder.find(text, tmp_path, **more).name

    assert find("lr0.001-bs32") == find("lr0-001-bs32") == find("BS32") == find("aaaa") == find("20260101-000001")
    assert find("again") == "20260101-000004-again-dddd", "the newest of a name"
    assert find("port") == "imported"
    with pytest.raises(RunNotFound, match=r"'bs' matches 2 runs: 20260101-000001-.*, 20260101-000002-"):
        find("bs")
    with pytest.raises(RunNotFound, match=r"no run 'lr0.001-bs33'.*, did you mean 'lr0.001-bs32' or .*'lr0.001-bs64'"):
        find("lr0.001-bs33")
    with pytest.raises(RunNotFound, match="no run 'bs32'"):
        find("bs32", by_part=False)
    with pytest.raises(RunNotFound, match="no run ''"):
        find("")


@pytest.mark.promise(
    "links in a run folder lead to files elsewhere", "nothing is written through them", area="Other users"
)
def test_nothing_within_a_run_folder_is_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "stacks").symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a link"):
        run_folder.make_within(run, "stacks")
    media = run_folder.make_within(run, "media")
    (media / "file").symlink_to(elsewhere / "file")
    with pytest.raises(OSError, match="symbolic links"):
        run_folder.open_within(media, "file")
    assert (elsewhere / "file").read_text() == "mine"


ADDING = """
import sys
from dataclasses import replace
from pathlib import Path
from trainvitals.journal import folder
folder.LOCK_SECONDS = 3600.0  # who has the lock may have to wait for a core
for number in range(50):
    folder.change_run(Path(sys.argv[1]), lambda run: replace(run, tags=(*run.tags, f"{sys.argv[2]}-{number}")))
"""


def test_what_several_processes_change_at_once_is_all_in_run_json(tmp_path: Path) -> None:
    make(tmp_path, "run", None)
    folder = tmp_path / "p" / "run"
    writers = [subprocess.Popen([sys.executable, "-c", ADDING, str(folder), name]) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert sorted(run_folder.read_run(folder).tags) == sorted(f"{name}-{n}" for name in "abc" for n in range(50))


def test_a_process_that_hangs_while_it_changes_run_json_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.01)
    make(tmp_path, "run", None)
    folder = tmp_path / "p" / "run"
    held = os.open(folder, os.O_RDONLY)
    assert runtime.try_lock(held)
    assert run_folder.change_run(folder, lambda run: replace(run, notes="n")) is not None
    assert run_folder.read_run(folder).notes == "n"
    os.close(held)
    assert run_folder.change_run(tmp_path / "gone", lambda run: run) is None
