"""Text from anywhere, made harmless for where it is shown: names and messages come from files anybody may write."""

from __future__ import annotations

_WITHOUT_WIDTH = frozenset("\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f")
"""Characters that take no column, or change how many their neighbour takes."""
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def one_line(text: object) -> str:
    """One line for a terminal: nothing that moves the cursor, changes colours or turns the line around."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return "".join(map(_show, line))


def _show(character: str) -> str:
    if character in _WITHOUT_WIDTH:
        return ""
    if character.isspace():
        return " "
    # Controls, direction marks, surrogates and what has no agreed width are not printable.
    return character if character.isprintable() else "·"


def csv_cell(text: str) -> str:
    """A cell for a spreadsheet, which would run what looks like a formula: that gets a quote in front."""
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
