"""The current run of this process: started by `init`, used by `trainvitals.log` and by callbacks.
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
"""Runs of other processes that were passed to this one."""


def current_run() -> Run | None:
    """The run that `init` started in this process and that has not ended."""
    return _current


def make_current(run: Run) -> None:
    global _current
    _current = run


def note_end(run: Run) -> None:
    """The run has ended: from now on there is no current run."""
    global _current, _ended
    if _current is run:
        _current, _ended = None, run


def log(metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
    """`Run.log` of the current run; after its end, warns once and counts as `Run.log` does."""
    run = _current or _ended
    if run is not None:
        run.log(metrics, step, **more)
    elif not _is_worker():
        raise TrainvitalsError("log() called before init()", hint='call trainvitals.init(project="...") first')
    else:  # an error here would end a correct training
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
    print_line("log() in a worker process without a run: not logged. Pass the run to it and call run.log()")


def reach(folder: Path, rank: ranks.Rank, given: dict[str, Any], file: RunFile, owner: int, step: int) -> Run:
    """A pickled run in the receiving process: the same run, a separate file; only its owner can end it."""
    from trainvitals.trainer.run import Run

    known = _current if owner == os.getpid() else _reached.get(folder)
    if known is not None and known.folder == folder:
        return known
    effective = settings.resolve(given, environ={}, folder=Path(os.sep))
    run = _reached[folder] = Run(folder, rank, effective, file, first_step=step + 1)
    run.reach(owner)
    return run
