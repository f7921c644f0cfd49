"""What is kept of how a project is shown: written whole, never over what is not understood."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.view import FORMAT, OwnPanel, ViewFile
from trainvitals.journal.project_view import (
    MAX_ITEMS,
    MAX_NAMES,
    MAX_PANELS,
    MAX_TEXT,
    MAX_TITLE,
    change_view,
    check_view,
    find_view,
)

PANEL = OwnPanel(id="a", title="Gap", items=("train/loss - val/loss",))


def put(root: Path, view: ViewFile, project: str = "p") -> ViewFile:
    return change_view(root, project, lambda _: view)


def kept(root: Path, project: str = "p") -> Path:
    return root / project / "view.json"


def test_it_is_a_plain_file_beside_the_runs_and_no_run(tmp_path: Path) -> None:
    assert find_view(tmp_path, "p") is None
    view = ViewFile(panels=(PANEL,), pins=("loss",), log=("Loss",), hide=("Loss: val",), columns=())
    assert put(tmp_path, view) == view == find_view(tmp_path, "p")
    assert json.loads(kept(tmp_path).read_text()) == {
        "format": FORMAT,
        "panels": [{"id": "a", "title": "Gap", "items": ["train/loss - val/loss"]}],
        "pins": ["loss"],
        "log": ["Loss"],
        "hide": ["Loss: val"],
        "columns": [],
    }
    assert run_folder.list_folders(tmp_path) == []
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["view.json"]


def test_keys_of_other_programs_are_kept(tmp_path: Path) -> None:
    put(tmp_path, ViewFile.parse({"other": 1, "panels": [{"id": "a", "items": ["x"], "colour": "red"}]}))
    found = change_view(tmp_path, "p", lambda view: replace(view or ViewFile(), pins=("loss",)))
    assert found.as_json()["other"] == 1 and found.panels[0].as_json()["colour"] == "red"


@pytest.mark.promise("a damaged view.json of a project", "reported with its path; never overwritten")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"panels": 3}', '{"pins": "loss"}', "\udcff"])
def test_what_is_damaged_is_reported_and_not_written_over(tmp_path: Path, text: str) -> None:
    kept(tmp_path).parent.mkdir()
    kept(tmp_path).write_text(text, errors="surrogateescape")
    with pytest.raises(JournalError, match=r"view\.json"):
        find_view(tmp_path, "p")
    with pytest.raises(JournalError, match=r"view\.json"):
        put(tmp_path, ViewFile())
    assert kept(tmp_path).read_text(errors="surrogateescape") == text


def test_what_a_newer_version_wrote_is_read_as_far_as_it_goes_and_not_written_over(tmp_path: Path) -> None:
    kept(tmp_path).parent.mkdir()
    text = json.dumps({"format": FORMAT + 1, "pins": ["loss"], "panels": {"new": True}})
    kept(tmp_path).write_text(text)
    found = find_view(tmp_path, "p")
    assert found is not None and found.pins == ("loss",) and found.panels == ()
    with pytest.raises(JournalError, match="newer version"):
        put(tmp_path, ViewFile())
    assert kept(tmp_path).read_text() == text


@pytest.mark.parametrize(
    "view",
    [
        ViewFile(panels=(PANEL, PANEL)),
        ViewFile(panels=(replace(PANEL, id=""),)),
        ViewFile(panels=(replace(PANEL, id="x" * 41),)),
        ViewFile(panels=(replace(PANEL, title="x" * (MAX_TITLE + 1)),)),
        ViewFile(panels=(replace(PANEL, x="x" * (MAX_TEXT + 1)),)),
        ViewFile(panels=(replace(PANEL, items=tuple(map(str, range(MAX_ITEMS + 1)))),)),
        ViewFile(panels=tuple(replace(PANEL, id=str(at)) for at in range(MAX_PANELS + 1))),
        ViewFile(pins=tuple(map(str, range(MAX_NAMES + 1)))),
        ViewFile(hide=("x" * (MAX_TEXT + 1),)),
        ViewFile(columns=tuple(map(str, range(MAX_NAMES + 1)))),
    ],
)
def test_what_is_too_much_is_refused(tmp_path: Path, view: ViewFile) -> None:
    with pytest.raises(JournalError):
        put(tmp_path, view)
    assert not kept(tmp_path).exists()


def test_secrets_lines_and_repetitions_are_taken_out() -> None:
    title = "a\nb ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
    found = check_view(ViewFile(panels=(replace(PANEL, title=title),), pins=("loss", "", "loss")))
    assert "ghp_" not in found.panels[0].title and "\n" not in found.panels[0].title
    assert found.pins == ("loss",)


@pytest.mark.promise("a project named like a path, or whose folder is a link", "its view stays below the root")
def test_a_project_never_leads_out_of_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "linked").symlink_to(outside)
    for project in ("../outside", "..", "/etc", "a/../../outside", "."):
        put(root, ViewFile(pins=("x",)), project)
        assert find_view(root, project) is not None
    for act in (lambda: put(root, ViewFile(), "linked"), lambda: find_view(root, "linked")):
        with pytest.raises(JournalError, match="is a link"):
            act()
    assert list(outside.iterdir()) == [] and sorted(path.name for path in tmp_path.iterdir()) == ["outside", "root"]


ADD = """
import sys
from dataclasses import replace
from pathlib import Path
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal import project_view
project_view.LOCK_SECONDS = 3600.0  # who has the lock may have to wait for a core
for at in range(30):
    def add(view):
        view = view or ViewFile()
        return replace(view, pins=(*view.pins, f"{sys.argv[2]}.{at}"))
    project_view.change_view(Path(sys.argv[1]), "p", add)
"""


@pytest.mark.promise("several programs change the view of a project at once", "every change is kept")
def test_two_programs_that_change_it_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    found = find_view(tmp_path, "p")
    assert found is not None and set(found.pins) == {f"{name}.{at}" for name in "abc" for at in range(30)}


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file")
    with pytest.raises(JournalError, match="cannot write"):
        put(tmp_path, ViewFile())
