"""The pages. Each is a function of the snapshot, the view and the available space: lines of text, nothing else.
Tested in tests/views/tui/test_screen.py."""

from __future__ import annotations

from typing import NamedTuple

from rich.segment import Segment

from trainvitals.views.tui.paint import Line, fit, width_of
from trainvitals.views.tui.palette import Palette


class Hit(NamedTuple):
    """An area that responds to the mouse, in cells of the page: including its top and left edge only."""

    top: int
    bottom: int
    left: int
    right: int
    action: str  # page, row, chart
    value: int


class Page(NamedTuple):
    """A page as drawn."""

    lines: list[Line]
    hits: list[Hit]


def rule(title: str, width: int, palette: Palette, right: str = "") -> Line:
    """A heading: its text in a thin line across the page."""
    line = [Segment("─ ", palette.faint), Segment(title, palette.dim)]
    tail = f" {right} ─" if right else ""
    room = width - width_of(line) - width_of([Segment(tail)]) - 1
    if room < 0:
        return [Segment(fit(f"─ {title}", width), palette.dim)]
    return [
        *line,
        Segment(" " + "─" * room, palette.faint),
        *([Segment(f" {right}", palette.dim), Segment(" ─", palette.faint)] if right else []),
    ]


def empty(text: str, width: int, palette: Palette, hint: str = "") -> list[Line]:
    """An empty page with a reason."""
    lines: list[Line] = [[], [Segment(fit(f"  {text}", width), palette.text)]]
    if hint:
        lines.append([Segment(fit(f"  {hint}", width), palette.dim)])
    return lines


def row_hits(first: int, count: int, top: int, width: int) -> list[Hit]:
    """The rows of a table whose first row is at line `top`."""
    return [Hit(top + i, top + i + 1, 0, width, "row", first + i) for i in range(count)]
