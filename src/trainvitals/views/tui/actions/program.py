"""The program as a whole: quitting, interval, colours, saving."""

from __future__ import annotations

from trainvitals.views.tui import palette as palettes
from trainvitals.views.tui.actions import Desk

INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def leave(desk: Desk) -> None:
    desk.leave()


def save(desk: Desk) -> None:
    from trainvitals.views.tui.save import save

    try:
        desk.view.show_message(save(desk.snapshot, desk.view, desk.export_screenshot()))
    except OSError as error:
        desk.view.show_message(f"cannot save: {error.strerror or error}", "critical")


def reset(desk: Desk) -> None:
    desk.feed.reset()
    desk.view.forget_zoom()
    desk.view.show_message("history cleared: charts restart from now")


def toggle_pause(desk: Desk) -> None:
    desk.view.paused = not desk.view.paused


def change_interval(desk: Desk, by: int) -> None:
    """To the next longer interval, or to the next shorter one."""
    view = desk.view
    others = [interval for interval in INTERVALS if (interval - view.interval) * by > 0]
    if others:
        view.interval = min(others, key=lambda interval: abs(interval - view.interval))
        desk.feed.set_interval(view.interval)
    view.show_message(f"every {view.interval:g} s")


def change_theme(desk: Desk) -> None:
    desk.view.palette = palettes.following(desk.view.palette)
    desk.repaint()
    desk.view.show_message(f"theme: {desk.view.palette.name}")
