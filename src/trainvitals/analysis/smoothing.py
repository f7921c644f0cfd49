"""A curve without its noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 0.015
"""Share of what is shown over which the weight of a value falls to a third."""


def smooth(x: Floats, y: Floats, shown: float | None = None) -> Floats:
    """Exponential moving average of each value and those before it, so that no curve tells of a jump before it
    happens; divided by the weights so far, it begins at the first value. The weight follows the distance on x
    (ascending): points left out do not change how smooth it is. NaN and infinity are passed over and have no average.
    `shown` is how much of x is in sight, where that is not all.
    """
    if not len(x):
        return y
    width = (float(x[-1] - x[0]) if shown is None else shown) * WINDOW
    if not width > 0:
        return y
    fades = np.exp(-np.diff(x, prepend=x[0]) / width)
    result = np.full(len(y), math.nan)
    total = weight = 0.0
    for at, (value, fade) in enumerate(zip(y.tolist(), fades.tolist(), strict=True)):
        total, weight = total * fade, weight * fade
        if math.isfinite(value):
            total, weight = total + value, weight + 1.0
            result[at] = total / weight
    return result
