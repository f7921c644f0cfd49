"""Keeping our own frames out of the tracebacks of the user's program.

A function that we put around one of theirs catches what it raises, takes its own frame out, and lets it go:

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
    """Take the frame that has just caught `error` out of its traceback. A bare `raise` must follow: unlike
    `raise error`, it does not add the frame again."""
    trace = error.__traceback__
    if trace is not None:
        # Not by assignment: a class may forbid that, as frozen dataclasses do.
        BaseException.with_traceback(error, trace.tb_next)
