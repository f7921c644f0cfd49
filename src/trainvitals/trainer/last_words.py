"""What a run that fails says of why: the exception in one line, and how the program came there. Without secrets.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import traceback

from trainvitals.journal.documents.cause import EXCEPTION, EXIT_CODE, Cause
from trainvitals.redaction import redact_text
from trainvitals.trainer.jsonable import MAX_TEXT

MAX_CAUSE = 500


def explain_exception(exception: BaseException) -> Cause:
    """Its class and its text, in at most about 500 characters."""
    try:
        text = str(exception)
    except Exception:  # noqa: BLE001 - the user's class, which may raise anything
        text = "its text cannot be had"
    kind = type(exception).__name__
    # A secret that the cut would split must be recognised before.
    detail = f"{kind}: {redact_text(text[: 2 * MAX_TEXT])[:MAX_CAUSE]}"
    return Cause(kind=EXCEPTION, exception=kind, detail=detail)


def explain_exit(code: object) -> Cause:
    """What `sys.exit(code)` means: a number, or a text that is printed where the exit code is 1."""
    if isinstance(code, int):
        return Cause(kind=EXIT_CODE, exit_code=int(code))
    detail = redact_text(str(code)[: 2 * MAX_TEXT])[:MAX_CAUSE]
    return Cause(kind=EXIT_CODE, exit_code=1, detail=detail)


def format_traceback(exception: BaseException) -> str:
    """The end of it, which is where it happened."""
    whole = "".join(traceback.format_exception(exception))
    return redact_text(whole[-2 * MAX_TEXT :])[-MAX_TEXT:]
