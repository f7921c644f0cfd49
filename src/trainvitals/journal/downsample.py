"""Fewer points that still show every peak: the smallest and the largest of each bucket, in their order.

NaN and infinity are kept as separate points: the first of each bucket that has one.
Tested in tests/journal/test_reader.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def pick(values: Floats, max_points: int) -> Indices:
    """Indices of at most `max_points` of `values`, ascending, with the extremes of every bucket, and both ends
    where there is room."""
    count = len(values)
    if count <= max_points or max_points < 4:
        return (
            np.arange(count) if count <= max_points else np.linspace(0, count - 1, max(max_points, 0)).astype(np.int64)
        )
    finite = np.isfinite(values)
    everything_finite = bool(finite.all())
    per_bucket = 2 if everything_finite else 3
    buckets = max((max_points - 2) // per_bucket, 1)
    size = -(-count // buckets)
    padding = buckets * size - count
    low = np.where(finite, values, np.inf) if not everything_finite else values
    high = np.where(finite, values, -np.inf) if not everything_finite else values
    if padding:
        low = np.concatenate([low, np.full(padding, np.inf)])
        high = np.concatenate([high, np.full(padding, -np.inf)])
    starts = np.arange(buckets, dtype=np.int64) * size
    chosen = [
        starts + low.reshape(buckets, size).argmin(axis=1),
        starts + high.reshape(buckets, size).argmax(axis=1),
    ]
    if buckets * per_bucket + 2 <= max_points:
        chosen.append(np.array([0, count - 1], dtype=np.int64))
    if not everything_finite:
        bad = ~finite
        if padding:
            bad = np.concatenate([bad, np.zeros(padding, dtype=bool)])
        bad = bad.reshape(buckets, size)
        chosen.append((starts + bad.argmax(axis=1))[bad.any(axis=1)])
    indices = np.unique(np.concatenate(chosen))
    return indices[indices < count]
