"""Runs in the order of one column: the same in the API and, as `sortRows` in web/src/logic/table.ts, on the page.

The two are held together by one table of cases, tests/data/run_order.json. What is missing comes last either way,
numbers come before texts, and texts are ordered as people order them: `run 9` before `run 10`, `a` beside `A`.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # with all that the API answers, which a list of runs does not wait for
    from trainvitals.views.data.shapes import RowJson

_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf}
_SIGNS = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
"""In the order of the Unicode Collation Algorithm, which has them before digits, and those before letters."""
_PLACES = str.maketrans({sign: chr(place) for place, sign in enumerate(_SIGNS, start=1)})
_NUMBER = re.compile(r"[0-9]+")

SortKey = tuple[str, str, str]


def sort_rows(rows: Sequence[RowJson], sort: str) -> list[RowJson]:
    """By a column such as `started`, `config.lr` or `summary.loss`; `-` in front turns it round."""
    is_down = sort.startswith("-")
    column = sort.removeprefix("-")
    numbers: list[tuple[float, RowJson]] = []
    texts: list[tuple[SortKey, RowJson]] = []
    missing: list[RowJson] = []
    keys: dict[str, SortKey] = {}
    for row in rows:
        value = _read(row, column)
        number = _NUMBERS.get(value, value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool):
            if math.isnan(number):
                missing.append(row)
            else:
                numbers.append((number, row))
            continue
        text = _to_text(value)
        if text in ("", "NaN"):
            missing.append(row)
            continue
        if text not in keys:
            keys[text] = _make_key(text)
        texts.append((keys[text], row))
    # `reverse` keeps the order of equal ones, as `sort` does.
    numbers.sort(key=lambda item: item[0], reverse=is_down)
    texts.sort(key=lambda item: item[0], reverse=is_down)
    found = [[row for _, row in numbers], [row for _, row in texts]]
    return [row for part in (reversed(found) if is_down else found) for row in part] + missing


def _read(row: RowJson, column: str) -> Any:
    if column.startswith("config."):
        return row["config"].get(column.removeprefix("config."))
    if column.startswith("summary."):
        return row["summary"].get(column.removeprefix("summary."))
    return row.get(column)


def _to_text(value: Any) -> str:
    """As the page spells it."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ",".join(map(_to_text, value))
    return json.dumps(value, separators=(",", ":"), default=str)


def _make_key(text: str) -> SortKey:
    """Letters first, then their accents, then their case: lower before upper."""
    base, accents = text, ""
    if not text.isascii():
        plain = unicodedata.normalize("NFD", text)
        base = "".join(character for character in plain if not unicodedata.combining(character))
        accents = "".join(character if unicodedata.combining(character) else "\0" for character in plain).rstrip("\0")
    return _NUMBER.sub(_weigh, base.casefold().translate(_PLACES)), accents, base.swapcase()


def _weigh(found: re.Match[str]) -> str:
    """A number as a text among texts: of two, that with more digits is higher."""
    digits = found[0].lstrip("0")
    return f"0{chr(len(digits))}{digits}"
