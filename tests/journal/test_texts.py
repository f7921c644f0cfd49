"""Texts of a run: which there are, and their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainvitals.errors import JournalError
from trainvitals.journal.texts import list_texts, read_text


def names(folder: Path) -> list[str]:
    return [file.name for file in list_texts(folder, "console")]


def test_links_and_empty_files_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "console.rank0.log").write_text("mine\n")
    (tmp_path / "console.rank1.log").symlink_to("/etc/passwd")
    (tmp_path / "console.rank2.log").touch()
    assert names(tmp_path) == ["console.rank0.log"]


def test_ranks_are_listed_in_their_order(tmp_path: Path) -> None:
    for name in ("rank10", "rank2", "rank2.older", "rank0.pid7"):
        (tmp_path / f"console.{name}.log").write_text("x\n")
    shown = [name.removeprefix("console.").removesuffix(".log") for name in names(tmp_path)]
    assert shown == ["rank2.older", "rank2", "rank10", "rank0.pid7"]


def test_only_what_is_listed_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "console.rank1.log").symlink_to("/etc/passwd")
    for name in ("run.json", "../run.json", "console.rank1.log", "/etc/passwd"):
        with pytest.raises(JournalError, match="no file"):
            read_text(tmp_path, "console", name, 100)


def test_the_end_is_read_on_from_its_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "console.rank0.log"
    path.write_text("one\ntwo\nthr")
    found = read_text(tmp_path, "console", path.name, 8)
    assert (found.text, found.cut, found.size, found.next) == ("\ntwo\nthr", True, 11, 8)
    path.write_text("one\ntwo\nthree\n")
    assert read_text(tmp_path, "console", path.name, 100, after=found.next).text == "three\n"


def test_a_text_that_was_started_over_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "console.rank0.log"
    path.write_text("new\n")
    found = read_text(tmp_path, "console", path.name, 100, after=5000)
    assert (found.start, found.text, found.cut) == (0, "new\n", False)
