"""From page to page and from row to row; boxes that lie over a page."""

from __future__ import annotations

from functools import partial

from trainvitals.views.tui.actions import Desk

FAR = 1_000_000
"""Rows: more than any list has."""
BOX_END = 30
"""Lines of a box that `end` scrolls by."""


def show_page(desk: Desk, place: int) -> None:
    view = desk.view
    view.page = view.pages[place % len(view.pages)][0]
    view.typing, view.typed_on = False, None
    close_box(desk)


def turn_page(desk: Desk, by: int) -> None:
    names = [name for name, _ in desk.view.pages]
    show_page(desk, names.index(desk.view.page) + by)


def show_machines(desk: Desk) -> None:
    if desk.view.with_machines:
        show_page(desk, -1)


next_page = partial(turn_page, by=1)
previous_page = partial(turn_page, by=-1)


def move_row(desk: Desk, by: int) -> None:
    desk.view.move(by)


def move_line(desk: Desk, by: int) -> None:
    """To the row above or below; on the overview several GPUs share a line."""
    move_row(desk, by * (desk.view.gpu_columns if desk.view.page == "overview" else 1))


def move_screen(desk: Desk, by: int) -> None:
    move_row(desk, by * max(desk.view.visible - 1, 1))


def toggle_details(desk: Desk) -> None:
    desk.view.help_offset = 0
    desk.view.details = not desk.view.details


def step_back(desk: Desk) -> None:
    """Undo the last selection: crosshair and zoom, the enlarged chart, the filter, the row."""
    view = desk.view
    if view.cross is not None or view.windows:
        view.forget_zoom()
    elif view.full:
        view.full = False
    elif view.filter:
        view.set_filter("")
    else:
        view.selected.pop(view.page, None)


# -- boxes


def toggle_help(desk: Desk) -> None:
    desk.view.help = not desk.view.help
    desk.view.help_offset = 0


def close_box(desk: Desk) -> None:
    desk.view.help = desk.view.details = False
    desk.view.help_offset = 0


def scroll_box(desk: Desk, by: int) -> None:
    desk.view.help_offset = max(desk.view.help_offset + by, 0)


def scroll_box_screen(desk: Desk, by: int) -> None:
    scroll_box(desk, by * max(desk.view.visible - 1, 1))
