"""What a user changes in a run afterwards or while it trains: its name, notes and tags."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from trainvitals.errors import JournalError, RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.redaction import redact_text
from trainvitals.safe_text import one_line

MAX_NAME = 200
MAX_NOTES = 20_000
MAX_TAGS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What is to change; None stays as it is. `tags` are all of them, before some are added and removed."""

    name: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] | None = None
    add_tags: tuple[str, ...] = ()
    remove_tags: tuple[str, ...] = ()

    def apply(self, run: RunFile) -> RunFile:
        """Without secrets; as it was if nothing of it is to change."""
        tags = run.tags if self.tags is None else _clean(self.tags)
        removed = set(_clean(self.remove_tags))
        tags = tuple(tag for tag in dict.fromkeys([*tags, *_clean(self.add_tags)]) if tag not in removed)
        name = one_line(redact_text(self.name)).strip() if self.name is not None else run.name
        notes = redact_text(self.notes) if self.notes is not None else run.notes
        if not name and self.name is not None:
            raise JournalError("the name of a run cannot be empty")
        for what, length, most in (("name", len(name), MAX_NAME), ("notes", len(notes), MAX_NOTES)):
            if length > most and (name, notes) != (run.name, run.notes):
                raise JournalError(f"the {what} cannot be longer than {most:,} characters")
        if len(tags) > max(MAX_TAGS, len(run.tags)):
            raise JournalError(f"a run cannot have more than {MAX_TAGS} tags")
        changes = {"name": name != run.name, "notes": notes != run.notes, "tags": set(tags) != set(run.tags)}
        return replace(
            run,
            name=name,
            notes=notes,
            tags=tags,
            edited=tuple(sorted({*run.edited, *(field for field, changed in changes.items() if changed)})),
            untagged=tuple(sorted({*run.untagged, *run.tags} - {*tags})),
        )


def edit_run(folder: Path, edit: Edit) -> RunFile:
    """Change run.json, also while the training that writes it is active. Returns what it says now. Raises
    JournalError, also if it cannot be written, and RunNotFound."""
    before = run_folder.read_run(folder)
    if edit.apply(before) == before:
        return before
    try:
        mode = (folder / layout.RUN_FILE).stat().st_mode & 0o777
        changed = run_folder.change_run(folder, edit.apply, mode)
    except OSError as error:
        raise JournalError(f"cannot write {folder / layout.RUN_FILE}: {error.strerror or error}") from error
    if changed is None:
        raise RunNotFound(f"{folder} was removed meanwhile")
    return changed


def _clean(tags: Iterable[str]) -> tuple[str, ...]:
    found = (one_line(redact_text(tag)).strip() for tag in tags)
    return tuple(dict.fromkeys(tag for tag in found if tag))
