"""The terminal dashboard: `trainvitals top`.

    feed      in a thread: combines what `hardware`, `shown_run`, `chart_reader` and `processes` read
    snapshot  what the screen requests from the feed, and what it gets: frozen, complete, one per interval
    screen    draws a snapshot as lines of text; pure, so `--once`, tests and the live program share it
    keys      every key, and which of the `actions` it triggers on which page
    app       Textual: events and timers; `board` draws the lines that changed

Textual is imported by `app` and `board` only; it comes with the extra `trainvitals[top]`.
Tested in tests/views/tui/test_screen.py.
"""

from __future__ import annotations

from trainvitals.errors import TrainvitalsError


def check_extra() -> None:
    """Raise early if the extra is missing."""
    try:
        import textual  # noqa: F401
    except ImportError:
        raise TrainvitalsError(
            "the terminal dashboard requires Textual, which is not installed",
            hint="install it: pip install 'trainvitals[top]'",
        ) from None
