"""Which runs there are below the root, and one guarded reader for each that somebody looks at.

A request names a run by a key that is looked up in the listing: no text of a request ever becomes part of a path.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from trainvitals.errors import RunNotFound, TrainvitalsError, nearest
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.reader import RunReader
from trainvitals.views.data import run_details
from trainvitals.views.data.run_rows import read_row
from trainvitals.views.data.wire import encode
from trainvitals.views.web.endpoints import NotFound

LISTING_SECONDS = 1.0
MAX_READERS = 32


class _Guarded:
    """A reader and the lock that makes it safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self.reader = RunReader(folder)
        self.lock = threading.Lock()


class Runs:
    """The runs of one root folder. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real_root = root.resolve()
        self._lock = threading.Lock()
        self._listed = 0.0
        self._folders: dict[str, Path] = {}
        self._readers: OrderedDict[Path, _Guarded] = OrderedDict()
        self._rows: dict[Path, tuple[Any, dict[str, Any]]] = {}
        self._reading_rows = threading.Lock()
        self._encoded: dict[str, tuple[dict[str, Any], bytes]] = {}

    def folders(self) -> dict[str, Path]:
        """Every run by its key: the folder's name, or `project~name` where two projects have the same."""
        with self._lock:
            if time.monotonic() - self._listed > LISTING_SECONDS:
                self._folders = self._list()
                self._listed = time.monotonic()
            return self._folders

    def _list(self) -> dict[str, Path]:
        found: dict[str, list[Path]] = {}
        for folder in run_folder.list_folders(self.root):
            if self._is_inside(folder):
                found.setdefault(folder.name, []).append(folder)
        return {
            (name if len(same) == 1 else f"{folder.parent.name}~{name}"): folder
            for name, same in found.items()
            for folder in same
        }

    def _is_inside(self, folder: Path) -> bool:
        """A link that leads out of the root is not served, nor a run.json that is one."""
        file = folder / layout.RUN_FILE
        try:
            links = [path for path in (folder, file, folder.parent) if path.is_symlink() and path != self.root]
            return all(path.resolve(strict=True).is_relative_to(self._real_root) for path in links)
        except OSError:
            return False

    def find(self, key: str) -> Path:
        """The folder of a run; raises NotFound."""
        folders = self.folders()
        if key == "latest" and folders:
            return list(folders.values())[-1]
        folder = folders.get(key)
        if folder is None:
            with self._lock:
                self._listed = 0.0  # it may be younger than the listing
            folder = self.folders().get(key)
        if folder is None or not (folder / layout.RUN_FILE).is_file():
            shown = key if len(key) <= 80 else f"{key[:79]}…"
            raise NotFound(
                f"there is no run '{shown}'{nearest(key, folders)}",
                hint="the page Runs and 'trainvitals runs' list all of them",
            )
        return folder

    def key_of(self, folder: Path) -> str:
        """The key of a folder."""
        return next((key for key, found in self.folders().items() if found == folder), folder.name)

    @contextmanager
    def reader(self, key: str) -> Iterator[RunReader]:
        """The run's reader, for this thread alone while it is held."""
        folder = self.find(key)
        with self._lock:
            guarded = self._readers.get(folder)
            if guarded is None:
                guarded = self._readers[folder] = _Guarded(folder)
            self._readers.move_to_end(folder)
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
        with guarded.lock:
            try:
                yield guarded.reader
            except RunNotFound as error:
                self.forget(folder)
                there = (folder / layout.RUN_FILE).exists()
                hint = "it is damaged, or being copied" if there else "it was removed"
                raise NotFound(error.message, hint=hint) from error

    def forget(self, folder: Path) -> None:
        """The run is gone."""
        with self._lock:
            self._readers.pop(folder, None)
            self._rows.pop(folder, None)
            self._listed = 0.0

    def rows(self) -> list[dict[str, Any]]:
        """Every run on a line, newest first. An ended run is read again only when its files changed."""
        found = []
        with self._reading_rows:  # who comes second finds them read
            for key, folder in reversed(self.folders().items()):
                try:
                    found.append(self._row(key, folder))
                except (TrainvitalsError, OSError):
                    continue  # removed or half-copied between listing and reading
        return found

    def encode_row(self, row: dict[str, Any]) -> Any:
        """The row as it goes into an answer; that of an ended run is encoded once."""
        known = self._encoded.get(row["key"])
        if known is None or known[0] is not row:
            known = self._encoded[row["key"]] = (row, encode(row))
        return orjson.Fragment(known[1])

    def _row(self, key: str, folder: Path) -> dict[str, Any]:
        stamp = (key, _stamp(f"{folder}/{layout.RUN_FILE}"), _stamp(f"{folder}/status.json"))
        known = self._rows.get(folder)
        if known is not None and known[0] == stamp and not known[1]["live"]:
            return known[1]
        row = run_details.describe_row(read_row(folder), key)
        self._rows[folder] = (stamp, row)
        return row


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - a thousand times for one table: a Path takes as long as the question
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
