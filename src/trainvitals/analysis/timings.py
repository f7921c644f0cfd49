"""Repeated timings of one thing: when they are steady, how well their median is known, which are outliers, and which
of two things is faster.

Calls that follow each other are alike, so they count as fewer than they are (`chance.effective_size`). Two things
are compared by rounds in which both were timed: what slows the machine for a while then slows both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.chance import effective_size
from trainvitals.analysis.comparison import NOTABLE, SURE
from trainvitals.analysis.robust import scale_of
from trainvitals.analysis.wording import percent

Floats = NDArray[np.float64]

CONFIDENCE_Z = 1.96
"""Of the 95 % interval of a median."""
FEWEST = 6
"""Values below which a median has no 95 % interval: both ends would lie beyond the extremes."""
BEYOND = 10
"""Values that must lie beyond a percentile for it to be reported: p99 takes 1,000 calls."""
PERCENTILES = (90, 95, 99)
OUTLIER_SCALES = 5.0
WINDOW = 10
"""Calls of which two medians in a row must agree before a warm-up is over."""
STEADY = 0.02
FEWEST_ROUNDS = 5
MOST_ROUNDS = 60
"""More are merged with their neighbours: the pairs that are compared grow with their square."""
DRAWS = 2000

Word = Literal["faster", "slower", "no difference"]


class Interval(NamedTuple):
    low: float
    high: float

    def width_of(self, middle: float) -> float:
        """Relative to what it is the interval of."""
        return (self.high - self.low) / middle if middle else math.inf


class Timings(NamedTuple):
    """What is reported of many calls; times in the unit they came in. None: too few calls to know it."""

    calls: int
    median: float
    interval: Interval | None
    """95 %, from the order statistics."""
    percentiles: dict[int, float]
    """Those of `PERCENTILES` that enough calls support."""
    lowest: float
    mean: float
    jitter: float
    """1.4826 times the median absolute deviation: a standard deviation without the outliers."""
    outliers: int
    """Calls beyond the median by more than 5 of these. They are counted and never dropped."""
    drift: float | None
    """By how much the second half is slower than the first, relative; None where that could be chance."""


class Ratio(NamedTuple):
    """How many times as long the second takes as the first, with its 99 % interval."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def word(self) -> Word:
        """A difference is named if its interval excludes 1 and it is large enough to matter."""
        if self.low <= 1.0 <= self.high or abs(self.value - 1.0) < NOTABLE:
            return "no difference"
        return "slower" if self.value > 1.0 else "faster"

    def __str__(self) -> str:
        """`1.51x faster [1.48, 1.55]`, `no difference seen (± 1.2 %)`."""
        if self.word == "no difference":
            reach = max(abs(self.high - 1.0), abs(1.0 - self.low))
            return f"no difference seen (± {percent(reach)})"
        low, middle, high = self.low, self.value, self.high
        if self.word == "faster":
            low, middle, high = 1 / self.high, 1 / self.value, 1 / self.low
        return f"{middle:.2f}x {self.word} [{low:.2f}, {high:.2f}]"


def summarize(values: Sequence[float] | Floats) -> Timings:
    """All that is reported of these calls, in the order in which they were made."""
    timed = np.asarray(values, dtype=np.float64)
    if not len(timed):
        raise ValueError("no calls were timed")
    median = float(np.median(timed))
    scale = scale_of(timed)
    return Timings(
        calls=len(timed),
        median=median,
        interval=median_interval(timed),
        percentiles={
            share: float(np.percentile(timed, share))
            for share in PERCENTILES
            if len(timed) * (100 - share) >= 100 * BEYOND
        },
        lowest=float(timed.min()),
        mean=float(timed.mean()),
        jitter=1.4826 * float(np.median(np.abs(timed - median))),
        outliers=int((timed > median + OUTLIER_SCALES * scale).sum()),
        drift=_drift(timed),
    )


def median_interval(values: Sequence[float] | Floats) -> Interval | None:
    """The 95 % interval of the median: the values at two ranks, which nothing about their distribution decides. None
    below `FEWEST` independent values."""
    timed = np.sort(np.asarray(values, dtype=np.float64))
    count = len(timed)
    independent = effective_size(np.asarray(values, dtype=np.float64)) if count >= FEWEST else 0.0
    if independent < FEWEST:
        return None
    half = CONFIDENCE_Z * math.sqrt(independent) / 2 * (count / independent)
    low = max(math.floor(count / 2 - half), 0)
    high = min(math.ceil(count / 2 + half), count - 1)
    return Interval(float(timed[low]), float(timed[high]))


def is_precise(values: Sequence[float] | Floats, width: float) -> bool:
    """Whether the interval of the median is at most `width` of it, so that more calls are not worth their time."""
    interval = median_interval(values)
    return interval is not None and interval.width_of(float(np.median(np.asarray(values)))) <= width


def is_steady(values: Sequence[float]) -> bool:
    """Whether a warm-up is over: the medians of the last two windows agree."""
    if len(values) < 2 * WINDOW:
        return False
    before, last = np.median(values[-2 * WINDOW : -WINDOW]), np.median(values[-WINDOW:])
    return abs(float(last - before)) <= STEADY * float(before)


def _drift(timed: Floats) -> float | None:
    half = len(timed) // 2
    first, second = median_interval(timed[:half]), median_interval(timed[half:])
    if first is None or second is None or (first.low <= second.high and second.low <= first.high):
        return None
    return float(np.median(timed[half:]) / np.median(timed[:half])) - 1.0


# -- two things


def schedule(count: int, round_number: int) -> list[int]:
    """The order of `count` things in a round: forwards and backwards in turn (A B, B A), so that a machine that gets
    slower is unfair to neither."""
    order = list(range(count))
    return order if round_number % 2 == 0 else order[::-1]


def compare_rounds(
    baseline: Sequence[float], other: Sequence[float], *, paired: bool = True, seed: int = 0
) -> Ratio | None:
    """`other` against `baseline`, both the median of each round. `paired` if they were timed in the same rounds; else
    they come from two separate measurements. None below `FEWEST_ROUNDS`."""
    rounds = min(len(baseline), len(other))
    if rounds < FEWEST_ROUNDS:
        return None
    if paired:
        baseline, other = baseline[:rounds], other[:rounds]
    a, b = _merge(baseline), _merge(other)
    random = np.random.default_rng(seed)
    if paired:
        middle = float(_pseudomedian((b - a)[None, :])[0])
        drawn = _draw(b - a, random)
    else:
        middle = float(_pseudomedian(b[None, :])[0] - _pseudomedian(a[None, :])[0])
        drawn = _draw(b, random) - _draw(a, random)
    # The bootstrap of few values is too narrow: it has the variance of n where an estimate needs that of n - 1, and
    # normal tails where those of Student's t are right.
    count = min(len(a), len(b))
    widen = math.sqrt(count / (count - 1)) * _t_over_normal(count - 1)
    tail = (1 - SURE) / 2
    low, high = (middle + widen * (float(np.quantile(drawn, at)) - middle) for at in (tail, 1 - tail))
    return Ratio(math.exp(middle), math.exp(min(low, middle)), math.exp(max(high, middle)), rounds)


def _merge(medians: Sequence[float]) -> Floats:
    """Logarithms of the rounds, at most `MOST_ROUNDS` of them."""
    logs = np.log(np.asarray(medians, dtype=np.float64))
    return np.array([np.median(part) for part in np.array_split(logs, min(len(logs), MOST_ROUNDS))])


def _draw(values: Floats, random: np.random.Generator) -> Floats:
    return _pseudomedian(values[random.integers(0, len(values), (DRAWS, len(values)))])


def _pseudomedian(rows: Floats) -> Floats:
    """Hodges-Lehmann: the median of the means of all pairs. As robust as one needs here, and nearly as exact as the
    mean, where the median of a dozen rounds jumps from one to the next."""
    first, second = np.triu_indices(rows.shape[1])
    return np.asarray(np.median((rows[:, first] + rows[:, second]) / 2, axis=1), dtype=np.float64)


def _t_over_normal(freedom: int) -> float:
    """The 99.5 % quantile of Student's t by that of the normal distribution (Cornish-Fisher, two terms)."""
    z = 2.5758
    return 1 + (z**2 + 1) / (4 * freedom) + (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)
