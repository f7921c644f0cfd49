"""Event files and tables that programs of a run write, followed by a child process
(`trainvitals.trackers.program_files`).
Tested in tests/trainer/test_program_files.py."""

from __future__ import annotations

import json
import subprocess
import sys

from trainvitals.agent.run_context import RunContext
from trainvitals.exporters.child import child_environment
from trainvitals.journal.identity import Participant
from trainvitals.trackers.program_files.notes import NOTES, read_notes

RETRY_SECONDS = 10.0
"""After which a child that died is started again."""
LAST_SECONDS = 60.0
"""How long it gets for what is left when the program has ended. It takes a moment, unless there is very much."""


class ProgramFiles:
    """Those of one run. Used by the thread of the run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._child: subprocess.Popen[bytes] | None = None
        self._next_start = 0.0
        self._deadline: float | None = None
        self._noted_size = 0
        self._participants: frozenset[Participant] = frozenset()

    def is_written_by(self, participant: Participant) -> bool:
        """Whether a process of this participant writes such files."""
        return participant in self._participants

    def look(self, now: float) -> bool:
        """Follow the files, once there are any. Whether others than before write some."""
        if self._deadline is not None:
            return False  # the program has ended, and the child is at the rest of it
        try:
            size = (self._context.folder / NOTES).stat().st_size
        except OSError:
            return False
        if self._child is None or (self._child.poll() is not None and now >= self._next_start):
            self._start(now)
        if size == self._noted_size:
            return False
        self._noted_size, before = size, self._participants
        self._participants = frozenset(Participant(rank=note.rank) for note in read_notes(self._context.folder))
        return self._participants != before

    def _start(self, now: float) -> None:
        self._next_start = now + RETRY_SECONDS
        settings = self._context.settings
        given = {
            "shared": settings.shared,
            "rotate_size_mb": settings.rotate_size_mb,
            "redact": settings.redact,
            "media_file_mb": settings.media_file_mb,
            "media_size_mb": settings.media_size_mb,
        }
        try:
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "trainvitals.trackers.program_files"),
                    *(str(self._context.folder), json.dumps(given)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment({}),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._context.log.warn_once("files of the program cannot be followed", error=str(error))

    def finish(self, now: float) -> bool:
        """The program has ended: have the rest written. True when it is, or takes too long."""
        if self._deadline is None:
            if self._child is not None and self._child.poll() is not None:
                self._start(now)  # it died: the rest is worth another try
            self._deadline = now + LAST_SECONDS
            self.leave()
        if self._child is None or self._child.poll() is not None:
            return True
        if now > self._deadline:
            self._child.kill()
            self._child.wait()
        return now > self._deadline

    def leave(self) -> None:
        """Have the child end with what is there."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
