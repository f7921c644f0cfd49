"""What the training reports about itself in run.json, followed while it is watched.
Tested in tests/agent/test_closing.py."""

from __future__ import annotations

import time
from pathlib import Path

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.failures import Failure, read_failures
from trainvitals.journal.identity import Participant


class RunAccount:
    """run.json as it was last read, and which attempt is watched."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.attempt = attempt
        self.file = RunFile()
        self.ended_at: float | None = None
        """When it was first seen that the training wrote its end, by the monotonic clock."""
        self._folder = folder
        self._stamp: object = None

    def begin_attempt(self, attempt: int) -> None:
        """A launcher started the ranks again in the same folder."""
        self.attempt = attempt
        self.ended_at = None

    def look(self, now: float) -> None:
        """Read run.json if it was replaced."""
        try:
            found = (self._folder / layout.RUN_FILE).stat()
        except OSError:
            return
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            self.read()
        if self.ended_at is None and self.has_ended:
            self.ended_at = now

    def read(self) -> RunFile:
        """Read run.json whether or not it seems to be the same."""
        self.file = run_folder.find_run(self._folder) or self.file
        return self.file

    @property
    def has_ended(self) -> bool:
        """Whether the training wrote the end of this attempt, and not only tentatively."""
        return self.file.has_ended(self.attempt)

    @property
    def end_time(self) -> float | None:
        """When this attempt ended, in seconds since 1970, once the training has written it."""
        return parse_time(self.file.ended) if self.has_ended else None

    def read_seconds(self) -> float:
        """How long this attempt took, as run.json has it now; 0 if that is not known."""
        self.read()
        began, ended = parse_time(self.file.started), self.end_time
        return ended - began if began is not None and ended is not None else 0.0

    @property
    def has_exit_status(self) -> bool:
        """Whether `trainvitals run` wrote how the program ended, which it alone knows for certain."""
        known = self.file.exit_code is not None or self.file.signal is not None
        return known and self.file.attempt == self.attempt

    def is_led_by(self, registration: Registration) -> bool:
        """Whether it is the one that writes run.json: rank 0, or the first to come in a run without trainers."""
        process = self.file.process
        wrote = (registration.pid, registration.host) == (process.pid, process.host)
        return wrote or registration.participant == Participant()

    def failures(self) -> list[Failure]:
        """The exceptions of all ranks, and what rank 0 wrote about the end, each at its time by the monotonic clock."""
        found = read_failures(self._folder, self.attempt)
        if (ended := self.end_time) is not None:
            found.append(Failure(ended, Participant(), self.file.cause or Cause()))
        ago = time.time() - time.monotonic()
        return [item._replace(time=item.time - ago) for item in found]
