"""Notes about runs for the next agent, in the runtime folder: what this one had not finished, however it ends.

The folder's path is its name, as a digest: folders of one name are many.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal.encoding import encode_line
from trainvitals.settings import Settings


class FolderNote(NamedTuple):
    """A run, the settings that it had, and what else whoever wrote it has to know again."""

    folder: Path
    settings: Mapping[str, Any]
    more: Mapping[str, Any] = {}


class FolderNotes:
    """Those of one purpose: a file for each run."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose

    def write(self, folder: Path, settings: Settings, **more: Any) -> None:
        """Raises OSError."""
        path = self._path(folder)
        runtime.make_folders(path.parent)
        runtime.write_atomically(path, encode_line({**more, "folder": str(folder), "settings": settings.as_json()}))

    def remove(self, folder: Path) -> None:
        """That of this run, if there is one."""
        self._path(folder).unlink(missing_ok=True)

    def list_folders(self) -> list[Path]:
        """The runs of this user that have one."""
        return [note.folder for note in self._find().values()]

    def take(self) -> list[FolderNote]:
        """All of this user, for who goes on with them: those of earlier versions get the name under which they are
        removed."""
        found = self._find()
        for path, note in found.items():
            if path != self._path(note.folder):
                with contextlib.suppress(OSError):  # then it is taken again by the next agent
                    path.replace(self._path(note.folder))
        return list(found.values())

    def _find(self) -> dict[Path, FolderNote]:
        place = self._place()
        paths = sorted(place.glob("*.json")) if place.is_dir() else []
        found = ((path, runtime.read_json(path, own=True)) for path in paths)
        return {
            path: FolderNote(Path(str(note.pop("folder", ""))), note.pop("settings", None) or {}, note)
            for path, note in found
            if note is not None
        }

    def _place(self) -> Path:
        return runtime.runtime_dir() / self._purpose

    def _path(self, folder: Path) -> Path:
        name = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
        return self._place() / f"{name}.json"
