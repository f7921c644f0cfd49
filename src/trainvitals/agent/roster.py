"""Who wants to be watched on this machine: the registrations, each file read again only when it has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainvitals.agent.log import BoundLog
from trainvitals.journal.documents.registration import Registration
from trainvitals.ownership import explain_foreign

SETTLED_NS = 2_000_000_000
"""A folder changed just now may change again within the same tick of the file system's clock."""

_Stamp = tuple[int, int, int]


class Roster:
    """The registrations of one host."""

    def __init__(self, runtime_folder: Path, host: str, log: BoundLog) -> None:
        self._folder = runtime_folder / "runs"
        self._host = host
        self._log = log
        self._listed = 0
        self._known: dict[str, tuple[_Stamp, Registration | None]] = {}

    def has_changed(self) -> bool:
        """Whether there may be something new since `read`."""
        return self._changed() != self._listed

    def look_again(self) -> None:
        """What was found could not be used yet."""
        self._listed = 0

    def read(self) -> dict[Path, Registration]:
        """Those of this host, the newest first; files that are not ours are left out."""
        changed = self._changed()
        self._listed = changed if time.time_ns() - changed > SETTLED_NS else 0
        known, self._known = self._known, {}
        for name, stamp in self._list():
            before = known.get(name)
            if before is None or before[0] != stamp:
                before = (stamp, self._read(self._folder / name))
            self._known[name] = before
        return {
            self._folder / name: item
            for name, (_, item) in sorted(self._known.items(), reverse=True)  # run ids sort by time
            if item is not None and item.host == self._host
        }

    def _read(self, path: Path) -> Registration | None:
        found = Registration.read(path)
        if found is None and path.exists() and (why := explain_foreign(path)) is not None:
            self._log.warn_once("a registration is not used", file=path.name, reason=why)
        return found

    def _changed(self) -> int:
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return -1

    def _list(self) -> list[tuple[str, _Stamp]]:
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(".json") and entry.name[0] != "."]
        except FileNotFoundError:
            return []  # nobody has registered yet
        return [(name, stamp) for name in names if (stamp := _read_stamp(self._folder / name)) is not None]


def _read_stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None  # taken away this moment
    return status.st_mtime_ns, status.st_ino, status.st_size
