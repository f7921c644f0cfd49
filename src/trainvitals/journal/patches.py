"""The git patches of a run: `patches/attempt<N>.diff`, and beside each what is known of it, as JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.contracts import Patch
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.encoding import encode_line
from trainvitals.redaction import redact_text
from trainvitals.safe_text import one_line

MOST_BYTES = 4096 << 10
"""The highest value of `git_patch_kb`, in bytes; with a margin for redaction it is all that is read."""

_NAME = re.compile(r"attempt(\d{1,9})\.json")


def write_patch(folder: Path, about: PatchFile, patch: bytes = b"", untracked: Iterable[str] = ()) -> None:
    """Keep a patch, without secrets, and the names of untracked files. Raises OSError."""
    place = run_folder.make_within(folder, layout.PATCHES)
    mode = run_folder.file_rights(folder)
    about = replace(about, untracked=tuple(one_line(redact_text(name)) for name in untracked))
    if patch:
        clean, redacted = redact_patch(patch)
        about = replace(count_changes(clean, about), redacted=redacted)
        runtime.write_atomically(place / f"attempt{about.attempt}.diff", clean, mode)
    # Last: who finds it finds the patch.
    runtime.write_atomically(place / f"attempt{about.attempt}.json", encode_line(about.as_json()), mode)


def redact_patch(patch: bytes) -> tuple[bytes, int]:
    """The patch without secrets, every other byte as it was; and how many of its lines had one."""
    text = patch.decode("utf-8", "surrogateescape")
    clean = redact_text(text)
    if clean == text:
        return patch, 0
    before, after = text.split("\n"), clean.split("\n")
    left = set(after)
    return clean.encode("utf-8", "surrogateescape"), max(sum(line not in left for line in before), 1)


def count_changes(patch: bytes, about: PatchFile) -> PatchFile:
    """With the size of the patch: bytes, files, lines."""
    files = added = removed = 0
    in_hunk = False
    for line in patch.split(b"\n"):
        if line.startswith(b"diff --git "):
            files += 1
            in_hunk = False
        elif line.startswith(b"@@ "):
            in_hunk = True
        elif in_hunk:  # not in the header, where +++ and --- name the file
            added += line.startswith(b"+")
            removed += line.startswith(b"-")
    digest = hashlib.sha256(patch).hexdigest()
    return replace(about, bytes=len(patch), sha256=digest, files=files, added=added, removed=removed)


def has_patch(folder: Path, attempt: int) -> bool:
    """Whether it is known of this attempt what was changed, or why not."""
    return (folder / layout.PATCHES / f"attempt{attempt}.json").exists()


def list_patches(folder: Path) -> list[Patch]:
    """In order of the attempts; what cannot be read is left out."""
    place = folder / layout.PATCHES
    found = []
    try:
        # Links are left out: one may point anywhere.
        names = [path.name for path in place.iterdir() if not path.is_symlink()] if not place.is_symlink() else []
    except OSError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        content = runtime.read_json(place / name) if match is not None else None
        if match is not None and content is not None:
            about = replace(PatchFile.parse(content), attempt=int(match[1]))
            found.append(Patch(about, partial(_read, place / f"attempt{match[1]}.diff")))
    return sorted(found, key=lambda patch: patch.about.attempt)


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink():
            raise JournalError(f"cannot read {path.name}: it is a link")
        return runtime.read_regular(path, 2 * MOST_BYTES)
    except OSError as error:
        raise JournalError(f"cannot read {path.name}: {error.strerror or error}") from error
