"""The run of this process: begun by `init`, logged to by `trainvitals.log`, known to callbacks.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import settings
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.run import RunFile
from trainvitals.stderr import print_line
from trainvitals.trainer import ranks

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

_current: Run | None = None
_ended: Run | None = None
_reached: dict[Path, Run] = {}
"""Runs of other processes that this one was handed."""


def current_run() -> Run | None:
    """The run that `init` started in this process and that has not ended."""
    return _current


def make_current(run: Run) -> None:
    global _current
    _current = run


def note_end(run: Run) -> None:
    """The run has ended: what is logged from now on belongs to none."""
    global _current, _ended
    if _current is run:
        _current, _ended = None, run


def log(metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
    """`Run.log` of the current run; after its end, warned of and counted as `Run.log` does."""
    run = _current or _ended
    if run is not None:
        run.log(metrics, step, **more)
    elif not _is_worker():
        raise TrainvitalsError("log() before init(): there is no run", hint='first: trainvitals.init(project="...")')
    else:  # an error here would end a training that is right
        _warn_worker()


def finish(status: str = "finished") -> None:
    """`Run.finish` of the current run; nothing happens without one."""
    if _current is not None:
        _current.finish(status)


def _is_worker() -> bool:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


@functools.cache
def _warn_worker() -> None:
    print_line("log() in a worker process that has no run: not logged. Pass it the run and call run.log()")


def reach(folder: Path, rank: ranks.Rank, given: dict[str, Any], file: RunFile, owner: int, step: int) -> Run:
    """A pickled run in the process that got it: the same run, a file of its own; only its owner can end it."""
    from trainvitals.trainer.run import Run

    known = _current if owner == os.getpid() else _reached.get(folder)
    if known is not None and known.folder == folder:
        return known
    effective = settings.resolve(given, environ={}, folder=Path(os.sep))
    run = _reached[folder] = Run(folder, rank, effective, file, first_step=step + 1)
    run.reach(owner)
    return run
