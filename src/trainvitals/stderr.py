"""Lines on standard error of the user's program; never raises, not even when it is closed or its disk is full."""

from __future__ import annotations

import sys


def print_line(text: str) -> None:
    """One line of ours: `trainvitals: text`."""
    print_error(f"trainvitals: {text}")


def print_error(text: str) -> None:
    """The text as it is."""
    try:
        if sys.stderr is not None:  # print would take standard output instead
            print(text, file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError, AttributeError):
        pass  # nowhere to print
