"""Two or more runs beside each other: what differs in their configuration, and which came out better.

The verdict on a metric compares the last stretch of both runs over the same steps. Neighbouring values of a training
are alike, so they count as fewer than they are (effective sample size from the autocorrelation), and the difference is
judged by Welch's t with a normal approximation: good from a dozen independent values on, and reported as uncertain
below that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.metric_sense import Direction, better, is_share
from trainvitals.analysis.wording import percent

Floats = NDArray[np.float64]

STRETCH = 0.2
"""Share of the common steps, at their end, that is compared."""
SURE = 0.99
NOTABLE = 0.01
"""Relative difference below which even a certain difference is called the same."""
FEWEST = 4
"""Independent values below which nothing is significant."""
ROUNDING = 1e-12
"""Relative difference that is none."""


Word = Literal["better", "worse", "same", "different", "uncertain"]
"""`different` where no direction is known."""


class Verdict(NamedTuple):
    """What came of comparing one metric of one run with the same of the baseline."""

    metric: str
    word: Word
    baseline: float | None
    value: float | None
    change: float | None
    """Relative to the baseline; None where that is 0."""
    confidence: float | None
    """That the difference is not chance, 0 to 1."""
    reason: str


class Difference(NamedTuple):
    """One key of the configuration whose value is not the same in all runs."""

    key: str
    values: tuple[Any, ...]
    """One per run; None where the run does not have it."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found.update(flatten(value, f"{name}."))
        else:
            found[name] = value
    return found


def compare_configs(configs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Every key whose value differs or that some run lacks, in order of name."""
    flat = [flatten(config) for config in configs]
    keys = sorted({key for config in flat for key in config})
    missing = object()
    differing = [key for key in keys if any(c.get(key, missing) != flat[0].get(key, missing) for c in flat[1:])]
    return [Difference(key, tuple(config.get(key) for config in flat)) for key in differing]


def compare_metric(
    metric: str,
    baseline: tuple[Floats, Floats],
    other: tuple[Floats, Floats],
    stretch: tuple[float, float] | None = None,
) -> Verdict:
    """`baseline` and `other` are (x, y), ascending in x; x is the same axis for both. `stretch` is the part of x that
    is compared, where the caller has read no more than that (see `last_stretch`)."""
    direction = better(metric)
    (x0, y0), (x1, y1) = baseline, other
    if not len(x0) or not len(x1):
        reason = "not logged by both runs" if stretch is None else "the runs have no steps in common"
        return Verdict(metric, "uncertain", None, None, None, None, reason)
    begin, end = last_stretch(x0, x1) if stretch is None else stretch
    if end < begin:
        return Verdict(metric, "uncertain", None, None, None, None, "the runs have no steps in common")
    a, b = _stretch(x0, y0, begin, end), _stretch(x1, y1, begin, end)
    broken = len(b) - int(np.isfinite(b).sum()), len(a) - int(np.isfinite(a).sum())
    if broken[0] and not broken[1]:
        return Verdict(metric, "worse", _mean(a), None, None, 1.0, "NaN or infinite, unlike the baseline")
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    if not len(a) or not len(b):
        return Verdict(metric, "uncertain", _mean(a), _mean(b), None, None, "no finite values in the compared steps")
    mean_a, mean_b = float(a.mean()), float(b.mean())
    change = (mean_b - mean_a) / abs(mean_a) if mean_a else None
    sizes = effective_size(a), effective_size(b)
    confidence = _confidence(a, b, *sizes)
    notable = NOTABLE * _measure(metric, mean_a, mean_b)
    word = _word(mean_a, mean_b, notable, confidence, direction)
    reason = _explain(word, confidence, (len(a), len(b)), sizes)
    return Verdict(metric, word, mean_a, mean_b, change, confidence, reason)


def last_stretch(x0: Floats, x1: Floats) -> tuple[float, float]:
    """The end of what both have; begins after it ends where they have nothing in common."""
    end, start = float(min(x0[-1], x1[-1])), float(max(x0[0], x1[0]))
    return (end - (end - start) * STRETCH, end) if end >= start else (start, end)


def _measure(metric: str, a: float, b: float) -> float:
    """What a difference is weighed against: the baseline's mean, or its errors where they are fewer than its hits."""
    if is_share(metric) and max(a, b) <= 1.0:
        return min(abs(a), 1.0 - min(a, b))
    return abs(a)


def _word(a: float, b: float, notable: float, confidence: float | None, direction: Direction | None) -> Word:
    if math.isclose(a, b, rel_tol=ROUNDING):
        return "same"
    if confidence is None:
        return "uncertain"
    if abs(b - a) < notable:
        return "same"
    if confidence < SURE:
        return "uncertain"
    if direction is None:
        return "different"
    return "better" if (b < a) == (direction == "lower") else "worse"


def _explain(word: Word, confidence: float | None, counts: tuple[int, int], sizes: tuple[float, float]) -> str:
    basis = f"mean of the last {percent(STRETCH)} of the common steps, {counts[0]} vs. {counts[1]} values"
    if word == "same":
        return f"{basis}; they differ by less than {percent(NOTABLE, 0)}"
    if word != "uncertain":
        return basis
    if confidence is not None:
        return f"{basis}; the difference could be chance (p > 0.01)"
    if min(counts) < FEWEST:
        return f"{basis}; too few to rule out chance"
    return (
        f"{basis}; strongly autocorrelated, equivalent to {sizes[0]:.1f} and {sizes[1]:.1f} independent values, "
        "too few to rule out chance"
    )


def _stretch(x: Floats, y: Floats, begin: float, end: float) -> Floats:
    chosen: Floats = y[(x >= begin) & (x <= end)]
    return chosen


def _mean(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _confidence(a: Floats, b: Floats, n_a: float, n_b: float) -> float | None:
    """None where one side has fewer than four independent values."""
    if n_a < FEWEST or n_b < FEWEST:
        return None
    mean_a, mean_b = float(a.mean()), float(b.mean())
    if math.isclose(mean_a, mean_b, rel_tol=ROUNDING):
        return 0.0
    spread = math.sqrt(float(a.var(ddof=1)) / n_a + float(b.var(ddof=1)) / n_b)
    return math.erf(abs(mean_a - mean_b) / spread / math.sqrt(2)) if spread else 1.0


def effective_size(values: Floats) -> float:
    """The effective number of independent values for the mean."""
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
