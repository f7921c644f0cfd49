"""Untrusted text, made safe to show: names and messages come from files and servers that anybody may write."""

from __future__ import annotations

import re

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""What moves the cursor, changes colours or sets the title of a terminal."""
_WITHOUT_WIDTH = frozenset("\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f")
"""Zero-width characters, and those that change the width of their neighbour."""
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def one_line(text: object) -> str:
    """One line for a terminal: nothing that moves the cursor, changes colours or reverses the line."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return "".join(map(_show, line))


def _show(character: str) -> str:
    if character in _WITHOUT_WIDTH:
        return ""
    if character.isspace():
        return " "
    # Control characters, direction marks, surrogates and unassigned characters are not printable.
    return character if character.isprintable() else "·"


def json_text(text: str) -> str:
    """The same JSON for a terminal: what it would obey is escaped, as every program that reads JSON understands."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def csv_cell(text: str) -> str:
    """A cell for a spreadsheet, which would run what looks like a formula: that is quoted."""
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
