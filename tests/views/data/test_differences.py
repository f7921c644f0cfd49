"""What differs between runs besides their configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.patches import write_patch
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.differences import describe_differences


def make(root: Path, name: str, **about: Any) -> RunReader:
    folder = root / name
    run_folder.create(folder)
    run_folder.write_run(folder, RunFile.parse({"format": 1, "id": name, "status": "finished", **about}))
    return RunReader(folder)


def test_only_what_differs_is_there_with_the_baseline_first(tmp_path: Path) -> None:
    same = {"python": {"version": "3.11.7"}, "cwd": "/w", "packages": {"numpy": "2.0"}}
    first = make(
        tmp_path,
        "first",
        **{**same, "packages": {"numpy": "2.0", "torch": "2.8"}},
        git={"commit": "a" * 40, "branch": "main", "dirty": False},
        command="python train.py",
        host={"name": "one", "cpu_available": 8},
        world_size=1,
    )
    second = make(
        tmp_path,
        "second",
        **{**same, "packages": {"numpy": "2.0", "torch": "2.9", "apex": "1"}},
        git={"commit": "b" * 40, "branch": "main", "dirty": True},
        command="python train.py --wide",
        host={"name": "two", "cpu_available": 8},
        world_size=4,
    )
    found = {
        group["title"]: {row["key"]: row["values"] for row in group["rows"]}
        for group in describe_differences([first, second])
    }
    assert found == {
        "code": {"commit": ["a" * 40, "b" * 40], "uncommitted changes": [False, True]},
        "command": {"command": ["python train.py", "python train.py --wide"]},
        "package": {"apex": [None, "1"], "torch": ["2.8", "2.9"]},
        "machine": {"host": ["one", "two"], "ranks": [None, 4]},
    }
    assert describe_differences([first, first]) == []
    assert describe_differences([]) == []


def test_patches_that_differ_are_named(tmp_path: Path) -> None:
    line = b"diff --git a/x b/x\n@@ -1 +1 @@\n+lr = %d\n"
    readers = [make(tmp_path, name, git={"commit": "c", "dirty": True}) for name in ("one", "two", "three", "four")]
    for reader, number in zip(readers, (1, 1, 2), strict=False):
        write_patch(reader.folder, PatchFile(), line % number)
    assert describe_differences(readers[:2]) == []
    ((row,),) = (group["rows"] for group in describe_differences(readers))
    first, second, third, fourth = row["values"]
    assert row["key"] == "patch" and first == second and fourth is None
    assert first.startswith("+1 -0 in 1 file (sha256 ") and third.startswith("+1 -0 in 1 file (") and first != third


def test_a_run_that_knows_nothing_of_itself_is_compared(tmp_path: Path) -> None:
    bare, other = make(tmp_path, "bare"), make(tmp_path, "other", git={"commit": "c"})
    assert describe_differences([bare, other]) == [
        {"title": "code", "rows": [{"key": "commit", "values": [None, "c"]}]},
    ]
