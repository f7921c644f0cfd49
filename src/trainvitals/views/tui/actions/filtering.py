"""Typing the filter of a page."""

from __future__ import annotations

from trainvitals.views.tui.actions import Desk
from trainvitals.views.tui.actions.moving import show_page
from trainvitals.views.tui.view import PAGES

LONGEST = 200


def start_typing(desk: Desk) -> None:
    desk.view.typing = True


def choose_charts(desk: Desk) -> None:
    """From the overview: type on the page of charts."""
    begun_on = desk.view.page
    show_page(desk, [name for name, _ in PAGES].index("charts"))
    desk.view.typing, desk.view.typed_on = True, begun_on


def take_key(desk: Desk, key: str, character: str | None) -> None:
    """A key while the filter is typed; `character` where it is printable."""
    view = desk.view
    if key == "escape":
        view.set_filter("")
        view.page = view.typed_on or view.page  # nothing was entered: back to the previous page
        _stop_typing(desk)
    elif key in ("enter", "tab", "up", "down"):
        _stop_typing(desk)
    elif key in ("backspace", "ctrl+h"):
        view.set_filter(view.filter[:-1])
    elif key == "ctrl+u":
        view.set_filter("")
    elif key == "ctrl+c":
        desk.leave()
    elif character is not None:
        paste(desk, character)


def paste(desk: Desk, text: str) -> None:
    desk.view.set_filter((desk.view.filter + text)[:LONGEST])


def _stop_typing(desk: Desk) -> None:
    desk.view.typing, desk.view.typed_on = False, None
