"""Tables that fit: the least important columns are dropped in a narrow window, and columns grow when there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.segment import Segment

from trainvitals.views.tui.paint import Line, crop, fit, overlay
from trainvitals.views.tui.palette import Palette

T = TypeVar("T")
GAP = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column. `draw` gets a row and the width; what it returns is cut or padded to that width."""

    title: str
    least: int
    importance: int
    """1 stays longest."""
    draw: Callable[[T, int], Line]
    most: int = 0
    """Maximum width to grow to; 0: it does not grow."""
    right: bool = False


def lay_out(columns: Sequence[Column[Any]], width: int) -> list[tuple[Column[Any], int]]:
    """The columns that fit, in their order, with their widths."""
    chosen: list[Column[Any]] = []
    room = width
    for column in sorted(columns, key=lambda column: column.importance):
        needed = column.least + (GAP if chosen else 0)
        if needed > room:
            break
        chosen.append(column)
        room -= needed
    widths = {id(column): column.least for column in chosen}
    growing = [column for column in columns if column in chosen and column.most > column.least]
    while room > 0 and growing:
        share = max(room // len(growing), 1)
        for column in list(growing):
            more = min(share, column.most - widths[id(column)], room)
            widths[id(column)] += more
            room -= more
            if widths[id(column)] >= column.most:
                growing.remove(column)
    return [(column, widths[id(column)]) for column in columns if column in chosen]


def draw_heading(placed: Sequence[tuple[Column[Any], int]], palette: Palette) -> Line:
    """The titles."""
    line: Line = []
    for index, (column, width) in enumerate(placed):
        if index:
            line.append(Segment(" " * GAP))
        line.append(Segment(fit(column.title, width, right=column.right), palette.dim))
    return line


def draw_row(placed: Sequence[tuple[Column[T], int]], row: T, palette: Palette) -> Line:
    """One row."""
    line: Line = []
    for index, (column, width) in enumerate(placed):
        if index:
            line.append(Segment(" " * GAP))
        line.extend(crop(column.draw(row, width), width, palette.text))
    return line


def draw_table(
    columns: Sequence[Column[T]],
    rows: Sequence[T],
    width: int,
    height: int,
    palette: Palette,
    selected: int | None = None,
) -> tuple[list[Line], int]:
    """The header and as many rows as fit, around the selected one. Returns the lines and the first row shown."""
    placed = lay_out(columns, width - 2)
    lines = [[Segment(" "), *draw_heading(placed, palette)]]
    space = max(height - 1, 0)
    first = first_shown(len(rows), space, selected or 0)
    for place in range(first, min(first + space, len(rows))):
        line = [Segment(" "), *draw_row(placed, rows[place], palette)]
        if place == selected:
            line = overlay(crop(line, width, palette.text), palette.selected)
        lines.append(line)
    return lines, first


def first_shown(count: int, space: int, selected: int) -> int:
    """The first visible row of a list that does not fit, so that the selected row is visible."""
    if count <= space or space <= 0:
        return 0
    return min(max(selected - space // 2, 0), count - space)
