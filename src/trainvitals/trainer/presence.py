"""What connects the process of a run with its agent: registration, kept console output, the signal for stacks, and
notebook cells. Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import runtime
from trainvitals.errors import TrainvitalsError
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import (
    RAY,
    ConsoleFile,
    PhaseNote,
    Registration,
    new_registration,
)
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.trainer import console, notebook, ray_job, stacks
from trainvitals.trainer.ranks import Rank
from trainvitals.trainer.refusals import Refusals

if TYPE_CHECKING:
    from trainvitals.trainer.tee import Tee

AGENT_CHECK_SECONDS = 15


class Presence:
    """Of one rank."""

    def __init__(self, folder: Path, file: RunFile, rank: Rank, settings: Settings, refusals: Refusals) -> None:
        self._refusals = refusals
        self._folder = folder
        self._file = file
        self._rank = rank
        self._settings = settings
        self._registered: tuple[Path, Registration] | None = None
        self._cells: notebook.Cells | None = None
        self._tee: Tee | None = None
        self._is_readable = False
        self._next_check = time.monotonic() + AGENT_CHECK_SECONDS

    def announce(self, on_cell_end: Callable[[], None]) -> None:
        """Register this rank with the agent, and make sure that an agent runs."""
        try:
            shell = notebook.find_shell()
            arm = self._settings.stack_dumps and self._settings.hang_signal
            signal_number, stack_file = stacks.arm(self._folder, self._rank.participant) if arm else (None, None)
            registration = new_registration(
                self._folder,
                os.getpid(),
                attempt=self._file.attempt,
                local_rank=self._rank.local_rank,
                world_size=self._rank.world_size,
                local_world_size=self._rank.local_world_size,
                **self._describe_in_ray(),
                correlation_id=self._file.correlation_id,
                stack_signal=signal_number,
                stack_file=str(stack_file) if stack_file else None,
                cell=None if shell is None else format_time(),
                settings=self._settings.as_json(),
                console=self._keep_console(),
                **self._rank.participant.labels,
            )
            self._registered = (registrations.register(registration), registration)
            if self._rank.launcher == RAY:
                self._announce_driver()
            if shell is not None:

                def end_cell() -> None:
                    on_cell_end()
                    self._note_cell("")

                self._cells = notebook.Cells(shell, self._note_cell, end_cell)
            if self._settings.agent and not runtime.ensure_agent():
                print_line(
                    "the agent could not be started: metrics are logged, hardware is not (run trainvitals doctor)"
                )
            self._let_agent_read()
        except Exception as error:  # noqa: BLE001 - watching is a help, never a condition for training
            reason = error if isinstance(error, TrainvitalsError) else repr(error)
            print_line(f"this run is not monitored by an agent: {reason!s:.300}")

    def _describe_in_ray(self) -> dict[str, Any]:
        job = {"ray_job": ray_job.job_id_of(self._rank.launch)} if self._rank.launch else {}
        if self._rank.launcher != RAY:
            raylet = ray_job.find_raylet() if job else None  # of a driver, which may be anywhere
            return {**job, "raylet": raylet} if raylet is not None else {}
        return {
            "launcher": RAY,
            **job,
            "visible_devices": ray_job.own_devices(runtime.visible_devices()),
        }

    def _announce_driver(self) -> None:
        """Register the driver of a Ray job, too: how it ends is how the run ends, and Ray ends the others with it."""
        pid = ray_job.find_driver()
        if pid is None or any(item.pid == pid for _, item in registrations.read_all(self._folder.name)):
            return
        settings = {**self._settings.as_json(), "stack_dumps": False, "console": "off"}
        attempt, correlation_id = self._file.attempt, self._file.correlation_id
        registration = new_registration(
            self._folder, pid, role=ray_job.DRIVER, attempt=attempt, correlation_id=correlation_id, settings=settings
        )
        registrations.register(registration)

    def _keep_console(self) -> tuple[ConsoleFile, ...]:
        """Keep the output of this process. Returns the files that the agent must copy for that."""
        files = console.find_files() if self._settings.console != "off" else ()
        if self._settings.console == "tee":
            from trainvitals.trainer.tee import Tee

            kept = {fd for file in files for fd in file.fds}
            streams = [stream for fd, stream in ((1, sys.stdout), (2, sys.stderr)) if fd not in kept]
            shown = [stream for stream in streams if stream is not None]
            self._tee = Tee(self._folder, self._rank.participant, self._settings, shown)
        return files

    def look_after_agent(self) -> None:
        """Check a lock now and then; the agent is restarted only if it died."""
        if time.monotonic() > self._next_check:
            self._next_check = time.monotonic() + AGENT_CHECK_SECONDS
            if self._settings.agent and self._registered is not None:
                runtime.ensure_agent()
                self._let_agent_read()

    def _let_agent_read(self) -> None:
        """Once there is an agent: let it read the stacks of this process from outside."""
        if self._settings.stack_dumps and not self._is_readable and (about := runtime.read_agent_file()) is not None:
            self._is_readable = True
            stacks.allow_reading(about["pid"])

    def _note_cell(self, began: str) -> None:
        """Report the running notebook cell to the agent: when it started, or that none is running."""
        self._report("cell", "running cell", lambda path, known: registrations.note_cell(path, known, began))

    def note_phase(self, phase: PhaseNote) -> None:
        """Report what the process is doing within its step to the agent."""
        self._report("phase", "phase of the step", lambda path, known: registrations.note_phase(path, known, phase))

    def _report(self, topic: str, what: str, note: Callable[[Path, Registration], Registration]) -> None:
        if self._registered is None:
            return
        path, registration = self._registered
        try:
            self._registered = (path, note(path, registration))
        except OSError as error:  # the runtime folder is not writable: what is not reported may be taken for a stall
            self._refusals.warn_once(topic, f"cannot report the {what} to the agent: {error.strerror}")

    def let_go(self) -> None:
        """Detach from the user's program."""
        if self._tee is not None:
            self._tee.remove()
        if self._cells is not None:
            self._cells.remove()

    def end(self, status: str) -> None:
        """Report how the rank ended. Raises OSError."""
        if self._registered is not None:
            path, registration = self._registered
            self._registered = (path, registrations.note_end(path, registration, status))
