"""Notes for the next agent: each run has its own, and those of earlier versions are found and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainvitals import runtime
from trainvitals.journal.folder_notes import FolderNote, FolderNotes
from trainvitals.settings import Settings, resolve


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderNotes:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    return FolderNotes("exports")


def make_settings() -> Settings:
    return resolve(arguments={"project": "a"})


def test_a_note_has_the_folder_and_the_settings_of_its_run(notes: FolderNotes, tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "r", tmp_path / "other" / "r"
    assert notes.list_folders() == []
    for folder in (one, other, one):
        notes.write(folder, make_settings(), host=folder.parent.name)
    assert sorted(notes.list_folders()) == [one, other]
    assert FolderNotes("shipping").list_folders() == []
    notes.remove(one)
    notes.remove(one)
    assert notes.take() == [FolderNote(other, make_settings().as_json(), {"host": "other"})]


def test_a_note_with_a_name_of_an_earlier_version_is_taken_and_removed(notes: FolderNotes, tmp_path: Path) -> None:
    notes.write(tmp_path / "r", make_settings())
    (path,) = (runtime.runtime_dir() / "exports").iterdir()
    path.rename(path.with_name("r.json"))
    assert notes.take() == [FolderNote(tmp_path / "r", make_settings().as_json(), {})]
    notes.remove(tmp_path / "r")
    assert notes.list_folders() == []
