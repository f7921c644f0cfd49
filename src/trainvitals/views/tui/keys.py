"""Every key once: what it does, where, and how help shows it."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """`keys` as Textual names them; `action` is a method of the app without its `action_`."""

    keys: tuple[str, ...]
    action: str
    shown: str
    help: str
    where: str = "everywhere"


KEYS: tuple[Key, ...] = (
    Key(("q", "ctrl+c"), "quit", "q", "quit"),
    Key(("question_mark", "h", "f1"), "help", "?", "this help"),
    Key(
        ("1", "2", "3", "4", "5", "6", "7"),
        "page",
        "1 to 7",
        "overview, charts, processes, ranks, alerts, events, runs",
    ),
    Key(("tab",), "next_page", "tab", "next page; on the charts the next chart"),
    Key(("shift+tab",), "previous_page", "shift+tab", "previous page; on the charts the previous chart"),
    Key(("up",), "up", "up down", "another row; on the charts zoom in and out"),
    Key(("down",), "down", "", ""),
    Key(
        ("left",),
        "left",
        "left right",
        "previous or next page; on the overview another GPU, on the charts move the cross-hair",
    ),
    Key(("right",), "right", "", ""),
    Key(("pageup",), "page_up", "pgup pgdn", "a screen up or down"),
    Key(("pagedown",), "page_down", "", ""),
    Key(("home",), "first", "home end", "the first or last row; on the charts either end of the cross-hair"),
    Key(("end",), "last", "", ""),
    Key(
        ("space",),
        "details",
        "space",
        "details of what is selected; on the charts one chart on the whole page",
    ),
    Key(("enter",), "enter", "enter", "show the selected run; otherwise as space"),
    Key(("escape",), "escape", "esc", "close, clear the filter, undo the zoom"),
    Key(("slash",), "filter", "/", "filter by typing; on the charts and the overview choose charts"),
    Key(("s",), "save", "s", "save what is shown: metrics as JSON and CSV, the screen as SVG"),
    Key(("r",), "reset", "r", "reset the history"),
    Key(("p",), "pause", "p", "pause and go on"),
    Key(("plus", "equals_sign"), "faster", "+ -", "shorter or longer interval"),
    Key(("minus",), "slower", "", ""),
    Key(("t",), "theme", "t", "next theme"),
    Key(("l",), "log", "l", "logarithmic or linear scale", "charts"),
    Key(("m",), "smooth", "m", "raw, or smoothed with the raw curve behind it", "charts"),
    Key(("x",), "axis", "x", "steps or time along the bottom", "charts"),
    Key(("comma", "shift+left"), "pan_left", ", .", "move the zoomed stretch", "charts"),
    Key(("full_stop", "shift+right"), "pan_right", "", "", "charts"),
    Key(("o",), "sort", "o", "sort by the next column", "processes"),
    Key(("O", "shift+o"), "reverse", "O", "reverse the order", "processes"),
    Key(("k",), "signal", "k", "send a signal, after a question; off with --readonly", "processes"),
)
