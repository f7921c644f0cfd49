"""Text in CSV files, which people open in spreadsheets."""

from __future__ import annotations

_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def defuse(text: str) -> str:
    """Text of a cell; a spreadsheet would run what looks like a formula, so that gets a quote in front."""
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
