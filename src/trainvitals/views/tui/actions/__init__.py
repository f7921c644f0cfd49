"""The actions of keys. Each changes the view or sends a request to the feed; the screen is redrawn afterwards.
Tested in tests/views/tui/test_keys.py and, with Textual, in test_app.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.view import View

if TYPE_CHECKING:
    from textual.geometry import Size

    from trainvitals.views.tui.feed import Feed


class Desk(Protocol):
    """What an action may touch. The program itself is one; a test may be another."""

    view: View
    snapshot: Snapshot
    feed: Feed

    @property
    def size(self) -> Size: ...

    def leave(self) -> None:
        """End the program."""
        ...

    def repaint(self) -> None:
        """Draw every line again, in the colours of the view."""
        ...

    def export_screenshot(self) -> str:
        """What is on the screen as SVG."""
        ...


Action = Callable[[Desk], None]
