"""The git patches of a run folder: kept byte by byte but for secrets, and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainvitals.errors import JournalError
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.patches import has_patch, list_patches, write_patch

HEAD = b"diff --git a/train.py b/train.py\nindex 1..2 100644\n--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,3 @@\n"
PATCH = HEAD + b" same\n-lr = 1\n+lr = 2\n+++x  # gr\xfc\xdfe\r\n"
TOKEN = b"ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_patch_is_kept_byte_by_byte_and_counted(folder: Path) -> None:
    assert list_patches(folder) == [] and not has_patch(folder, 2)
    write_patch(folder, PatchFile(attempt=2, commit="c"), PATCH, ["new.py", "odd\x1b[31m", "key=ghp_" + "a1" * 18])
    (found,) = list_patches(folder)
    assert has_patch(folder, 2) and found.read() == PATCH
    about = found.about
    assert (about.attempt, about.commit, about.bytes, about.redacted) == (2, "c", len(PATCH), 0)
    assert about.size_text == "+2 -1 in 1 file" and about.reason == ""
    assert about.untracked[0] == "new.py" and "\x1b" not in about.untracked[1] and "ghp_" not in about.untracked[2]
    modes = [path.stat().st_mode & 0o777 for path in (folder / "patches").iterdir()]
    assert modes == [0o600, 0o600]


@pytest.mark.promise("uncommitted changes have a secret", "it never reaches the run folder, and the views say so")
def test_secrets_are_not_kept_and_the_other_bytes_stay(folder: Path) -> None:
    secret = b"+api_key = '" + TOKEN + b"'\n"
    write_patch(folder, PatchFile(), PATCH + secret)
    (found,) = list_patches(folder)
    assert found.read() == PATCH + b"+api_key = '[redacted]'\n" and found.about.redacted == 1
    key = b"+-----BEGIN PRIVATE KEY-----\n+MIIE\n+abcd\n+-----END PRIVATE KEY-----\n"
    write_patch(folder, PatchFile(attempt=2), PATCH + key)
    assert b"MIIE" not in list_patches(folder)[1].read() and list_patches(folder)[1].about.redacted == 4
    assert all(TOKEN not in path.read_bytes() for path in (folder / "patches").iterdir())


def test_attempts_are_in_order_and_each_says_why_it_has_none(folder: Path) -> None:
    for attempt, missing in ((10, "too_large"), (9, "odd {0.__class__}"), (1, "")):
        write_patch(folder, PatchFile(attempt=attempt, missing=missing, limit_kb=4096), b"" if missing else PATCH)
    reasons = [(patch.about.attempt, patch.about.reason) for patch in list_patches(folder)]
    assert reasons == [(1, ""), (9, "odd {0.__class__}"), (10, "larger than 4,096 KB")]
    with pytest.raises(JournalError, match=r"cannot read attempt10\.diff"):
        list_patches(folder)[2].read()


def test_links_and_what_is_no_document_are_not_read(folder: Path, tmp_path: Path) -> None:
    write_patch(folder, PatchFile(), PATCH)
    place = folder / "patches"
    (place / "attempt2.json").write_text("[]")
    (place / "attempt3.json").symlink_to(place / "attempt1.json")
    (place / "attempt1.diff").unlink()
    (place / "attempt1.diff").symlink_to("/etc/passwd")
    (found,) = list_patches(folder)
    with pytest.raises(JournalError, match="it is a link"):
        found.read()
    place.rename(folder / "elsewhere")
    place.symlink_to(folder / "elsewhere")
    assert list_patches(folder) == []
    with pytest.raises(OSError, match="is a link"):
        write_patch(folder, PatchFile(), PATCH)
