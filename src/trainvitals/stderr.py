"""Lines on standard error of the user's program; never raises, not even when it is closed or its disk is full."""

from __future__ import annotations

import sys

from trainvitals.safe_text import one_line


def print_line(text: str) -> None:
    """One line of ours: `trainvitals: text`. Names in it may be anybody's: nothing of it moves a cursor."""
    print_error("\n".join(map(one_line, f"trainvitals: {text}".split("\n"))))


def print_below(text: str) -> None:
    """What belongs to the line before, indented: what to do about it."""
    print_error("\n".join(map(one_line, f"  {text}".split("\n"))))


def print_error(text: str) -> None:
    """The text as it is."""
    try:
        if sys.stderr is not None:  # print would take standard output instead
            print(text, file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError, AttributeError):
        pass  # nowhere to print
