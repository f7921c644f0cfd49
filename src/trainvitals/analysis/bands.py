"""Many series as one band: the lowest, the mean and the highest at each place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Band(NamedTuple):
    """Three lines over the same x. NaN where no series has a finite value."""

    x: Floats
    low: Floats
    mean: Floats
    high: Floats


def make_band(series: Sequence[tuple[Floats, Floats]], points: int) -> Band:
    """`series` are (x, y), ascending in x. x is cut into at most `points` equal pieces."""
    full = [(x, y) for x, y in series if len(x)]
    empty = np.empty(0)
    if not full:
        return Band(empty, empty, empty, empty)
    start, end = min(float(x[0]) for x, _ in full), max(float(x[-1]) for x, _ in full)
    count = max(min(points, max(len(x) for x, _ in full)), 1)
    edges = np.linspace(start, end, count + 1)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    total, seen = np.zeros(count), np.zeros(count)
    for x, y in full:
        finite = np.isfinite(y)
        place = np.clip(np.searchsorted(edges, x[finite], side="right") - 1, 0, count - 1)
        np.minimum.at(low, place, y[finite])
        np.maximum.at(high, place, y[finite])
        # The mean is of the series' means: a rank that logs twice as often does not count twice.
        sums = np.bincount(place, weights=y[finite], minlength=count)
        counts = np.bincount(place, minlength=count)
        there = counts > 0
        total[there] += sums[there] / counts[there]
        seen[there] += 1
    some = seen > 0
    middle = (edges[:-1] + edges[1:]) / 2
    return Band(middle[some], low[some], total[some] / seen[some], high[some])
