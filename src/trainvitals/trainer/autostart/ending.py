"""Why a Python under `trainvitals run` fails when it has no run yet: an error before the first step, wrong arguments,
`sys.exit("text")`.

`site/sitecustomize.py` calls `note_exit` when the program requests a non-zero exit code, and `write_failure` when the
interpreter exits. Nothing of this changes what the program prints.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType
from typing import NamedTuple

from trainvitals.journal.documents.cause import Cause
from trainvitals.trainer import failure_text


class _Exit(NamedTuple):
    cause: Cause
    stack: str


_exit: _Exit | None = None
"""The newest `sys.exit`. The program may have caught it: only `trainvitals run` knows the exit code in the end."""


def note_exit(code: object, caller: FrameType) -> None:
    """The program called `sys.exit(code)` in the frame `caller`; `code` does not mean success."""
    global _exit
    cause = failure_text.explain_exit(code, _printed_by_argparse(caller), sys.exc_info()[1])
    stack = "".join(traceback.format_stack(caller)) if cause.detail else ""
    _exit = _Exit(cause, failure_text.cut_traceback(stack))


def _printed_by_argparse(caller: FrameType) -> str:
    """The line that argparse printed before it exits; empty if it is not argparse that does."""
    if caller.f_code.co_name == "exit" and caller.f_globals.get("__name__") == "argparse":
        return str(caller.f_locals.get("message") or "")
    return ""


def write_failure(began: float) -> None:
    """The interpreter exits: write what the exit code does not contain. `began` is when this process started."""
    if hasattr(sys, "ps1"):
        return
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        if not isinstance(error, KeyboardInterrupt) and not failure_text.is_written(error):
            _write(failure_text.explain_exception(error), failure_text.format_traceback(error), began)
    elif _exit is not None and _exit.cause.detail:
        _write(*_exit, began)


def _write(cause: Cause, trace: str, began: float) -> None:
    from trainvitals.journal.documents.events import ProgramFailure
    from trainvitals.journal.documents.rows import FAILED
    from trainvitals.trainer import join, ranks
    from trainvitals.trainer.autostart.trouble import write_event

    rank = ranks.find_rank(os.environ)
    data = ProgramFailure(pid=os.getpid(), reason=cause, traceback=trace, began=began)
    attempt = 1 + join.restart_count(os.environ)
    # Without others it is not a rank but some program, of which there may be many.
    number = rank.rank if rank.world_size > 1 else None
    write_event(FAILED, str(cause), severity="critical", rank=number, attempt=attempt, data=data)
