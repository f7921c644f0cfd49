"""What was changed in the repository of a run since its commit, or why that is not known."""

from __future__ import annotations

from trainvitals.analysis.wording import count_of
from trainvitals.errors import JournalError
from trainvitals.journal.contracts import Patch, Reader
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.redaction import redact_text
from trainvitals.views.data.shapes import PatchJson, PatchTextJson

SHOWN_BYTES = 256 << 10
"""Of a patch on a page and in a report; `runs show --patch` prints all of it."""


def find_patch(reader: Reader) -> Patch | None:
    """Of the run's newest attempt; None if nothing is known."""
    attempt = reader.info.file.attempt
    return next((patch for patch in reader.patches() if patch.about.attempt == attempt), None)


def describe_patch(reader: Reader) -> PatchJson | None:
    """All but its text."""
    found = find_patch(reader)
    if found is None:
        return None
    about = found.about
    return {
        "attempt": about.attempt,
        "kept": not about.missing,
        "title": format_patch(about),
        "warning": _warn(about),
        "commit": about.commit,
        "bytes": about.bytes,
        "untracked": list(about.untracked),
        "untracked_cut": about.untracked_cut,
    }


def format_patch(about: PatchFile) -> str:
    """`+12 -3 in 2 files`, or why there is none."""
    return f"not kept: {about.reason}" if about.missing else about.size_text


def _warn(about: PatchFile) -> str:
    if not about.redacted:
        return ""
    return f"what looks like a secret was redacted in {count_of(about.redacted, 'line')}: the patch may not apply"


def format_untracked(found: PatchJson) -> str:
    """Their names; empty if there are none."""
    return ", ".join([*found["untracked"], *(["and more"] if found["untracked_cut"] else [])])


def explain_missing(reader: Reader) -> str:
    """Why the run's newest attempt has no patch."""
    found = find_patch(reader)
    if found is not None:
        return f"the patch of this run was {format_patch(found.about)}"
    git = reader.info.file.git
    if not git.commit:
        return "this run has no patch: no git commit was recorded for it"
    if git.dirty is False:
        return f"this run has no patch: it was started from commit {git.commit[:12]} without changes"
    if git.dirty is None:
        return "this run has no patch: git did not say in time whether there were changes"
    return "this run has no patch: no agent kept one, or git_patch_kb was 0"


def read_patch_text(reader: Reader) -> PatchTextJson:
    """The patch as text, up to SHOWN_BYTES. Raises JournalError."""
    found = find_patch(reader)
    if found is None or found.about.missing:
        raise JournalError(explain_missing(reader))
    data = found.read()
    text = data[:SHOWN_BYTES].decode("utf-8", "replace")
    is_cut = len(data) > SHOWN_BYTES
    text = text[: text.rfind("\n") + 1] if is_cut else text
    # What another program wrote, or a version that knew fewer kinds of secrets, is looked through once more.
    return {"text": redact_text(text), "cut": is_cut}
