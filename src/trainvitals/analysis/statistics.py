"""What the values of a device or metric were over a whole run. Tested in tests/analysis/test_trends.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Statistics(NamedTuple):
    """Of the finite values."""

    values: int
    low: float
    mean: float
    median: float
    p95: float
    high: float
    deviation: float


def describe_values(values: NDArray[np.float64]) -> Statistics | None:
    """None if no value is finite."""
    values = np.asarray(values, dtype=np.float64)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    median, p95 = np.percentile(finite, (50, 95))
    low, mean, high = finite.min(), finite.mean(), finite.max()
    return Statistics(len(finite), *map(float, (low, mean, median, p95, high, finite.std())))
