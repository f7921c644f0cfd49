"""Media of a run: one folder for each name, whatever the name is, and an index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainvitals.errors import JournalError
from trainvitals.journal import media
from trainvitals.journal.histograms import Histogram
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import (
    Media,
    OverLimit,
    list_histogram_names,
    list_media,
    list_rows,
    read_histograms,
    read_media,
)

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
    (row,) = list_rows(tmp_path)
    assert (tmp_path / "media" / row["file"]).read_bytes() == b"data"
    assert (row["kind"], row["name"], row["step"], row["width"]) == ("image", "val/mask", 20, 4)
    assert row["timestamp"] == "2025-11-17T11:46:40.250000Z"


@pytest.mark.parametrize(("skip_known", "count"), [(True, 2), (False, 3)])
def test_several_of_one_step_are_kept_and_an_import_keeps_the_same_once(
    tmp_path: Path, skip_known: bool, count: int
) -> None:
    for data in (b"one", b"two", b"one"):
        Media(tmp_path, skip_known=skip_known).write("image", "a", data, "png", step=1)
    files = ["image/a/1.png", "image/a/1.2.png", "image/a/1.3.png"]
    assert [row["file"] for row in list_rows(tmp_path)] == files[:count]


def test_no_name_leads_out_of_the_folder_or_into_that_of_another(tmp_path: Path) -> None:
    kept = Media(tmp_path)
    for name in HOSTILE:
        kept.write("text", name, name.encode("utf-8", "surrogatepass"), "md")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(HOSTILE) + 1
    assert all(path.parent.parent == tmp_path / "media/text" for path in files if path.name != media.INDEX)


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/media").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        Media(tmp_path / "run").write("text", "a", b"x", "md")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_there_are_no_more_than_a_run_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MOST_FILES", 3)
    kept = Media(tmp_path, skip_known=True)
    for step in range(3):
        kept.write("text", "a", bytes((step,)), "md", step=step)
    for _ in range(2):
        with pytest.raises(OverLimit):
            kept.write("text", "a", b"more", "md")
    kept.write("text", "a", bytes((0,)), "md", step=0)  # is kept already


def test_the_bytes_of_a_run_are_counted_over_its_attempts(tmp_path: Path) -> None:
    Media(tmp_path, run_bytes=100).write("text", "a", bytes(60), "md", step=1)
    again = Media(tmp_path, file_bytes=50, run_bytes=100)
    with pytest.raises(OverLimit, match="the run has"):
        again.write("text", "a", bytes(45), "md", step=2)
    with pytest.raises(OverLimit, match="larger"):
        again.write("text", "a", bytes(51), "md", step=2)
    again.write("text", "a", bytes(40), "md", step=2)


def test_two_processes_never_write_the_same_file(tmp_path: Path) -> None:
    first, second = Media(tmp_path), Media(tmp_path)
    first.write("image", "a", b"one", "png", step=1)
    second.write("image", "a", b"two", "png", step=1)
    assert [item.read() for item in list_media(tmp_path)] == [b"one", b"two"]


@pytest.mark.parametrize(
    "file", ["../secret", "/etc/passwd", "a/../../secret", "", ".", "..", "a\0b", "x" * 5000, "gone"]
)
def test_only_files_below_media_are_read(tmp_path: Path, file: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "media").mkdir()
    with pytest.raises(JournalError):
        read_media(tmp_path, file)


@pytest.mark.promise(
    "the index of media names a link, a pipe or a file of somebody else", "it is neither read nor waited for"
)
def test_links_pipes_and_foreign_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_text("secret")
    place = tmp_path / "media"
    place.mkdir()
    (place / "link").symlink_to(tmp_path / "secret/file")
    (place / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(place / "pipe")
    (place / "inner").mkdir()
    for file in ("link", "folder/file", "pipe", "inner"):
        with pytest.raises(JournalError):
            read_media(tmp_path, file)
    (place / "file").write_text("fine")
    assert read_media(tmp_path, "file") == b"fine"
    if os.geteuid() == 0:
        os.chown(place / "file", 12345, -1)
        with pytest.raises(JournalError, match="not a file of this run"):
            read_media(tmp_path, "file")


def test_lines_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    lines = [
        b'{"timestamp":"2026-01-01T00:00:00Z","kind":"image","name":"a","file":"x.png","step":"one","rank":"two"}',
        b'{"timestamp":"2026-01-01T00:00:00Z","kind":"movie","name":"a","file":"x.png"}',
        b'{"timestamp":"2026-01-01T00:00:00Z","kind":["image"],"name":"a","file":"x.png"}',
        b'{"timestamp":"2026-01-01T00:00:00Z","kind":"image","name":3,"file":"x.png"}',
        b'{"timestamp":"2026-01-01T00:00:00Z","kind":"image","name":"a","file":{}}',
        b'{"timestamp":7,"kind":"image","name":"a","file":"x.png"}',
        b"\xff",
    ]
    (tmp_path / "media/index.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (item,) = list_media(tmp_path)
    assert (item.kind, item.name, item.step, item.participant) == ("image", "a", None, Participant())


def test_histograms_of_other_trackers_are_read_with_ours(tmp_path: Path) -> None:
    kept = Media(tmp_path)
    kept.write_histogram("ours", Histogram(0.0, 1.0, [1, 2]), step=1)
    content = b'{"values": [1, 2], "bins": [0, 1, 2], "sum": NaN}'  # as W&B has it
    for step in (3, 5):
        kept.write("histogram", "theirs", content, "json", step=step)
    kept.write("histogram", "broken", b"{", "json", step=1)
    assert list_histogram_names(tmp_path, list_media(tmp_path)) == ["ours", "theirs", "broken"]
    assert [
        (row["step"], row["low"], row["high"], row["counts"])
        for row in read_histograms(tmp_path, "theirs", list_media(tmp_path))
    ] == [
        (3, 0.0, 2.0, [1.0, 2.0]),
        (5, 0.0, 2.0, [1.0, 2.0]),
    ]
    assert read_histograms(tmp_path, "broken", list_media(tmp_path)) == []
    assert [row["counts"] for row in read_histograms(tmp_path, "ours", list_media(tmp_path))] == [[1, 2]]
