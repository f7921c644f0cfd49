"""A run that one process of Ray supervises while others train: Ray Train's controller, Ray Tune's driver.

It begins the run, writes what the others report to it, and learns how they end, also when they die with their node.
Tested in tests/integrations/test_ray.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals import settings
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import CUT_OFF, Cause
from trainvitals.journal.documents.events import ProgramFailure
from trainvitals.journal.documents.registration import RAY
from trainvitals.journal.documents.rows import FAILED
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.failures import read_failures
from trainvitals.journal.identity import Participant
from trainvitals.trainer import current, failure_text, ranks, ray_job
from trainvitals.trainer.ranks import Rank
from trainvitals.trainer.run import Run
from trainvitals.trainer.start import begin

_OF_THE_RUN = ("name", "config", "tags", "notes", "resume")
"""What `begin` takes besides settings."""
REPORTED = "report/"
"""Before the names of reported metrics where the workers log for themselves, with step numbers of their own."""


def settle_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `begin` that mean the same in every process of the job: what is in force where the callback is made,
    with paths that do not depend on the current folder. Raises SettingError."""
    own = {key: value for key, value in options.items() if key in _OF_THE_RUN and value is not None}
    effective = settings.resolve_for_training(_without(options, *_OF_THE_RUN))
    return {**effective.as_json(), "dir": os.path.abspath(effective.dir), **own}  # noqa: PTH100


class SupervisedRun:
    """Used by one process; the processes that train have their own parts of the run."""

    def __init__(
        self, launch: str, role: str, options: Mapping[str, Any], name: str, config: Mapping[str, Any]
    ) -> None:
        own = Rank(launcher=RAY, role=role, has_other_roles=True, supervises=True, launch=launch)
        # Many runs may share this process: what it prints is not theirs, and it has one signal handler for stacks.
        given = {"name": name, **options, "stack_dumps": False, "console": "off"}
        self.run: Run = begin(own, config={**config, **(options.get("config") or {})}, **_without(given, "config"))
        self._launch = launch
        self._ranks: dict[int, Run] = {}
        self._failures: dict[int, BaseException] = {}
        self._group_ended: float | None = None

    @property
    def folder(self) -> Path:
        return self.run.folder

    def begin_group(self) -> None:
        """Other workers than before train from now on."""
        self._write_failures()
        self._ranks.clear()
        if self._group_ended is not None:  # Ray has killed the ones before, which could not write their end
            cut_off, when = Cause(kind=CUT_OFF), self._group_ended
            mode = self.run.settings.file_mode
            run_folder.change_run(self.folder, lambda run: run.end_earlier("killed", cut_off, when), mode)

    def end_group(self) -> None:
        """These workers are ended now."""
        self._group_ended = time.time()

    def log(self, metrics: Mapping[str, Any], step: int | None = None, rank: int = 0, world_size: int = 1) -> None:
        """What a worker reported."""
        if ray_job.logs_itself(self._launch):
            metrics = {f"{REPORTED}{name}": value for name, value in metrics.items() if name != "step"}
        copy = self._find_rank(rank, world_size)
        copy.log(metrics, step)
        self.run.advance(copy.step)

    def note_failure(self, rank: int, error: BaseException) -> None:
        """A worker failed."""
        self._failures[rank] = error
        self._find_rank(rank, rank + 1)  # when it is written, the workers of the next attempt may be there
        title, cause = Participant(rank=rank).title, failure_text.explain_exception(error)
        self.run.event("worker_failed", f"{title}: {cause}", severity="warning", worker=rank)

    def _write_failures(self) -> None:
        """Of the workers that could not do it themselves, because they died: a process that was killed, a lost node."""
        for rank, error in self._failures.items():
            copy, participant = self._find_rank(rank, rank + 1), Participant(rank=rank)
            if all(item.participant != participant for item in read_failures(self.folder, copy.attempt)):
                cause, trace = failure_text.explain_exception(error), failure_text.format_traceback(error)
                copy.event(
                    FAILED, str(cause), severity="critical", **ProgramFailure(reason=cause, traceback=trace).as_json()
                )
        self._failures.clear()

    def finish(self, status: str = "finished", exception: BaseException | None = None) -> None:
        self._write_failures()
        self.run.finish(status, exception=exception)

    def interrupt(self) -> None:
        """Somebody stopped the program."""
        self.run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    def _find_rank(self, rank: int, world_size: int) -> Run:
        """A copy of the worker's part of the run, which writes separate files."""
        if rank not in self._ranks:
            known = run_folder.find_run(self.folder) or RunFile()
            seat = Rank(rank=rank, world_size=world_size, launcher=RAY, launch=self._launch)
            copy = Run(self.folder, seat, self.run.settings, known)
            copy.reach(0)
            self._ranks[rank] = copy
        return self._ranks[rank]


def join_automatically(options: Mapping[str, Any], launch: str | None = None) -> None:
    """In a process that trains: be part of the run, so that it is watched; an `init()` of the program takes over.
    `launch` is for processes that cannot find it themselves."""
    before = current.current_run()
    if before is not None:
        if not before.automatic:
            return
        before.finish()  # this process trained in another run, and has been given a new task
    if launch:
        ray_job.assign(launch)
    own = ranks.find_own(os.environ, None, None, None)
    run = begin(own, **_without(options, *_OF_THE_RUN))
    run.automatic = True
    current.make_current(run)


def leave_automatically() -> None:
    """The process will be ended by Ray: if its loop is over, that is how its part of the run ended; if not, others of
    its group have failed, or the group is resized."""
    run = current.current_run()
    if run is None:
        return
    if (end := ray_job.find_loop_end()) is not None:
        run.end_loop(end.error)
    else:
        run.leave()


def _without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in names}
