"""The output of a run's ranks, copied into the run folder from the files to which it goes.

The training knows nothing of it: the file is opened for reading, and what is new is copied about once a second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainvitals.journal.console import ConsoleLog, ConsolePlace, Tidier, limit_of, stem_of
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.status import CopiedConsole
from trainvitals.settings import Settings

LOOK_BYTES = 256 << 10
"""Copied at one look at most: looking for secrets takes time."""
MOST_BEHIND = 4 << 20
SKIP_TO = 1 << 20
"""A program that prints faster than that is followed from here on; what lies between is omitted, with a note."""


class Consoles:
    """All such files of one run on this machine."""

    def __init__(self, folder: Path, settings: Settings, known: Mapping[str, CopiedConsole]) -> None:
        """`known` is how far an agent before us had copied."""
        self._folder = folder
        self._settings = settings
        self._known = known
        self._tails: dict[tuple[int, int], Tail] = {}

    def join(self, registration: Registration) -> None:
        """Look at the files of this rank too; ranks that share one are copied once."""
        for file in registration.console:
            if file.device is None or file.inode is None or file.offset is None or not file.fds or not file.path:
                continue  # of another version
            source = (file.device, file.inode)
            if source in self._tails or Path(file.path).is_relative_to(self._folder):
                continue  # our own copy must not be copied
            opened = _open(source, (file.path, f"/proc/{registration.pid}/fd/{file.fds[0]}"))
            if opened is not None:
                mode = self._settings.file_mode
                stem = stem_of(registration.participant, file.stream)
                log = ConsoleLog(self._folder, stem, limit=limit_of(self._settings), mode=mode)
                self._tails[source] = Tail(opened, file.offset, log, source)
                self._tails[source].resume(self._known.get(log.path.name))

    def look(self) -> None:
        """Copy what is new."""
        for tail in self._tails.values():
            tail.copy(LOOK_BYTES)

    def end(self) -> None:
        """Copy the rest and close."""
        for tail in self._tails.values():
            tail.finish()
        self._tails.clear()

    def leave(self) -> None:
        """The agent stops, the run continues: another will copy the rest."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def describe(self) -> dict[str, CopiedConsole]:
        """How far each is copied."""
        return {tail.name: copied for tail in self._tails.values() if (copied := tail.describe()) is not None}


def _open(source: tuple[int, int], paths: tuple[str, ...]) -> int | None:
    """The file itself, not another that has its name by now."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            continue
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == source:
            return fd
        os.close(fd)
    return None


class Tail:
    """One file that another process writes, and our copy of it."""

    def __init__(self, fd: int, offset: int, log: ConsoleLog, source: tuple[int, int]) -> None:
        self._fd = fd
        self._offset = offset
        self._log = log
        self._source = source
        self._tidier = Tidier()

    @property
    def name(self) -> str:
        return self._log.path.name

    def resume(self, known: CopiedConsole | None) -> None:
        """Go on where an agent before us stopped, if it was this file."""
        if known is None or known.source != self._source or known.inode is None or known.size is None:
            return
        if known.offset is not None and known.offset >= self._offset:
            self._offset = known.offset
            self._log.go_back(ConsolePlace(known.inode, known.size))

    def describe(self) -> CopiedConsole | None:
        place = self._log.place
        if place is None:
            return None
        return CopiedConsole(source=self._source, offset=self._offset, inode=place.inode, size=place.size)

    def copy(self, limit: int) -> int:
        """Copy at most about `limit` bytes, whole lines or states of a progress bar. Returns the bytes taken."""
        try:
            behind = os.fstat(self._fd).st_size - self._offset
            if behind < 0:  # truncated by a log rotation: start over
                self._offset, behind = 0, os.fstat(self._fd).st_size
            if behind > MOST_BEHIND:
                skipped = behind - SKIP_TO
                if not self._log.append(f"\n[{skipped:,} bytes of output omitted]\n"):
                    return 0
                self._offset += skipped
            data = os.pread(self._fd, limit, self._offset)
        except OSError:
            return 0  # a file server that is away: it may come back
        taken = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not taken and len(data) == limit:
            taken = len(data)
        return taken if self._write(data[:taken]) else 0

    def _write(self, data: bytes) -> bool:
        ready = self._tidier.feed(data.decode("utf-8", "backslashreplace")) if data else ""
        if ready and not self._log.append(ready):
            self._tidier = Tidier()
            return False  # a full disk: it stays where it is and is copied later
        self._offset += len(data)
        return True

    def finish(self) -> None:
        while self.copy(LOOK_BYTES):
            continue
        try:
            self._write(os.pread(self._fd, LOOK_BYTES, self._offset))  # a last line without its end
        except OSError:
            pass  # what was copied is there
        rest = self._tidier.flush()
        if rest:
            self._log.append(rest)
        self.close()

    def close(self) -> None:
        os.close(self._fd)
        self._log.close()
