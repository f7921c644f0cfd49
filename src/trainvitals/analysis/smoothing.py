"""A curve without its noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 0.015
"""Share of what is shown over which the weight of a value falls to a third."""
MEMORY = 40 * WINDOW
"""Share of what is shown after which a value has no weight left, next to the rounding of a float."""
STRETCH = 300.0
"""In windows: e to this power leaves room for sums in a float."""


def smooth(x: Floats, y: Floats, shown: float | None = None) -> Floats:
    """Exponential moving average of each value and those before it, so that no curve shows a jump before it
    happens; divided by the weights so far, it begins at the first value. The weight follows the distance on x
    (ascending): points left out do not change how smooth it is. NaN and infinity are passed over and have no average.
    `shown` is how much of x is in sight, where that is not all.
    """
    if not len(x):
        return y
    width = (float(x[-1] - x[0]) if shown is None else shown) * WINDOW
    if not width > 0:
        return y
    good = np.isfinite(y)
    scale = float(np.abs(y[good]).max(initial=0.0)) or 1.0  # sums of the largest floats stay inside a float, too
    values, places = np.where(good, y, 0.0) / scale, (x - x[0]) / width
    result = np.full(len(y), math.nan)
    total = weight = 0.0
    first = 0
    while first < len(x):
        # Weights that grow along x instead of fading make it a running sum, in stretches that a float can hold.
        end = int(np.searchsorted(places, places[first] + STRETCH, side="right"))
        part, known = slice(first, end), good[first:end]
        fade = math.exp(float(places[first - 1] - places[first])) if first else 0.0
        growth = np.exp(places[part] - places[first])
        totals = total * fade + np.cumsum(values[part] * growth)
        weights = weight * fade + np.cumsum(known * growth)
        result[part][known] = totals[known] / weights[known] * scale
        total, weight = float(totals[-1] / growth[-1]), float(weights[-1] / growth[-1])
        first = end
    return result
