"""The terminal: colours where they are welcome, its width, tables, and text that cannot harm it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import IO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
STATUS_STYLES = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "killed": "yellow",
    "crashed": "red",
    "stalled": "yellow",
    "hung": "red",
    "unreadable": "red",
}
SEVERITY_STYLES = {"critical": "red", "warning": "yellow"}


def style_status(status: str, severity: str, default: str = "") -> str:
    """The style of a status: a run that finished or runs is only as good as its health."""
    found = SEVERITY_STYLES.get(severity) if status in ("finished", "running") else None
    return found or STATUS_STYLES.get(status, default)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether somebody may be looking at `stream`; False if it is closed."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def wants_colour(stream: IO[str]) -> bool:
    """A terminal that has not disabled it (NO_COLOR, TERM=dumb)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(stream):
        return False
    # The old Windows console prints escape sequences as they are.
    return sys.platform != "win32" or bool(os.environ.get("WT_SESSION") or os.environ.get("TERM"))


class Paint:
    """Colours for one stream: `paint("red", text)`; the text alone where colours are not wanted."""

    def __init__(self, stream: IO[str]) -> None:
        self.enabled = wants_colour(stream)

    def __call__(self, style: str, text: str) -> str:
        if not self.enabled or not text:
            return text
        codes = ";".join(_CODES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"


def print_json(value: object, *, indent: bool = True) -> None:
    """On standard output, with nothing in it that a terminal obeys."""
    import orjson

    from trainvitals.journal.encoding import dump_json, spell_all
    from trainvitals.safe_text import json_text

    text = dump_json(spell_all(value), orjson.OPT_INDENT_2 if indent else 0).decode()
    sys.stdout.write(json_text(text) + "\n")


def width(stream: IO[str], default: int = 100) -> int:
    """Columns of the terminal, or COLUMNS, or `default`."""
    text = os.environ.get("COLUMNS", "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return columns or default


def columns_of(text: str) -> int:
    """How many columns plain `text` takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, columns: int) -> str:
    """`text` cut to `columns`, with an ellipsis where something is missing."""
    if columns_of(text) <= columns:
        return text
    while text and columns_of(text) > max(columns - 1, 0):
        text = text[:-1]
    return f"{text}…" if columns > 0 else ""


class Cell(str):
    """Text with a colour: measured as it is, painted when drawn."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str = "") -> Cell:
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


def draw_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    paint: Paint,
    columns: int | None = None,
    right: Sequence[int] = (),
    optional: Sequence[int] = (),
    indent: str = "",
) -> str:
    """Aligned columns, two spaces apart. `right` are aligned to the right; `optional` are left out, in that order,
    while the table is wider than `columns`; then the last column is cut."""
    wanted = list(range(len(header)))
    widths = [max([columns_of(title), *(columns_of(row[at]) for row in rows)]) for at, title in enumerate(header)]

    def total() -> int:
        return len(indent) + sum(widths[at] for at in wanted) + 2 * (len(wanted) - 1)

    if columns is not None:
        for at in optional:
            if total() > columns:
                wanted.remove(at)
        last = wanted[-1]
        widths[last] = max(widths[last] - max(total() - columns, 0), min(widths[last], 8))

    def draw(row: Sequence[str], style: str) -> str:
        parts = []
        for at in wanted:
            cell = row[at]
            text = shorten(cell, widths[at])
            space = " " * (widths[at] - columns_of(text))
            painted = paint(getattr(cell, "style", "") or style, text) if style or getattr(cell, "style", "") else text
            parts.append(space + painted if at in right else painted if at == wanted[-1] else painted + space)
        return indent + "  ".join(parts)

    lines = [draw(header, "dim")] if any(header) else []
    lines += [draw(row, "") for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def draw_blocks(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, paint: Paint, columns: int | None = None
) -> str:
    """A table whose columns go on below where they are wider than `columns`: each part begins with the first one."""
    widths = [max([columns_of(title), *(columns_of(row[at]) for row in rows)]) for at, title in enumerate(header)]
    parts: list[list[int]] = [[0]]
    for at in range(1, len(header)):
        used = sum(widths[place] + 2 for place in parts[-1])
        if columns is not None and used + widths[at] > columns and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(at)
    return "\n\n".join(
        draw_table(
            [header[at] for at in part], [[row[at] for at in part] for row in rows], paint=paint, columns=columns
        )
        for part in parts
    )


def confirm(question: str) -> bool:
    """Ask on the terminal; anything but yes is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
