"""Runs in the order of one column: the same in the API and, as `sortRows` in web/src/logic/table.ts, on the page.

The two are held together by one table of cases, tests/data/run_order.json. What is missing comes last either way,
numbers come before texts, and texts are in their natural order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainvitals.views.data.natural_order import SortKey, natural_key

if TYPE_CHECKING:  # with all that the API answers, which a list of runs does not wait for
    from trainvitals.views.data.shapes import RowJson

_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf}


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
            keys[text] = natural_key(text)
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
