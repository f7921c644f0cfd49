"""A log of lines in a file that never grows beyond a bound: full, it becomes `name.1`, the one before it `name.2`, and
the oldest is removed. Tested in tests/agent/test_log.py."""

from __future__ import annotations

import os
import threading
from pathlib import Path


class LineLog:
    """Appends to `path`: files of at most `max_bytes` each, and so many older ones."""

    def __init__(self, path: Path, *, max_bytes: int, kept_files: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._kept_files = kept_files
        self._lock = threading.Lock()
        self._fd = -1
        self._size = 0

    def write(self, line: bytes) -> None:
        """Append one line, with its end. Raises OSError."""
        with self._lock:
            if self._fd < 0 or self._size + len(line) > self._max_bytes:
                self._open()
            os.write(self._fd, line)
            self._size += len(line)

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.path.exists() and self.path.stat().st_size + 1024 > self._max_bytes:
            for number in range(self._kept_files, 0, -1):
                older = self.path if number == 1 else self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
