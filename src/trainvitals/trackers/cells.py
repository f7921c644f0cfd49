"""Cells of tables that other programs wrote: what counts as missing, what is a number, what stands between two.
Tested in tests/trackers/test_tables.py and tests/views/cli/test_detect.py."""

from __future__ import annotations

from decimal import Decimal

from trainvitals.journal.encoding import NONFINITE

_MISSING = frozenset({"", "na", "n/a", "none", "null", "-"})
_WORDS = {"true": 1.0, "false": 0.0}


def is_missing(cell: object) -> bool:
    """Whether there is nothing in it, in one of the usual spellings."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _MISSING)


def read_number(cell: object) -> float | None:
    """None for what is missing or is no number."""
    if isinstance(cell, (int, float)):
        return cell
    if isinstance(cell, Decimal):  # of a Parquet file
        return float(cell)
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    if text in NONFINITE:
        return NONFINITE[text]
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return _WORDS.get(text.lower())


def find_separator(header: str) -> str:
    """What stands between the names of the columns, and so between all cells."""
    return max(",;\t|", key=header.count)
