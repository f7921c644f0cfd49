"""Whose a file or folder is; how settings files are judged is in test_settings.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainvitals import runtime
from trainvitals.ownership import explain_foreign


@pytest.mark.parametrize(
    ("owner", "group", "mode", "why"),
    [(0, 0, 0o700, None), (0, 12345, 0o750, None), (0, 12345, 0o755, None), (0, 0, 0o770, None),
     (12345, 12345, 0o700, "it belongs to user 12345"), (12345, 0, 0o755, "it belongs to user 12345"),
     (0, 12345, 0o770, "others may write it"), (0, 0, 0o707, "others may write it"),
     (0, 0, 0o1777, "others may write it")],
)  # fmt: skip
def test_a_folder_is_ours_if_nobody_but_us_and_root_may_write_it(
    tmp_path: Path, owner: int, group: int, mode: int, why: str | None
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    os.chown(place, owner, group)
    place.chmod(mode)
    assert explain_foreign(place) == why


def test_what_is_not_there_is_not_ours(tmp_path: Path) -> None:
    assert explain_foreign(tmp_path / "gone") == "it cannot be looked at: No such file or directory"


def test_a_document_of_somebody_else_is_read_only_where_that_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    assert runtime.read_json(path, own=True) == {}
    os.chown(path, 12345, 12345)
    assert runtime.read_json(path) == {} and runtime.read_json(path, own=True) is None


def test_a_file_is_not_replaced_through_a_link_that_somebody_put_in_its_way(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / f".status.json.{os.getpid()}.tmp").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        runtime.write_atomically(tmp_path / "status.json", b"{}")
    assert precious.read_text() == "mine"
