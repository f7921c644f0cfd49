"""One voice for a run on several hosts that share its folder: who claims a rule first speaks for it.

A claim is a file created exclusively, which also holds on NFS. Where hosts do not share the folder they cannot know of
each other, and each speaks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from trainvitals.journal.layout import safe_name

FOLDER = "claims"
EXPIRES_SECONDS = 900.0
"""A claim that nobody refreshed is that of a host that died."""


class Claims:
    """The claims of this host in one run folder."""

    def __init__(self, folder: Path, host: str) -> None:
        self._folder = folder / FOLDER
        self._host = host
        self._mine: set[Path] = set()

    def take(self, rule: str) -> bool:
        """Whether this host may speak for the rule."""
        path = self._folder / safe_name(rule)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return True  # better notified twice than not at all
        for _ in range(2):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                if path in self._mine:
                    return True
                if not self._is_expired(path):
                    return False
                path.unlink(missing_ok=True)
                continue
            except OSError:
                return True
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self._host)
            self._mine.add(path)
            return True
        return False

    def _is_expired(self, path: Path) -> bool:
        try:
            if path.read_text(encoding="utf-8") == self._host:
                self._mine.add(path)  # ours, from before a restart
                return True
            return time.time() - path.stat().st_mtime > EXPIRES_SECONDS
        except OSError:
            return True

    def release(self, rule: str) -> None:
        """It is over: the next time, whoever sees it first speaks."""
        path = self._folder / safe_name(rule)
        if path in self._mine:
            self._mine.discard(path)
            path.unlink(missing_ok=True)

    def refresh(self) -> None:
        """Say that we are still here."""
        for path in list(self._mine):
            try:
                os.utime(path)
            except OSError:
                self._mine.discard(path)
