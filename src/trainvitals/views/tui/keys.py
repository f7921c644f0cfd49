"""Every key once: what it does, where, and how help shows it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from trainvitals.views.tui.actions import Action, Desk, charts, filtering, lists, moving, program
from trainvitals.views.tui.view import PAGES, View

BOX = "box"
"""Where a box covers the page: help, details."""


class Key(NamedTuple):
    """`keys` as Textual names them. `on` is the page or box it works on; empty is everywhere else."""

    keys: tuple[str, ...]
    action: Action
    shown: str = ""
    """Its name in help; empty where another row explains it."""
    help: str = ""
    where: str = "everywhere"
    """The heading in help."""
    on: str = ""


KEYS: tuple[Key, ...] = (
    Key(("q", "ctrl+c"), program.leave, "q", "quit"),
    Key(("question_mark", "h", "f1"), moving.toggle_help, "?", "this help"),
    Key(
        ("1",),
        partial(moving.show_page, place=0),
        f"1 to {len(PAGES)}",
        ", ".join(name for name, _ in PAGES),
    ),
    *(Key((str(place + 1),), partial(moving.show_page, place=place)) for place in range(1, len(PAGES))),
    Key((str(len(PAGES) + 1),), moving.show_machines, str(len(PAGES) + 1), "machines, with --host"),
    Key(("tab",), moving.next_page, "tab", "next page; on Charts: next chart"),
    Key(("tab",), partial(charts.move_chart, by=1), on="charts"),
    Key(("shift+tab",), moving.previous_page, "shift+tab", "previous page; on Charts: previous chart"),
    Key(("shift+tab",), partial(charts.move_chart, by=-1), on="charts"),
    Key(("up",), partial(moving.move_line, by=-1), "up down", "previous or next row; on Charts: zoom in or out"),
    Key(("up",), partial(charts.zoom, factor=charts.ZOOM), on="charts"),
    Key(("up",), partial(moving.scroll_box, by=-1), on=BOX),
    Key(("down",), partial(moving.move_line, by=1)),
    Key(("down",), partial(charts.zoom, factor=1 / charts.ZOOM), on="charts"),
    Key(("down",), partial(moving.scroll_box, by=1), on=BOX),
    Key(
        ("left",),
        moving.previous_page,
        "left right",
        "previous or next page; on Overview: GPU; on Charts: move the crosshair",
    ),
    Key(("left",), partial(moving.move_row, by=-1), on="overview"),
    Key(("left",), partial(charts.move_cross, by=-1), on="charts"),
    Key(("right",), moving.next_page),
    Key(("right",), partial(moving.move_row, by=1), on="overview"),
    Key(("right",), partial(charts.move_cross, by=1), on="charts"),
    Key(("pageup",), partial(moving.move_screen, by=-1), "pgup pgdn", "one screen up or down"),
    Key(("pageup",), partial(moving.scroll_box_screen, by=-1), on=BOX),
    Key(("pagedown",), partial(moving.move_screen, by=1)),
    Key(("pagedown",), partial(moving.scroll_box_screen, by=1), on=BOX),
    Key(
        ("home",),
        partial(moving.move_row, by=-moving.FAR),
        "home end",
        "first or last row; on Charts: crosshair to either end",
    ),
    Key(("home",), partial(charts.put_cross, share=0.0), on="charts"),
    Key(("home",), partial(moving.scroll_box, by=-moving.FAR), on=BOX),
    Key(("end",), partial(moving.move_row, by=moving.FAR)),
    Key(("end",), partial(charts.put_cross, share=1.0), on="charts"),
    Key(("end",), partial(moving.scroll_box, by=moving.BOX_END), on=BOX),
    Key(
        ("space",),
        moving.toggle_details,
        "space",
        "details of the selection; on Charts: one chart on the full page",
    ),
    Key(("enter",), moving.toggle_details, "enter", "show the selected run; elsewhere same as space"),
    Key(("space", "enter"), charts.toggle_full, on="charts"),
    Key(("enter",), lists.show_run, on="runs"),
    Key(("enter",), lists.show_runs_of_machine, on="machines"),
    Key(("escape",), moving.step_back, "esc", "close, clear the filter, reset the zoom"),
    Key(("space", "enter", "escape"), moving.close_box, on=BOX),
    Key(
        ("slash",),
        filtering.start_typing,
        "/",
        "filter; on Charts and Overview: choose charts by name",
    ),
    Key(("slash",), filtering.choose_charts, on="overview"),
    Key(("s",), program.save, "s", "save: metrics as JSON and CSV, the screen as SVG"),
    Key(("r",), program.reset, "r", "clear the history"),
    Key(("p",), program.toggle_pause, "p", "pause or resume"),
    Key(("plus", "equals_sign"), partial(program.change_interval, by=-1), "+ -", "shorter or longer interval"),
    Key(("minus",), partial(program.change_interval, by=1)),
    Key(("t",), program.change_theme, "t", "next theme"),
    Key(("l",), charts.toggle_log, "l", "logarithmic or linear scale", "charts"),
    Key(("m",), charts.toggle_smooth, "m", "raw, or smoothed with the raw curve behind", "charts"),
    Key(("x",), charts.toggle_axis, "x", "x axis: steps or time", "charts"),
    Key(("comma", "shift+left"), partial(charts.pan, share=-charts.PAN), ", .", "pan the zoomed range", "charts"),
    Key(("full_stop", "shift+right"), partial(charts.pan, share=charts.PAN)),
    Key(("o",), lists.sort_by_next, "o", "sort by the next column", "processes", "processes"),
    Key(("O", "shift+o"), lists.reverse_order, "O", "reverse the sort order", "processes", "processes"),
    Key(
        ("k",),
        lists.ask_for_signal,
        "k",
        "send a signal, after confirmation; disabled by --readonly",
        "processes",
        "processes",
    ),
    Key(
        ("a",),
        lists.acknowledge_alert,
        "a",
        "acknowledge the selected alert: no reminders; disabled by --readonly",
        "alerts",
        "alerts",
    ),
    Key(("z",), lists.silence_alert, "z", "silence its rule for an hour; disabled by --readonly", "alerts", "alerts"),
)

_ACTIONS = {(key.on, name): key.action for key in KEYS for name in key.keys}


def press(desk: Desk, key: str, character: str | None = None) -> None:
    """Run the action of a key; `character` if it is printable."""
    if desk.view.asking is not None:
        lists.answer(desk, key)
    elif desk.view.typing:
        filtering.take_key(desk, key, character)
    else:
        action = find_action(desk.view, key) or find_action(desk.view, character or "")
        if action is not None:
            action(desk)


def find_action(view: View, key: str) -> Action | None:
    """The action of a key on this page, or in the box over it; None if it has none."""
    places = (*((BOX,) if view.help or view.details else ()), view.page, "")
    return next((_ACTIONS[place, key] for place in places if (place, key) in _ACTIONS), None)
