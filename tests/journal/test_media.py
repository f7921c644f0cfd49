"""Media of a run: one folder for each name, whatever the name is, and an index."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainvitals.journal import media
from trainvitals.journal.media import Media, list_media, safe_name

HOSTILE = (
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a_b",
    "a\\b",
    "..",
    ".",
    "",
    "\x00",
    "con.",
    "x" * 5000,
    "\ud800",
    "é",
)


def test_a_file_is_found_by_the_index_under_its_own_name(tmp_path: Path) -> None:
    Media(tmp_path).write("image", "val/mask", b"data", "png", step=20, time=1_763_380_000.25, width=4)
    (row,) = list_media(tmp_path)
    assert (tmp_path / "media" / row["file"]).read_bytes() == b"data"
    assert (row["kind"], row["name"], row["step"], row["width"]) == ("image", "val/mask", 20, 4)
    assert row["timestamp"] == "2025-11-17T11:46:40.250000Z"


def test_several_of_one_step_are_kept_and_the_same_again_is_not(tmp_path: Path) -> None:
    for data in (b"one", b"two", b"one"):
        Media(tmp_path).write("image", "a", data, "png", step=1)
    assert [row["file"] for row in list_media(tmp_path)] == ["image/a/1.png", "image/a/1.2.png"]


def test_no_name_leads_out_of_the_folder_or_into_that_of_another(tmp_path: Path) -> None:
    kept = Media(tmp_path)
    for name in HOSTILE:
        assert kept.write("text", name, name.encode("utf-8", "surrogatepass"), "md")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(HOSTILE) + 1
    assert all(path.parent.parent == tmp_path / "media/text" for path in files if path.name != media.INDEX)
    assert len({safe_name(name) for name in HOSTILE}) == len(HOSTILE)


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/media").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        Media(tmp_path / "run").write("text", "a", b"x", "md")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_there_are_no_more_than_a_run_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MOST_FILES", 3)
    kept = Media(tmp_path)
    assert [kept.write("text", "a", bytes((n,)), "md", step=n) for n in range(5)] == [True, True, True, False, False]
