"""The order of runs by a column, against the table of cases that the page's tests read too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainvitals.views.data.run_order import sort_rows

TABLE = json.loads((Path(__file__).parents[2] / "data" / "run_order.json").read_text())
ROWS: list[Any] = TABLE["rows"]


@pytest.mark.parametrize(("sort", "keys"), TABLE["cases"])
def test_rows_are_sorted(sort: str, keys: list[str]) -> None:
    assert [row["key"] for row in sort_rows(ROWS, sort)] == keys


def test_numbers_are_numbers_also_as_words() -> None:
    rows: list[Any] = [{"summary": {"x": value}} for value in (math.nan, 1.0, math.inf, "NaN", "-Infinity")]
    assert sort_rows(rows, "summary.x") == [rows[4], rows[1], rows[2], rows[0], rows[3]]


def test_any_text_has_a_place() -> None:
    names = ["9" * 5000, "٣", "\udcff", "", "ß", "日本"]
    rows: list[Any] = [{"name": name} for name in names]
    assert {row["name"] for row in sort_rows(rows, "name")} == set(names)
