"""Requests that wait on disk for a server that is away: one file each, sent in order, bounded in size.

A request is there before it is sent and goes when it was taken, so neither side's death loses one.
Tested in tests/exporters/test_remote_write.py.
"""

from __future__ import annotations

import os
from pathlib import Path


class Spool:
    """A folder of numbered files. One process writes and reads it."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most = most_bytes
        self.dropped = 0
        """Requests given up because there was no more room."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(".*"):
            left.unlink(missing_ok=True)  # half-written when an earlier process died
        self._sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.request"))}
        last = max(self._sizes, default="0.request")
        self._next = int(last.partition(".")[0]) + 1

    @property
    def pending_bytes(self) -> int:
        return sum(list(self._sizes.values()))

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, body: bytes, moment: float) -> None:
        """Keep a request with values of this moment; the oldest ones go if there is no room. Raises OSError on a full
        disk."""
        name = f"{self._next:016d}.request"
        self._next += 1
        temporary = self._folder / f".{name}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.utime(temporary, (moment, moment))
        temporary.replace(self._folder / name)
        self._sizes[name] = len(body)
        while self.pending_bytes > self._most and len(self._sizes) > 1:
            self.done(next(iter(self._sizes)))
            self.dropped += 1

    def oldest(self) -> tuple[str, float, bytes] | None:
        """(its name, its moment, the request) that waits longest; None when nothing waits."""
        for name in list(self._sizes):
            path = self._folder / name
            try:
                return name, path.stat().st_mtime, path.read_bytes()
            except FileNotFoundError:
                self._sizes.pop(name, None)  # somebody emptied the folder
        return None

    def done(self, name: str) -> None:
        """It was taken, or never will be."""
        self._sizes.pop(name, None)
        (self._folder / name).unlink(missing_ok=True)
