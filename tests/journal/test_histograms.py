"""Histograms in the forms of several trackers."""

from __future__ import annotations

from typing import Any

import pytest

from trainvitals.journal.histograms import Histogram, from_edges, from_other

LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    "content",
    [
        {"low": 0, "high": 3, "counts": [1, 2, 3], "nonfinite": 0},
        {"values": [1, 2, 3], "bins": [0, 1, 2, 3]},
        {"values": [1, 2, 3], "packedBins": {"min": 0, "size": 1, "count": 3}},
        {"min": 0.0, "max": 3.0, "num": 6, "right_edges": [1, 2, LARGEST], "counts": [1, 2, 3]},
        {"left_edges": [0, 1, 2], "right_edges": [1, 2, 3], "counts": [1, 2, 3]},
    ],
)
def test_every_form_is_the_same_histogram(content: dict[str, Any]) -> None:
    assert from_other(content) == Histogram(0.0, 3.0, [1.0, 2.0, 3.0], 0)


def test_bins_of_other_widths_are_split_in_proportion() -> None:
    found = from_edges([0.0, 1.0, 4.0], [32, 96])
    assert found is not None and (found.low, found.high, len(found.counts)) == (0.0, 4.0, 64)
    assert found.counts == pytest.approx([2.0] * 64)
    narrow = from_edges([-1.0, 0.0, 0.0, 1e-9, 1.0], [1, 5, 7, 2])
    assert narrow is not None and sum(narrow.counts) == pytest.approx(15)


def test_one_value_is_one_bin() -> None:
    assert from_edges([2.0, 2.0, 2.0], [3, 4]) == Histogram(2.0, 2.0, [7])


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "text",
        {},
        {"counts": []},
        {"counts": [1], "low": "x", "high": 2},
        {"counts": [1], "low": "NaN", "high": 2},
        {"values": [1, 2], "bins": [0, 1]},
        {"values": [1, 2], "bins": [2, 1, 0]},
        {"values": [1, "a"], "bins": [0, 1, 2]},
        {"values": [1], "packedBins": {"min": 0}},
        {"counts": [1], "right_edges": []},
        {"values": [1, 2], "bins": [-LARGEST, 0, LARGEST]},
        {"counts": [1, 2], "bins": [0, "NaN", 2]},
    ],
)
def test_anything_else_is_none(content: Any) -> None:
    assert from_other(content) is None
