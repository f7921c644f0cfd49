"""patches/*.json: what was changed in the repository of a run since its commit, or why that was not kept.
Tested in tests/journal/test_patches.py."""

from __future__ import annotations

from dataclasses import dataclass

from trainvitals.journal.documents.fields import Document, entry, flag, text, texts, whole

_REASONS = {
    "too_large": "larger than {limit_kb} KB",
    "empty": "no changes in tracked files when git was asked",
    "late": "the agent first saw the run too long after its start",
    "timeout": "git took too long",
    "failed": "git could not make it",
    "secret": "a binary file in it contains what looks like a secret",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchFile(Document):
    """Of one attempt."""

    attempt: int = entry(whole, 1)
    captured: str | None = entry(text, None)
    commit: str = entry(text, "")
    """What the patch applies to."""
    missing: str = entry(text, "")
    """Why no patch was kept: `too_large`, `empty`, `late`, `timeout`, `failed` or `secret`. Empty if one was."""
    limit_kb: int = entry(whole, 0)
    """The setting `git_patch_kb`."""
    bytes: int = entry(whole, 0)
    sha256: str = entry(text, "")
    files: int = entry(whole, 0)
    added: int = entry(whole, 0)
    """Lines."""
    removed: int = entry(whole, 0)
    redacted: int = entry(whole, 0)
    """Lines in which a secret was replaced: such a patch may not apply."""
    untracked: tuple[str, ...] = entry(texts, ())
    """Names of files that git does not know; their contents are not kept."""
    untracked_cut: bool = entry(flag, False)
    """There were more."""

    @property
    def reason(self) -> str:
        """Why no patch was kept, in words; empty if one was."""
        known = _REASONS.get(self.missing)
        return known.format(limit_kb=f"{self.limit_kb:,}") if known is not None else self.missing

    @property
    def size_text(self) -> str:
        """`+12 -3 in 2 files`."""
        return f"+{self.added:,} -{self.removed:,} in {self.files:,} {'file' if self.files == 1 else 'files'}"
