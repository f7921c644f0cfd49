"""The runs below a folder, by key: the folder's name, or `project~name` where two projects have the same.
Tested in tests/views/test_memory_runs.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.contracts import RunRef
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.run_info import RunInfo, find_info

if TYPE_CHECKING:  # numpy, which a list of runs does not wait for
    from trainvitals.journal.reader import RunReader


class FolderRuns:
    """Implements `contracts.Runs`. With `inside_only`, links that lead out of the root are left out: who may ask for a
    run by name then learns nothing of other folders."""

    def __init__(self, root: Path, *, inside_only: bool = False) -> None:
        self.root = root
        self._inside_only = inside_only
        self._folders: dict[str, Path] = {}

    @property
    def place(self) -> str:
        return str(self.root)

    def list_keys(self) -> list[str]:
        """Every run, oldest first."""
        real_root = self.root.resolve()
        found: dict[str, list[Path]] = {}
        for folder in run_folder.list_folders(self.root):
            if not self._inside_only or self._is_inside(folder, real_root):
                found.setdefault(folder.name, []).append(folder)
        self._folders = {
            (name if len(same) == 1 else f"{folder.parent.name}~{name}"): folder
            for name, same in found.items()
            for folder in same
        }
        return list(self._folders)

    def find(self, reference: str) -> str:
        """The key of a run by key, id, name, unique part of either, or `latest`; raises RunNotFound."""
        keys = self.list_keys()
        if reference in self._folders:
            return reference
        found = run_folder.find(reference, self.root)
        return next((key for key in keys if self._folders[key] == found), found.name)

    def describe(self, key: str) -> RunInfo:
        """The run at a glance: also an unreadable one, with the reason."""
        return find_info(self.folder(key))

    def statuses(self, key: str) -> list[Status]:
        """What the agent of each host reported last."""
        return run_folder.read_statuses(self.folder(key))

    def alerts(self, key: str) -> list[AlertRow]:
        """Every line of its alerts, in order of time."""
        folder = self.folder(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Most runs have none, and a list asks thousands: the rest waits for one that has.
            if not any(name.startswith("alerts_") for name in os.listdir(folder)):  # noqa: PTH208
                return []
        from trainvitals.journal.follower import read_table

        return [AlertRow.parse(line) for _, line in read_table(folder, "alerts")]

    def findings(self, key: str) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        return run_folder.find_findings(self.folder(key))

    def stamp(self, key: str) -> object:
        """Equal to an earlier one as long as all of the above is what it was for an ended run."""
        folder = self.folder(key)
        return folder, *(_stamp(f"{folder}/{name}") for name in (layout.RUN_FILE, "status.json", layout.FINDINGS_FILE))

    def open(self, key: str) -> RunReader:
        """A new reader; raises RunNotFound."""
        from trainvitals.journal.reader import RunReader

        folder = self.folder(key)
        if not (folder / layout.RUN_FILE).exists():
            raise RunNotFound(f"run {key} was removed")
        return RunReader(folder)

    def folder(self, key: str) -> Path:
        """Where the run is; raises RunNotFound."""
        folder = self._folders.get(key)
        if folder is None:
            self.list_keys()  # it may be younger than the last look
            folder = self._folders.get(key)
        if folder is None:
            raise RunNotFound(f"no run '{key}' in {self.root}", hint="list them: trainvitals runs")
        return folder

    def _is_inside(self, folder: Path, real_root: Path) -> bool:
        file = folder / layout.RUN_FILE
        try:
            links = [path for path in (folder, file, folder.parent) if path.is_symlink() and path != self.root]
            return all(path.resolve(strict=True).is_relative_to(real_root) for path in links)
        except OSError:
            return False


def refer_to(folder: Path) -> RunRef:
    """The run in this folder, wherever that is."""

    def open() -> RunReader:
        from trainvitals.journal.reader import RunReader

        return RunReader(folder)

    return RunRef(str(folder), open)


def name_runs(folders: Sequence[Path]) -> list[tuple[str, RunReader]]:
    """Each run under a name that no other of them has: the folder's, with the project where two share one."""
    from trainvitals.journal.reader import RunReader

    names = [folder.resolve().name for folder in folders]
    return [
        (name if names.count(name) == 1 else f"{folder.resolve().parent.name}~{name}", RunReader(folder))
        for name, folder in zip(names, folders, strict=True)
    ]


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - a thousand times for one table: a Path takes as long as the question
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
