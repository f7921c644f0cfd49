"""Where a series is going: its trend, whether it keeps growing, when its level changed, and a forecast."""

from __future__ import annotations

import itertools
import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.chance import ROUNDING, detrended_size, t_quantile
from trainvitals.analysis.episodes import find_shifts
from trainvitals.analysis.findings import Curve
from trainvitals.analysis.robust import MAX_PAIRS, rises, slope_of, thin

Floats = NDArray[np.float64]
Direction = Literal["rising", "falling", "flat"]
SIGNIFICANT = 0.01
"""A trend that is chance in more cases than this is not one."""
RECENT = 0.5
"""Share of a series, at its end, from which it is continued into the future."""
FEWEST = 3
IN_A_ROW = 3
"""Changes the same way that are a trend."""


class Trend(NamedTuple):
    """The line through a series. Slopes are per unit of x."""

    slope: float
    """By least squares."""
    intercept: float
    r_squared: float
    """Share of the variance that the line explains, 0 to 1."""
    p_value: float
    """That a trend like this one is chance, by Mann and Kendall, which asks for no straight line."""
    robust_slope: float
    """By Theil and Sen: wild values do not move it."""
    direction: Direction
    significant: bool
    values: int
    """How many finite ones there are."""


def find_trend(x: Floats, y: Floats) -> Trend | None:
    """The trend of a series, ascending in x; None for fewer than three finite values, or a single x."""
    x, y = _finite(x, y)
    line = _fit(*thin(x, y, MAX_PAIRS))
    if line is None:
        return None
    rise, fall = rises(x, y), rises(x, -y)
    p_value = min(2 * min(rise, fall), 1.0)
    significant = p_value < SIGNIFICANT
    direction: Direction = "flat" if not significant else "rising" if rise < fall else "falling"
    robust = slope_of(x, y)
    return Trend(line.slope, line.intercept, line.r_squared, p_value, robust, direction, significant, len(y))


class Growth(NamedTuple):
    """Whether a series keeps growing, as memory that leaks does."""

    grows: bool
    p_value: float
    """That a rise like this one is chance, by Mann and Kendall."""
    per_unit: float
    """Of x, by Theil and Sen."""
    share: float | None
    """How much it grew relative to where it began; None if that is 0."""


def find_growth(x: Floats, y: Floats) -> Growth | None:
    """None for fewer than three finite values."""
    x, y = _finite(x, y)
    if len(y) < FEWEST:
        return None
    p_value, slope = rises(x, y), slope_of(x, y)
    _, middles = thin(x, y, 40)
    share = float(middles[-1] - middles[0]) / abs(float(middles[0])) if middles[0] else None
    return Growth(p_value < SIGNIFICANT and slope > 0, p_value, slope, share)


class ChangePoint(NamedTuple):
    """A level that changed and stayed."""

    x: float
    """Where it changed."""
    known_at: float
    """Where it could be known, judged by what came before only."""
    before: float
    after: float
    change: float
    """Relative to before."""


def find_change_points(x: Floats, y: Floats, share: float = 0.04) -> list[ChangePoint]:
    """Where the level of a positive series rose or fell by `share` or more and stayed, in order of x. A series with
    values of 0 or below has none, and several changes the same way in a row are a trend, not changes."""
    x, y = _finite(x, y)
    if not len(y) or not (y > 0).all():
        return []
    found = [ChangePoint(e.since, e.named_at, e.before, e.after, e.after / e.before - 1) for e in
             find_shifts(Curve(x, y), share)]  # fmt: skip
    # A fall is a rise of the reciprocal.
    found += [ChangePoint(e.since, e.named_at, 1 / e.before, 1 / e.after, e.before / e.after - 1) for e in
              find_shifts(Curve(x, 1 / y), share / (1 - share))]  # fmt: skip
    found.sort()
    runs = [list(group) for _, group in itertools.groupby(found, key=lambda item: item.change > 0)]
    return [item for group in runs if len(group) < IN_A_ROW for item in group]


class Forecast(NamedTuple):
    """Where a series will be, if it goes on as in its recent part."""

    x: float
    value: float
    low: float
    high: float
    """A single value at x is between these two with the `confidence`."""
    confidence: float


def forecast(x: Floats, y: Floats, at: float, confidence: float = 0.95) -> Forecast | None:
    """The recent trend of a series continued to x = `at`, with the interval of a single value there; None for too few
    values. A positive series that falls is continued on a logarithmic scale: a loss does not go below 0."""
    x, y = _finite(x, y)
    start = int(len(y) * (1 - RECENT))
    x, y = x[start:], y[start:]
    logarithmic = len(y) > 0 and bool((y > 0).all()) and slope_of(x, y) < 0
    line = _fit(x, np.log(y)) if logarithmic else _fit(x, y)
    if line is None:
        return None
    value = line.intercept + line.slope * at
    spread = line.deviation * math.sqrt(1 + 1 / line.worth + (at - line.middle) ** 2 / line.square)
    half = t_quantile(confidence, line.freedom) * spread
    ends = value, value - half, value + half
    if logarithmic:
        value, low, high = (math.exp(min(end, 700)) for end in ends)
    else:
        value, low, high = ends
    return Forecast(at, value, low, high, confidence)


class _Line(NamedTuple):
    slope: float
    intercept: float
    r_squared: float
    deviation: float
    """Of the values around the line."""
    worth: float
    """Independent values."""
    freedom: float
    middle: float
    square: float
    """Sum of the squared distances of x from the middle, of the independent values."""


def _fit(x: Floats, y: Floats) -> _Line | None:
    """Least squares, with errors for neighbours that are alike."""
    if len(y) < FEWEST or x[-1] <= x[0]:
        return None
    middle, level = float(x.mean()), float(y.mean())
    from_middle = x - middle
    square = float((from_middle * from_middle).sum())
    slope = float((from_middle * (y - level)).sum()) / square
    residuals = y - level - slope * from_middle
    total, left = float(((y - level) ** 2).sum()), float((residuals * residuals).sum())
    if left <= (ROUNDING * float(np.abs(y).max())) ** 2 * len(y):
        left = 0.0
    worth = detrended_size(residuals) if left else float(len(y))
    freedom = max(worth - 2, 1.0)
    variance = left / len(y) * worth / freedom
    explained = 1 - left / total if total else 0.0
    return _Line(
        slope, level - slope * middle, explained, math.sqrt(variance), worth, freedom, middle,
        square * worth / len(y),
    )  # fmt: skip


def _finite(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    keep = np.isfinite(y) & np.isfinite(x)
    return x[keep], y[keep]
