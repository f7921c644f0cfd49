"""How likely a difference is chance: Student's t, and how many independent values a series is worth."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""A relative difference that comes from rounding."""
FEWEST = 4
"""Values below which no autocorrelation is estimated."""
_TINY = 1e-300


def t_confidence(t: float, freedom: float) -> float:
    """The probability, 0 to 1, that Student's t with `freedom` degrees of freedom is within ±`t`."""
    if math.isnan(t) or freedom <= 0:
        return 0.0
    if math.isinf(t):
        return 1.0
    return 1.0 - _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(confidence: float, freedom: float) -> float:
    """The t whose `t_confidence` is `confidence`: the half width of an interval, in standard errors."""
    low, high = 0.0, 2.0
    while t_confidence(high, freedom) < confidence and high < 1e9:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_confidence(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def effective_size(values: Floats) -> float:
    """The effective number of independent values for the mean: neighbours that are alike count as fewer."""
    count = len(values)
    # The mean of a constant is rounded, so that what is left of it after taking the mean away looks like a trend.
    if count < FEWEST or float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max()):
        return float(count)
    centred = values - values.mean()
    variance = float((centred * centred).mean())
    total = 1.0
    for lag in range(1, min(count // 2, 200)):
        correlation = float((centred[:-lag] * centred[lag:]).mean()) / variance
        if correlation <= 0.05:
            break
        total += 2 * correlation
    return count / total


def detrended_size(residuals: Floats) -> float:
    """`effective_size` of what is left around a fitted line. The fit hides the slowest part of the noise, so that
    neighbours look less alike than they are: Kendall's correction for a line puts it back."""
    count = len(residuals)
    square = float((residuals * residuals).sum())
    if count < FEWEST or not square:
        return float(count)
    seen = float((residuals[:-1] * residuals[1:]).sum()) / square
    likeness = min(max(seen + (2 + 4 * seen) / count, 0.0), 0.999)
    return min(effective_size(residuals), count * (1 - likeness) / (1 + likeness))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularized, by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for part in (even, odd):
            d = 1.0 / _apart(1.0 + part * d)
            c = _apart(1.0 + part / c)
            step = c * d
            result *= step
        if abs(step - 1.0) < 1e-14:
            break
    return math.exp(front) * result / a


def _apart(value: float) -> float:
    """Not zero, to divide by."""
    return value if abs(value) > _TINY else _TINY
