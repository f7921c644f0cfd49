"""A curve without its noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 0.015
"""Share of what is shown over which the weight of a value falls to a third."""
REACH = 40 * WINDOW
"""Share of what is shown beyond which a value has no weight, next to the rounding of a float."""
STRETCH = 300.0
"""In windows: e to this power leaves room for sums in a float."""
LEAST_SPREAD = 1e-9
"""In windows: what lies closer together than this has no slope."""


class SideSums(NamedTuple):
    """Weighted sums over the values on one side of each place, and the one there; distances are in windows."""

    weight: Floats
    distance: Floats
    square: Floats
    value: Floats
    product: Floats


def smooth(x: Floats, y: Floats, shown: float | None = None) -> Floats:
    """The line that fits best around each value, at that value: neighbours on both sides weigh less with their distance
    on x (ascending), so the curve neither lags behind a trend nor depends on points that were left out. NaN and
    infinity are passed over and stay gaps. `shown` is how much of x is in sight, where that is not all.
    """
    if not len(x):
        return y
    width = (float(x[-1] - x[0]) if shown is None else shown) * WINDOW
    if not width > 0:
        return y
    good = np.isfinite(y)
    scale = float(np.abs(y[good]).max(initial=0.0)) or 1.0  # sums of the largest floats stay inside a float, too
    values, places = np.where(good, y, 0.0) / scale, (x - x[0]) / width
    left = _sum_before(places, good, values)
    right = _sum_before((places[-1] - places)[::-1], good[::-1], values[::-1])
    weight = left.weight + right.weight[::-1] - good  # each value is on both of its sides
    distance = left.distance - right.distance[::-1]
    square = left.square + right.square[::-1]
    value = left.value + right.value[::-1] - values
    product = left.product - right.product[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = value / weight
        spread = square / weight - (distance / weight) ** 2
        slope = np.where(spread > LEAST_SPREAD, (product / weight - distance / weight * mean) / spread, 0.0)
        fitted = mean - slope * distance / weight
    # A line that is steep at the end of the curve would go beyond everything that was logged.
    known = values[good]
    low, high = known.min(initial=math.inf), known.max(initial=-math.inf)
    return np.where(good, np.clip(fitted, low, high) * scale, math.nan)


def _sum_before(places: Floats, good: NDArray[np.bool_], values: Floats) -> SideSums:
    """The sums over each place and those before it, in one pass: weights that grow along x instead of fading make them
    running sums, in stretches that a float can hold."""
    found = SideSums(*(np.empty(len(places)) for _ in SideSums._fields))
    carried = np.zeros(5)
    first = 0
    while first < len(places):
        end = int(np.searchsorted(places, places[first] + STRETCH, side="right"))
        part, at = slice(first, end), places[first:end] - places[first]
        if first:
            carried = _move(carried, float(places[first] - places[first - 1]))
        growth = np.exp(at)
        known, own = good[part] * growth, values[part] * growth
        terms = (known, known * at, known * at**2, own, own * at)
        weight, distance, square, value, product = (
            (start + np.cumsum(term)) / growth for start, term in zip(carried, terms, strict=True)
        )
        sums = SideSums(
            weight=weight,
            distance=distance - at * weight,
            square=square - 2 * at * distance + at**2 * weight,
            value=value,
            product=product - at * value,
        )
        for column, piece in zip(found, sums, strict=True):
            column[part] = piece
        carried = np.array([piece[-1] for piece in sums])
        first = end
    return found


def _move(sums: Floats, by: float) -> Floats:
    """The sums as seen from a place further on."""
    weight, distance, square, value, product = sums * math.exp(-by)
    return np.array(
        [weight, distance - by * weight, square - 2 * by * distance + by**2 * weight, value, product - by * value]
    )
