"""A copy of Python's output, for the Logs page: only with `console=tee`, for it touches the program's streams.

Where output goes to a terminal or a pipe, only the process itself can see it. The `write` of `sys.stdout` and
`sys.stderr` is wrapped; they stay the same objects with the same file descriptors, encoding and buffer. What C code
and other programs print is not seen.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainvitals.handlers import is_from_handler
from trainvitals.journal.console import ConsoleLog, Tidier, limit_of, stem_of
from trainvitals.journal.identity import Participant
from trainvitals.settings import Settings


class Tee:
    """Copies Python's output to the run folder, line by line. Never raises, whatever the disk does."""

    def __init__(self, folder: Path, participant: Participant, settings: Settings, streams: Sequence[Any]) -> None:
        mode = settings.file_mode
        stem = stem_of(participant, "stderr" if list(streams) == [sys.stderr] else "")
        self._log = ConsoleLog(folder, stem, limit=limit_of(settings), mode=mode)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._lost = 0
        self._tidiers: dict[str, Tidier] = {}
        self._placed: list[tuple[Any, Callable[[str], int]]] = []
        for stream in streams:
            self._place(stream)

    def _place(self, stream: Any) -> None:
        original = stream.write
        name = "stderr" if stream is sys.stderr else "stdout"

        def write(text: str) -> int:
            count: int = original(text)
            self._copy(name, text)
            return count

        try:
            stream.write = write
        except AttributeError:
            return  # a foreign stream that cannot be modified
        self._placed.append((stream, write))

    def _copy(self, name: str, text: str) -> None:
        try:
            self._note_fork()
            with self._lock:
                self._append(self._tidiers.setdefault(name, Tidier()).feed(text))
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's print: nothing of ours may stop it.

    def _append(self, ready: str) -> None:
        if not ready:
            return
        note = f"[{self._lost:,} characters of output could not be written]\n" if self._lost else ""
        self._lost = 0 if self._log.append(note + ready) else self._lost + len(ready)

    def _note_fork(self) -> None:
        """A forked child drops the parent's unfinished line."""
        if os.getpid() != self._pid:
            self._pid, self._lock, self._tidiers, self._lost = os.getpid(), threading.RLock(), {}, 0

    def remove(self) -> None:
        """Restore the streams and write the unfinished lines."""
        for stream, write in self._placed:
            if vars(stream).get("write") is write:
                del stream.write
        self._placed.clear()
        with self._lock:
            for tidier in self._tidiers.values():
                self._append(tidier.flush())
            self._log.close()
