"""What a program printed, in the run folder: `console[.role-R].rankN[.stderr][.pidP].log`.

Text as a person saw it, one writer per file: escape sequences are left out, secrets are redacted, and of a progress
bar that draws itself again and again (`\\r`) about one state a second is kept. A file that grew to half of the limit
becomes `….older.log` in the place of the one before, so a program that never stops printing never fills the disk.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import NamedTuple

from trainvitals.journal.identity import Participant
from trainvitals.redaction import redact_text
from trainvitals.runtime import NO_LINK
from trainvitals.safe_text import ESCAPES
from trainvitals.settings import Settings

BAR_SECONDS = 1.0
LONGEST_LINE = 64 << 10
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f]")


def stem_of(participant: Participant, stream: str = "") -> str:
    """How its file is called, without its suffix; `stream` where standard error goes elsewhere."""
    return f"console.{participant.file_part}" + (f".{stream}" if stream else "")


def limit_of(settings: Settings) -> int:
    """Bytes that the two files of a participant may have."""
    return int(settings.console_size_mb * (1 << 20))


def show(text: str) -> str:
    """Whole lines as a terminal would have left them: of what a carriage return overwrote, the last."""
    text = _UNPRINTABLE.sub("", ESCAPES.sub("", text)).replace("\r\n", "\n")
    if "\r" not in text:
        return text
    return "\n".join(_last_state(line) for line in text.split("\n"))


def _last_state(line: str) -> str:
    return next((state for state in reversed(line.split("\r")) if state), "")


class Tidier:
    """Printed pieces, in whatever cuts they come, as text for the file."""

    def __init__(self) -> None:
        self._pending = ""
        self._next_bar = 0.0

    def feed(self, piece: str) -> str:
        """What is ready to be written: finished lines, now and then a state of a progress bar."""
        text = self._pending + piece
        lines, newline, rest = text.rpartition("\n")
        ready = show(lines) + newline if newline else ""
        if "\r" in rest:
            now = time.monotonic()
            if now >= self._next_bar and not ready:
                self._next_bar = now + BAR_SECONDS
                drawn, _, rest = rest.rpartition("\r")
                ready = _last_state(show(drawn)) + "\r"
            else:
                rest = "\r".join(rest.split("\r")[-2:])
        if len(rest) > LONGEST_LINE:
            ready, rest = f"{ready}{show(rest)}\n", ""
        self._pending = rest
        return ready

    def flush(self) -> str:
        """The unfinished line, finished."""
        rest, self._pending = _last_state(show(self._pending)), ""
        return f"{rest}\n" if rest else ""


class ConsolePlace(NamedTuple):
    """How far a file is written: enough to continue exactly there."""

    inode: int
    size: int


class ConsoleLog:
    """Appends to one such file. Nothing here raises.

    A forked child never writes to its parent's file but to a separate one, named with its process id.
    """

    def __init__(self, folder: Path, stem: str, *, limit: int, mode: int = 0o600) -> None:
        self._folder = folder
        self._stem = stem
        self._limit = limit
        self._mode = mode
        self._fd = -1
        self._size = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        return self._folder / f"{self._stem}.log"

    @property
    def place(self) -> ConsolePlace | None:
        """Its position; None if there can be no file."""
        try:
            if self._fd < 0:
                self._open()
            return ConsolePlace(os.fstat(self._fd).st_ino, self._size)
        except OSError:
            return None

    def go_back(self, place: ConsolePlace) -> None:
        """Forget what was written after `place` by a process that died before it could remember having done so."""
        try:
            self._open()
            os.ftruncate(self._fd, min(place.size if os.fstat(self._fd).st_ino == place.inode else 0, self._size))
            self._size = os.fstat(self._fd).st_size
        except OSError:
            self._close()

    def append(self, text: str) -> bool:
        """True if it is written; False if nothing of it is: the disk is full, or the folder gone."""
        data = redact_text(text).encode("utf-8", "backslashreplace")
        if os.getpid() != self._pid:
            self._be_a_child()
        with self._lock:
            try:
                if self._fd < 0:
                    self._open()
                if os.write(self._fd, data) != len(data):
                    os.ftruncate(self._fd, self._size)
                    return False
                self._size += len(data)
                if self._size > self._limit // 2:
                    self._rotate()
            except OSError:
                self._close()  # the folder may have been moved or remounted
                return False
            return True

    def close(self) -> None:
        with self._lock:
            self._close()

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | NO_LINK | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, self._mode)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self._close()
        self.path.replace(self._folder / f"{self._stem}.older.log")
        self._open()

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _be_a_child(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._close()
        self._pid = os.getpid()
        self._stem = f"{self._stem.partition('.pid')[0]}.pid{self._pid}"
