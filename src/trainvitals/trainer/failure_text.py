"""Why a run failed: the exception in one line, and its traceback. Without secrets.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import re
import traceback

from trainvitals.journal.documents.cause import EXCEPTION, EXIT_CODE, Cause
from trainvitals.redaction import redact_text
from trainvitals.trainer.jsonable import MAX_TEXT

MAX_CAUSE = 500

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Colours and the like, and terminal titles."""
_written: BaseException | None = None


def explain_exception(exception: BaseException) -> Cause:
    """Its class and its text, in at most about 500 characters."""
    kind = type(exception).__name__
    return Cause(kind=EXCEPTION, exception=kind, detail=f"{kind}: {_text_of(exception)}")


def explain_exit(code: object, printed: str = "", handled: BaseException | None = None) -> Cause:
    """What `sys.exit(code)` means: a number, or a text that is printed where the exit code is 1. For a number,
    `printed` before it, or the exception that was being `handled`, is more useful."""
    if not isinstance(code, int):
        return Cause(kind=EXIT_CODE, exit_code=1, detail=_tidy(str(code)))
    if printed:
        return Cause(kind=EXIT_CODE, exit_code=int(code), detail=_tidy(printed))
    if isinstance(handled, Exception):
        kind = type(handled).__name__
        return Cause(kind=EXIT_CODE, exit_code=int(code), exception=kind, detail=f"after {kind}: {_text_of(handled)}")
    return Cause(kind=EXIT_CODE, exit_code=int(code))


def _text_of(exception: BaseException) -> str:
    try:
        return _tidy(str(exception))
    except Exception:  # noqa: BLE001 - the user's class, which may raise anything
        return "its text is not available"


def _tidy(text: str) -> str:
    """One line without colours, and short."""
    # A secret that the cut would split must be recognized before.
    clean = " ".join(_ESCAPES.sub("", redact_text(text[: 2 * MAX_TEXT])).split())
    return clean if len(clean) <= MAX_CAUSE else f"{clean[: MAX_CAUSE - 1]}…"


def format_traceback(exception: BaseException) -> str:
    """The end of the traceback, where it was raised."""
    return cut_traceback("".join(traceback.format_exception(exception)))


def cut_traceback(whole: str) -> str:
    """The end of a traceback or stack."""
    return redact_text(whole[-2 * MAX_TEXT :])[-MAX_TEXT:]


def note_written(exception: BaseException) -> None:
    """The exception is in the events of a run."""
    global _written
    _written = exception


def is_written(exception: BaseException) -> bool:
    """Whether a run of this process has written that this exception ended it."""
    return exception is _written
