"""How a run ended, as far as its own process can tell. Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import sys
from typing import NamedTuple

from trainvitals.journal.documents.cause import INTERRUPTED, Cause
from trainvitals.trainer.failure_text import explain_exception, explain_exit, format_traceback


class Outcome(NamedTuple):
    """The status of a run from now on, and why."""

    status: str
    exception: BaseException | None = None
    cause: Cause | None = None
    is_tentative: bool = False
    """Whoever sees the exit code knows better: the agent, or `trainvitals run`."""
    traceback: str | None = None
    """Of an exception that is not kept."""

    def explain(self) -> Cause | None:
        """Its cause, or that of its exception."""
        if self.cause is None and self.exception is not None:
            return explain_exception(self.exception)
        return self.cause


def of_block(error: BaseException | None) -> Outcome:
    """Of `with init():`, which this ended."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return Outcome("finished")
    if isinstance(error, SystemExit):
        return Outcome("failed", cause=explain_exit(error.code))
    return _of_error(error)


def to_remember(error: BaseException) -> Outcome:
    """Of a training that this may turn out to have ended. The exception itself is not kept: it holds the variables of
    the training, on GPUs too."""
    outcome = of_block(error)
    if outcome.exception is None:
        return outcome
    return Outcome(outcome.status, cause=outcome.explain(), traceback=format_traceback(error))


def at_exit() -> Outcome:
    """Of a program that exits without `finish()`."""
    exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if exception is None or hasattr(sys, "ps1"):
        # An exit code cannot be seen from inside.
        return Outcome("finished", is_tentative=True)
    return _of_error(exception)


def _of_error(error: BaseException) -> Outcome:
    if isinstance(error, KeyboardInterrupt):
        return Outcome("killed", cause=Cause(kind=INTERRUPTED))
    return Outcome("failed", exception=error)
