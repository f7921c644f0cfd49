"""The view of a project, a file in the folder of its runs: read, checked, replaced.

A file that cannot be understood, or that a newer version wrote, is never written over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import orjson

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.view import FORMAT, OwnPanel, ViewFile
from trainvitals.journal.encoding import encode_line
from trainvitals.redaction import redact_text
from trainvitals.safe_text import one_line

LOCK_SECONDS = 30.0  # no training waits here
MAX_PANELS = 100
MAX_ITEMS = 100
MAX_NAMES = 500
"""Pins, hidden lines, columns and the like."""
MAX_TEXT = 500
MAX_TITLE = 200
MAX_ID = 40


def find_view(root: Path, project: str) -> ViewFile | None:
    """None if nobody has changed anything yet. Raises JournalError for a file that cannot be understood."""
    path = _folder(root, project) / layout.VIEW_FILE
    try:
        found = ViewFile.parse(runtime.load_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise JournalError(f"cannot read {path}: {why}", hint="mend it, or move it away to start anew") from None
    if found.damaged and found.format <= FORMAT:  # a newer version may mean something else by a field
        fields = ", ".join(sorted(found.damaged))
        raise JournalError(f"{path} is damaged: {fields}", hint="mend it, or move it away to start anew")
    return found


def change_view(root: Path, project: str, change: Callable[[ViewFile | None], ViewFile]) -> ViewFile:
    """Replace the view by what `change` makes of it; no other process changes it meanwhile. Raises JournalError, and
    what `change` raises."""
    folder = _folder(root, project)
    path = folder / layout.VIEW_FILE
    try:
        run_folder.make_within(root, folder.name)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            runtime.try_lock(descriptor, LOCK_SECONDS)
            found = find_view(root, project)
            if found is not None and found.format > FORMAT:
                raise JournalError(
                    f"{path} was written by a newer version of trainvitals",
                    hint="update trainvitals here to change what it keeps",
                )
            changed = check_view(change(found))
            plain = orjson.loads(encode_line(changed.as_json()))
            data = orjson.dumps(plain, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            runtime.write_atomically(path, data, run_folder.file_rights(folder))
            return changed
        finally:
            os.close(descriptor)
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error


def check_view(view: ViewFile) -> ViewFile:
    """Without secrets, lines and repetitions; raises JournalError for what is too much."""
    panels = tuple(_check_panel(panel) for panel in view.panels)
    if len({panel.id for panel in panels}) < len(panels):
        raise JournalError("two panels have the same id")
    _limit("panels", panels, MAX_PANELS)
    return replace(
        view,
        format=FORMAT,
        panels=panels,
        pins=_clean("pins", view.pins),
        log=_clean("log", view.log),
        linear=_clean("linear", view.linear),
        hide=_clean("hide", view.hide),
        columns=None if view.columns is None else _clean("columns", view.columns),
    )


def _check_panel(panel: OwnPanel) -> OwnPanel:
    title = one_line(redact_text(panel.title)).strip()
    if not panel.id or len(panel.id) > MAX_ID:
        raise JournalError(f"a panel needs an id of at most {MAX_ID} characters")
    for what, value, most in (("title", title, MAX_TITLE), ("x", panel.x, MAX_TEXT)):
        if len(value) > most:
            raise JournalError(f"{what} of panel {panel.id}: longer than {most} characters")
    items = _clean(f"items of panel {panel.id}", panel.items, MAX_ITEMS)
    return replace(panel, title=title, items=items)


def _clean(what: str, texts: Iterable[str], most: int = MAX_NAMES) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text for text in texts if text))
    _limit(what, found, most)
    if any(len(text) > MAX_TEXT for text in found):
        raise JournalError(f"{what}: a text is longer than {MAX_TEXT} characters")
    return found


def _limit(what: str, found: tuple[object, ...], most: int) -> None:
    if len(found) > most:
        raise JournalError(f"{what}: {len(found):,} are too many, the most is {most}")


def _folder(root: Path, project: str) -> Path:
    """Raises JournalError where it is a link: whoever made that may not decide where we write."""
    folder = root / run_folder.project_folder(project)
    if folder.is_symlink():
        raise JournalError(f"{folder} is a link: no view is kept there")
    return folder
