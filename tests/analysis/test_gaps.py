from __future__ import annotations

import numpy as np
import pytest

from trainvitals.analysis.gaps import find_gaps


@pytest.mark.parametrize(
    ("x", "gaps"),
    [
        ([], []),
        ([1, 900], []),
        ([1, 2, 3, 4, 40, 41, 42], [3]),
        ([1, 2, 3, 7, 8, 9], []),
        ([1, 2, 3, 30, 60, 61, 62, 63], [2, 3]),
        ([1, 1, 1, 1], []),
        ([0, 1, 100, 101, 200, 201, 300, 301], []),
    ],
    ids=["none", "two", "an hour without samples", "one was late", "one alone", "at once", "a thinned curve"],
)
def test_a_gap_is_far_longer_than_usual(x: list[float], gaps: list[int]) -> None:
    assert find_gaps(np.array(x, dtype=float)).tolist() == gaps
