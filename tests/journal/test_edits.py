"""Name, notes and tags of a run, edited by a user beside whatever else writes run.json."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import trainvitals
from trainvitals.errors import JournalError, RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.edits import MAX_NAME, MAX_TAGS, Edit, edit_run

TOKEN = "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"


def make(root: Path, **more: object) -> Path:
    folder = root / "p" / "run"
    run_folder.create(folder)
    run_folder.write_run(folder, RunFile.parse({"id": "run", "name": "before", "tags": ["a", "b"], **more}), 0o640)
    return folder


def test_only_what_is_asked_for_changes(tmp_path: Path) -> None:
    folder = make(tmp_path, notes="old", config={"lr": 0.1}, other_program="kept")
    edited = edit_run(folder, Edit(notes="# new", add_tags=("c", "a", " "), remove_tags=("b",)))
    assert edited == run_folder.read_run(folder)
    assert (edited.name, edited.notes, edited.tags, edited.config) == ("before", "# new", ("a", "c"), {"lr": 0.1})
    assert edited.as_json()["other_program"] == "kept"
    assert edit_run(folder, Edit(tags=("x", "x"), notes="")).tags == ("x",)
    assert run_folder.read_run(folder).notes == ""
    assert (folder / "run.json").stat().st_mode & 0o777 == 0o640


def test_secrets_and_lines_are_taken_out(tmp_path: Path) -> None:
    folder = make(tmp_path)
    run = edit_run(folder, Edit(name=f"two\nlines {TOKEN}", notes=f"a\nb {TOKEN}", add_tags=(TOKEN,)))
    assert TOKEN not in (folder / "run.json").read_text()
    assert "\n" not in run.name and run.notes == "a\nb [redacted]" and run.tags == ("a", "b", "[redacted]")


@pytest.mark.parametrize(
    "edit",
    [Edit(name=" "), Edit(name="n" * (MAX_NAME + 1)), Edit(tags=tuple(map(str, range(MAX_TAGS + 1))))],
)
def test_what_cannot_be_is_refused_and_nothing_changes(tmp_path: Path, edit: Edit) -> None:
    folder = make(tmp_path)
    before = (folder / "run.json").read_bytes()
    with pytest.raises(JournalError):
        edit_run(folder, edit)
    assert (folder / "run.json").read_bytes() == before
    with pytest.raises(RunNotFound):
        edit_run(tmp_path / "nowhere", Edit(name="x"))


TRAINING = """
import sys, trainvitals
from trainvitals.journal import folder
folder.LOCK_SECONDS = 3600.0  # who has the lock may have to wait for a core
run = trainvitals.init(project="p", name="live", dir=sys.argv[1], tags=["own"], agent=False)
print(run.folder, flush=True)
sys.stdin.readline()
for number in range(60):
    run.add_config({f"key{number}": number})
run.log({"loss": 1.0}, step=7)
run.finish()
"""


@pytest.mark.promise("a run is edited while it trains", "neither the edit nor the training's data is lost")
def test_a_live_training_and_a_user_lose_nothing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 3600.0)
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert training.stdin is not None and training.stdout is not None
    folder = Path(training.stdout.readline().strip())
    training.stdin.write("go\n")
    training.stdin.flush()
    for number in range(40):
        edit_run(folder, Edit(name=f"name {number}", notes=f"notes {number}", add_tags=(f"tag{number}",)))
    assert training.wait() == 0
    run = run_folder.read_run(folder)
    assert (run.status, run.last_step, run.name, run.notes) == ("finished", 7, "name 39", "notes 39")
    assert set(run.tags) == {"own", *(f"tag{number}" for number in range(40))}
    assert run.config is not None and {f"key{number}" for number in range(60)} <= set(run.config)


def test_another_attempt_keeps_what_was_edited(tmp_path: Path) -> None:
    first = trainvitals.init(project="p", name="script", notes="of the script", dir=tmp_path, agent=False)
    first.finish()
    folder = Path(first.folder)
    edit_run(folder, Edit(name="mine", notes="my notes", add_tags=("good",)))
    second = trainvitals.init(
        project="p", name="script", notes="of the script", dir=tmp_path, agent=False, resume=folder.name
    )
    second.finish()
    run = run_folder.read_run(folder)
    assert (run.attempt, run.name, run.notes, run.tags) == (2, "mine", "my notes", ("good",))


def test_a_tag_that_was_removed_does_not_come_back_with_another_attempt(tmp_path: Path) -> None:
    first = trainvitals.init(project="p", dir=tmp_path, tags=["draft", "vit"], agent=False)
    first.finish()
    folder = Path(first.folder)
    assert edit_run(folder, Edit(add_tags=("paper",), remove_tags=("draft",))).untagged == ("draft",)
    trainvitals.init(project="p", dir=tmp_path, tags=["draft", "vit", "long"], agent=False, resume=folder.name).finish()
    assert set(run_folder.read_run(folder).tags) == {"long", "paper", "vit"}
    assert edit_run(folder, Edit(add_tags=("draft",))).untagged == ()
    trainvitals.init(project="p", dir=tmp_path, tags=["draft"], agent=False, resume=folder.name).finish()
    assert set(run_folder.read_run(folder).tags) == {"draft", "long", "paper", "vit"}


def test_a_writer_that_finds_a_removed_tag_again_does_not_add_it(tmp_path: Path) -> None:
    folder = make(tmp_path)
    edit_run(folder, Edit(remove_tags=("a",)))
    known = run_folder.read_run(folder)
    run_folder.replace_run(folder, replace(known, tags=("a", "b", "d")), known)
    assert run_folder.read_run(folder).tags == ("b", "d")


def test_a_writer_of_the_whole_file_leaves_what_was_edited_since_it_looked(tmp_path: Path) -> None:
    folder = make(tmp_path)
    known = run_folder.read_run(folder)
    edit_run(folder, Edit(name="mine", add_tags=("c",), remove_tags=("a",)))
    run_folder.replace_run(folder, replace(known, notes="of the writer", tags=("a", "b", "d"), last_step=3), known)
    run = run_folder.read_run(folder)
    assert (run.name, run.notes, run.tags, run.last_step) == ("mine", "of the writer", ("b", "c", "d"), 3)


def test_tags_that_the_training_sets_are_merged_with_those_of_the_user(tmp_path: Path) -> None:
    run = trainvitals.init(project="p", name="r", dir=tmp_path, tags=["one", "two"], agent=False)
    edit_run(Path(run.folder), Edit(add_tags=("user",)))
    run.change(tags=("two", "three"))
    run.finish()
    assert set(run_folder.read_run(Path(run.folder)).tags) == {"two", "three", "user"}
