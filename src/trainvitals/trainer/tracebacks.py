"""Keeping our own frames out of the tracebacks of the user's program.

A wrapper around one of the program's functions catches what it raises, removes its own frame, and re-raises:

    try:
        return original(*args, **kwargs)
    except BaseException as error:
        drop_frame(error)
        raise

What the program prints, logs or inspects then has the frames it would have without us. Tested in
tests/trainer/test_autostart_failures.py.
"""

from __future__ import annotations


def drop_frame(error: BaseException) -> None:
    """Remove the frame that has just caught `error` from its traceback. A bare `raise` must follow: unlike
    `raise error`, it does not add the frame again."""
    trace = error.__traceback__
    if trace is not None:
        # Not by assignment: a class may forbid that, as frozen dataclasses do.
        BaseException.with_traceback(error, trace.tb_next)
