"""Rows of runs that have ended and that an exporter has not accepted yet: they are sent from the files, for a while.

A tracker that is down or slow when a run ends gets the rest here. A note in the runtime folder lets the next agent go
on; where a tracker stays away, `trainvitals export RUN --to ...` sends the rest.
Tested in tests/exporters/test_delivery.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainvitals.agent import status
from trainvitals.agent.log import BoundLog
from trainvitals.agent.row_exporting import find_incomplete
from trainvitals.agent.sealing import SegmentChildren
from trainvitals.exporters.delivery import deliver
from trainvitals.exporters.rows import LEAVE_PATIENCE, RunDescription, RunEnd
from trainvitals.exporters.start import start_runner
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.status import Status
from trainvitals.journal.folder_notes import FolderNotes
from trainvitals.journal.follower import Relay
from trainvitals.journal.layout import FileName
from trainvitals.ownership import explain_foreign
from trainvitals.settings import Settings

PATIENCE = 3600.0
"""Seconds without a row that is accepted, after which the agent gives up."""
AT_ONCE = 4
"""Runs that are sent side by side."""
NOTES = FolderNotes("exports")


@dataclass(slots=True, eq=False)
class _Rest:
    """One run with rows to send."""

    folder: Path
    settings: Settings
    environment: Mapping[str, str] = field(repr=False)
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class LateExports:
    """Those of one agent."""

    def __init__(self, host: str, log: BoundLog, patience: float = PATIENCE) -> None:
        self._host = host
        self._log = log
        self._patience = patience
        self._lock = threading.Lock()
        self._rests: dict[Path, _Rest] = {}
        self._closing = False

    @property
    def busy(self) -> bool:
        return bool(self._rests)

    def add(self, folder: Path, settings: Settings, environment: Mapping[str, str]) -> None:
        """Send what is left of this run, which has ended, or leave it to the next agent if this one ends."""
        try:
            NOTES.write(folder, settings)
        except OSError as error:
            self._log.warning("cannot note exports for the next agent", error=str(error))
        with self._lock:
            if not self._closing:
                self._rests[folder] = _Rest(folder, settings, environment)
        self._start_next()

    def take_up(self, make_settings: Callable[[Mapping[str, Any]], Settings]) -> int:
        """At the agent's start: what an earlier agent has noted. Returns how many runs that concerns."""
        notes = NOTES.take()
        for note in notes:
            self.add(note.folder, make_settings(note.settings), os.environ)
        return len(notes)

    def adopt(self, folder: Path) -> None:
        """The run is watched again: whoever does that sends the rest. Waits until this one has let go."""
        with self._lock:
            rest = self._rests.get(folder)
        if rest is not None:
            rest.stop.set()
            if rest.thread is not None:
                rest.thread.join(2 * LEAVE_PATIENCE)
            with self._lock:
                self._rests.pop(folder, None)
        NOTES.remove(folder)

    def close(self) -> None:
        """The agent ends; the notes stay."""
        with self._lock:
            self._closing = True
            rests = list(self._rests.values())
        for rest in rests:
            rest.stop.set()
        for rest in rests:
            if rest.thread is not None:
                rest.thread.join(LEAVE_PATIENCE)

    def _start_next(self) -> None:
        with self._lock:
            free = AT_ONCE - sum(rest.thread is not None for rest in self._rests.values())
            waiting = [rest for rest in self._rests.values() if rest.thread is None and not self._closing]
            for rest in waiting[: max(free, 0)]:
                rest.thread = threading.Thread(target=self._work, args=(rest,), name="late exports", daemon=True)
                rest.thread.start()

    def _work(self, rest: _Rest) -> None:
        done = True
        try:
            done = self._send(rest)
        except Exception as error:  # noqa: BLE001 - one run's trouble must not end the agent
            self._log.exception_once("sending the rest of a run failed", error, folder=str(rest.folder))
        if not rest.stop.is_set():
            NOTES.remove(rest.folder)
            if not done:
                self._log.warning(
                    "giving up sending a run; to send the rest: trainvitals export RUN --to EXPORTER",
                    folder=str(rest.folder),
                )
        with self._lock:  # last: an agent that has nothing left to do ends, and a note would be taken up by the next
            self._rests.pop(rest.folder, None)
        self._start_next()

    def _send(self, rest: _Rest) -> bool:
        folder, host = rest.folder, self._host
        about = run_folder.find_run(folder)
        if about is None or not about.is_over or explain_foreign(folder) is not None:
            return True  # removed, live again, or not to be trusted
        known = status.read_own(folder, host)
        run = RunDescription(about.id or folder.name, folder, host, about.attempt, about, rest.environment)
        wishes = find_incomplete(rest.settings, run, known.row_exports)
        if not wishes:
            return True
        warn = partial(self._log.warning, "exporter", folder=str(folder))
        runners = [
            start_runner(wish, run, known.row_exports.get(wish.exporter.name), lambda text: warn(reason=text))
            for wish in wishes
        ]
        mode = rest.settings.file_mode
        return deliver(
            runners,
            Relay(folder, _is_ours(known, run_folder.own_token(folder, host)), read_sealed=SegmentChildren().read),
            RunEnd.of(about),
            lambda exports: status.write_row_exports(folder, host, exports, mode),
            stop=rest.stop,
            patience=self._patience,
        )


def _is_ours(known: Status, token: str | None) -> Callable[[FileName], bool]:
    """What the agent of this host handed to its exporters while the run lived."""
    participants = known.participants()

    def is_ours(file: FileName) -> bool:
        if file.table == "training":
            return file.participant in participants
        return file.table in layout.LINE_TABLES or file.host == token

    return is_ours


def list_unsent() -> list[Path]:
    """The runs that have ended and that an exporter does not have as a whole."""
    return NOTES.list_folders()
