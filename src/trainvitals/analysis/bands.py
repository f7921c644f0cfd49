"""Many series as one band: the lowest, the mean and the highest at each place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Band(NamedTuple):
    """Three lines over the same x, of the finite values. NaN where no series has one."""

    x: Floats
    low: Floats
    mean: Floats
    high: Floats
    broken: tuple[tuple[int, float], ...]
    """(place in `x`, value) wherever some series is NaN or infinite: the first such value there."""


def make_band(series: Sequence[tuple[Floats, Floats]], points: int) -> Band:
    """`series` are (x, y), ascending in x. x is cut into at most `points` equal pieces; the first and the last stand at
    the ends, so that an axis shows all of it."""
    full = [(x, y) for x, y in series if len(x)]
    empty = np.empty(0)
    if not full:
        return Band(empty, empty, empty, empty, ())
    start, end = min(float(x[0]) for x, _ in full), max(float(x[-1]) for x, _ in full)
    count = max(min(points, max(len(x) for x, _ in full)), 1)
    edges = np.linspace(start, end, count + 1)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    total, seen, logged = np.zeros(count), np.zeros(count), np.zeros(count, dtype=bool)
    broken: dict[int, float] = {}
    for x, y in full:
        interval = float(np.median(np.diff(x))) if len(x) > 1 else 0.0
        finite = np.isfinite(y)
        strange = np.empty(0, dtype=np.int64)
        if not finite.all():
            strange = np.clip(np.searchsorted(edges, x[~finite], side="right") - 1, 0, count - 1)
            for at, value in zip(strange.tolist(), y[~finite].tolist(), strict=True):
                broken.setdefault(at, value)
            x, y = x[finite], y[finite]
        if not len(x):
            continue
        # x ascends, so that each piece is a stretch of y: a terminal draws dozens of long curves twice a second.
        firsts = np.searchsorted(x, edges[:-1])
        counts = np.diff(firsts, append=len(x))
        known = np.flatnonzero(counts)
        starts = firsts[known]
        low[known] = np.minimum(low[known], np.minimum.reduceat(y, starts))
        high[known] = np.maximum(high[known], np.maximum.reduceat(y, starts))
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.add.reduceat(y, starts) / counts[known]
        # Series that are not logged at the same moments each miss a piece now and then: there a series is where the
        # line between its neighbours is, or the edge of the band would jump. At its ends a value holds for as long as
        # the series usually waits for the next one.
        missed = counts == 0
        missed[: np.searchsorted(edges[1:], x[0] - interval)] = False
        missed[np.searchsorted(edges[:-1], x[-1] + interval, side="right") :] = False
        missed[strange] = False
        between = np.flatnonzero(missed)
        guessed = np.interp(between, known, means, left=y[0], right=y[-1])
        low[between] = np.minimum(low[between], guessed)
        high[between] = np.maximum(high[between], guessed)
        # The mean is of the series' means: a rank that logs twice as often does not count twice.
        with np.errstate(over="ignore", invalid="ignore"):
            total[known] += means
            total[between] += guessed
        seen[known] += 1
        seen[between] += 1
        logged[known] = True
    x = (edges[:-1] + edges[1:]) / 2
    if count > 1:
        x[0], x[-1] = start, end
    none = ~logged
    low[none] = high[none] = np.nan
    mean = np.divide(total, seen, out=np.full(count, np.nan), where=~none)
    # A piece without any value is not a gap, only a place between two logged ones.
    kept = ~none
    kept[list(broken)] = True
    new_place = np.cumsum(kept) - 1
    marks = tuple((int(new_place[at]), value) for at, value in sorted(broken.items()))
    return Band(x[kept], low[kept], mean[kept], high[kept], marks)
