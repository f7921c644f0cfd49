"""What views say of a run's git patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.patches import write_patch
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.patches import SHOWN_BYTES, describe_patch, explain_missing, read_patch_text

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PATCH = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+n\xe9w\n"


def make(folder: Path, **about: Any) -> RunReader:
    run_folder.write_run(folder, RunFile.parse({"format": 1, "id": "r", **about}))
    return RunReader(folder)


@pytest.mark.parametrize(
    ("git", "words"),
    [
        (None, "no git commit was recorded"),
        ({"commit": COMMIT, "dirty": False}, "started from commit 0123456789ab without changes"),
        ({"commit": COMMIT}, "git did not say in time"),
        ({"commit": COMMIT, "dirty": True}, "no agent kept one"),
        ({"commit": 7, "branch": ["main"], "dirty": "yes", "later": 1}, "no git commit was recorded"),
        ({"commit": COMMIT, "dirty": "yes"}, "git did not say in time"),
        ("main", "no git commit was recorded"),
    ],
)
def test_a_run_without_a_patch_says_why(tmp_path: Path, git: object, words: str) -> None:
    reader = make(tmp_path, git=git)
    assert describe_patch(reader) is None and words in explain_missing(reader)
    assert reader.info.file.as_json().get("git") == git, "what is damaged or newer is kept"
    with pytest.raises(JournalError, match=words):
        read_patch_text(reader)


def test_the_patch_of_the_newest_attempt_is_shown(tmp_path: Path) -> None:
    reader = make(tmp_path, attempt=2)
    write_patch(tmp_path, PatchFile(attempt=1, commit="old"), PATCH)
    assert describe_patch(reader) is None
    write_patch(tmp_path, PatchFile(attempt=2, commit=COMMIT, untracked_cut=True), PATCH, ["a", "b"])
    assert describe_patch(reader) == {
        "attempt": 2,
        "kept": True,
        "title": "+1 -1 in 1 file",
        "warning": "",
        "commit": COMMIT,
        "bytes": len(PATCH),
        "untracked": ["a", "b"],
        "untracked_cut": True,
    }
    assert read_patch_text(reader) == {"text": PATCH.decode("utf-8", "replace"), "cut": False}


def test_a_patch_that_is_not_kept_or_was_changed_says_so(tmp_path: Path) -> None:
    reader = make(tmp_path)
    write_patch(tmp_path, PatchFile(missing="too_large", limit_kb=256))
    found = describe_patch(reader)
    assert found is not None and (found["kept"], found["title"]) == (False, "not kept: larger than 256 KB")
    assert explain_missing(reader) == "the patch of this run was not kept: larger than 256 KB"
    write_patch(tmp_path, PatchFile(), PATCH + b"+password = 'hunter22'\n")
    found = describe_patch(reader)
    assert (
        found is not None
        and found["warning"] == "what looks like a secret was redacted in 1 line: the patch may not apply"
    )


def test_of_a_long_patch_whole_lines_are_shown(tmp_path: Path) -> None:
    reader = make(tmp_path)
    write_patch(tmp_path, PatchFile(), PATCH + b"+more\n" * SHOWN_BYTES)
    found = read_patch_text(reader)
    assert found["cut"] and found["text"].endswith("\n+more\n") and len(found["text"]) <= SHOWN_BYTES
