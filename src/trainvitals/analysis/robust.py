"""Statistics that a few wild values do not move."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trainvitals.episodes import DEVIATION, FLOOR

Floats = NDArray[np.float64]
MAX_PAIRS = 400


def scale_of(values: Floats) -> float:
    """1.4826 times the median absolute deviation, with a floor: a standard deviation if the values are normal."""
    if not len(values):
        return 0.0
    middle = float(np.median(values))
    return max(DEVIATION * float(np.median(np.abs(values - middle))), FLOOR * abs(middle))


def blocks(x: Floats, y: Floats, size: int) -> tuple[Floats, Floats, Floats]:
    """Pieces of `size` neighbours: their first x, median and scale. The rest at the beginning is left out."""
    count = len(y) // size
    start = len(y) - count * size
    pieces = y[start:].reshape(count, size)
    middle = np.median(pieces, axis=1)
    spread = DEVIATION * np.median(np.abs(pieces - middle[:, None]), axis=1)
    return x[start::size][:count], middle, np.maximum(spread, FLOOR * np.abs(middle))


def usual_highs(y: Floats, size: int, back: int = 10) -> Floats:
    """For all but the first piece of `size` neighbours, one number each: how high the `back` pieces before it often
    were (the largest of their 98th percentiles). What stays below is the tail of the noise, not news."""
    count = len(y) // size
    pieces = y[len(y) - count * size :].reshape(count, size)
    highs = np.partition(pieces, -3, axis=1)[:, -3] if size >= 3 else pieces.max(axis=1)
    padded = np.concatenate([np.full(back - 1, -np.inf), highs[:-1]])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, back).max(axis=1), dtype=np.float64)


def thin(x: Floats, y: Floats, limit: int) -> tuple[Floats, Floats]:
    """At most `limit` points, each the median of its neighbours."""
    if len(y) <= limit:
        return x, y
    size = -(-len(y) // limit)
    places, middles, _ = blocks(x, y, size)
    return places, middles


def holding_since(x: Floats, steps: float, holds: Callable[[int], bool]) -> int:
    """The x at which something was known that holds of the whole: the first of the lengths, each a tenth longer than
    the one before and the first at least `steps` long, from which on it always `holds` of so many values."""
    known = len(x)
    lengths = [known]
    while steps < x[-1] - x[0]:
        lengths.append(int(np.searchsorted(x, x[0] + steps)) + 1)
        steps *= 1.1
    for length in sorted(set(lengths), reverse=True)[1:]:
        if not holds(length):
            break
        known = length
    return int(x[known - 1])


def lasting_since(x: Floats, holds: NDArray[np.bool_], window: int, fewest: int) -> tuple[int, int] | None:
    """The x since which it holds of most of the newest `window` values, and the x at which that was known; None where
    it does not in the end."""
    ends = np.arange(1, len(x) + 1)
    sums = np.concatenate([[0], holds.cumsum()])
    counts = sums[ends] - sums[np.maximum(ends - window, 0)]
    most = (2 * counts > np.minimum(ends, window)) & (ends >= fewest)
    if not len(x) or not most[-1]:
        return None
    others = np.flatnonzero(~most)
    named = int(others[-1]) + 1 if len(others) else 0
    begin = max(named - window + 1, 0)
    return int(x[begin + int(holds[begin:].argmax())]), int(x[named])


def slope_of(x: Floats, y: Floats) -> float:
    """Theil-Sen: the median slope over all pairs of (thinned out) points, per unit of x; 0 for a single point."""
    x, y = thin(x, y, MAX_PAIRS)
    first, second = np.triu_indices(len(x), 1)
    spans = x[second] - x[first]
    known = spans > 0
    return float(np.median((y[second] - y[first])[known] / spans[known])) if known.any() else 0.0


def rises(x: Floats, y: Floats) -> float:
    """Mann-Kendall: the probability that a rise like this one is chance (one sided); 1 where there is none.

    The points are thinned out to 40 first: neighbours are alike, and as many as there are would make anything certain.
    """
    _, y = thin(x, y, 40)
    count = len(y)
    if count < 8:
        return 1.0
    first, second = np.triu_indices(count, 1)
    total = float(np.sign(y[second] - y[first]).sum())
    if total <= 0:
        return 1.0
    _, ties = np.unique(y, return_counts=True)
    variance = (count * (count - 1) * (2 * count + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    return 0.5 * math.erfc((total - 1) / math.sqrt(variance) / math.sqrt(2)) if variance > 0 else 1.0
