"""The order of runs by a column, against the table of cases that the page's tests read too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import trainvitals
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.layers import describe_layers
from trainvitals.views.data.natural_order import natural_key
from trainvitals.views.data.run_order import sort_rows

TABLE = json.loads((Path(__file__).parents[2] / "data" / "run_order.json").read_text())
ROWS: list[Any] = TABLE["rows"]


@pytest.mark.parametrize(("sort", "keys"), TABLE["cases"])
def test_rows_are_sorted(sort: str, keys: list[str]) -> None:
    assert [row["key"] for row in sort_rows(ROWS, sort)] == keys


def test_numbers_are_numbers_also_as_words() -> None:
    rows: list[Any] = [{"summary": {"x": value}} for value in (math.nan, 1.0, math.inf, "NaN", "-Infinity")]
    assert sort_rows(rows, "summary.x") == [rows[4], rows[1], rows[2], rows[0], rows[3]]


ODD = ["9" * 5000, "٣", "\udcff", "", "ß", "日本"]
"""Among them more digits than Python makes an integer of."""


def test_any_text_has_a_place() -> None:
    rows: list[Any] = [{"name": name} for name in ODD]
    assert {row["name"] for row in sort_rows(rows, "name")} == set(ODD)


def test_layers_and_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"gradient_norm/{name}" for name in ("h.10.attn", "h.2.mlp", "h.2.attn", "9" * 5000)]
    with trainvitals.init(dir=tmp_path, agent=False) as run:
        run.log(dict.fromkeys(names, 1.0), step=0)
    shown = describe_layers(RunReader(run.folder), "gradient_norm")["layers"]
    assert shown == ["9" * 5000, "h.2.attn", "h.2.mlp", "h.10.attn"]
    assert sorted(("node10", "node2", "Node3", "", "node1-gpu"), key=natural_key) == [
        *("", "node1-gpu", "node2", "Node3", "node10")
    ]
