"""Repeated timings of one thing: when they are steady, how well their median is known, which are outliers, and which
of two things is faster.

Calls that follow each other are alike, so they count as fewer than they are (`chance.effective_size`). Two processes
of the same program differ too, by where their memory happens to lie: by about 1 %, far more than the medians of their
rounds. So a process is one observation, however many calls it made, and two things are compared by pairs of processes
that were timed in the same rounds: what slows the machine for a while then slows both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.chance import effective_size, t_quantile
from trainvitals.analysis.comparison import NOTABLE, SURE
from trainvitals.analysis.robust import scale_of
from trainvitals.analysis.wording import percent
from trainvitals.episodes import DEVIATION

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
CONFIDENCE_Z = 1.96
"""Of the interval of a median."""
FEWEST = 6
"""Values below which a median has no 95 % interval: both ends would lie beyond the extremes."""
BEYOND = 10
"""Values that must lie beyond a percentile for it to be reported: p99 takes 1,000 calls."""
PERCENTILES = (90, 95, 99)
OUTLIER_SCALES = 5.0
WINDOW = 10
"""Calls of which two medians in a row must agree before a warm-up is over."""
STEADY = 0.02
FEWEST_PROCESSES = 3
"""Of each thing, below which nothing is known of how processes differ."""
NOISY = 0.1
"""Half the width of an interval above which a difference that was not seen may well be there."""
VAGUE = 2.0
"""Ends of an interval this many times apart have no middle worth naming."""
MOST_ROUNDS = 60
"""More are merged with their neighbours: the pairs of a pseudomedian grow with their square."""

Word = Literal["faster", "slower", "no difference", "unsure"]


class Interval(NamedTuple):
    low: float
    high: float

    def width_of(self, middle: float) -> float:
        """Relative to what it is the interval of."""
        return (self.high - self.low) / middle if middle else math.inf

    def including(self, middle: float) -> Interval:
        return Interval(min(self.low, middle), max(self.high, middle))


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
    processes: int
    """Of each, or of the one that had fewer."""

    @property
    def word(self) -> Word:
        """A difference is named if its interval excludes 1 and it is large enough to matter."""
        if self.low <= 1.0 <= self.high or abs(self.value - 1.0) < NOTABLE:
            return "unsure" if self._reach > NOISY else "no difference"
        return "slower" if self.value > 1.0 else "faster"

    @property
    def _reach(self) -> float:
        return max(abs(self.high - 1.0), abs(1.0 - self.low))

    def __str__(self) -> str:
        """`1.51x faster [1.48, 1.55]`, `no difference seen (± 1.2 %)`, `too noisy to tell (± 14 %)`."""
        if self.word in ("no difference", "unsure"):
            what = "no difference seen" if self.word == "no difference" else "too noisy to tell"
            return f"{what} (± {percent(self._reach) if self._reach < 1 else 'over 100 %'})"
        low, middle, high = self.low, self.value, self.high
        if self.word == "faster":
            low, middle, high = 1 / self.high, 1 / self.value, 1 / self.low
        if high > VAGUE * low:
            return f"at least {low:.2f}x {self.word}, too noisy to tell how much"
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
        jitter=DEVIATION * float(np.median(np.abs(timed - median))),
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


def compare_processes(
    baseline: Sequence[Sequence[float]], other: Sequence[Sequence[float]], *, paired: bool = True
) -> Ratio | None:
    """`other` against `baseline`: of each process the medians of its rounds. `paired` if the processes at the same
    place were timed in the same rounds; else they come from two separate measurements. None below
    `FEWEST_PROCESSES`."""
    count = min(len(baseline), len(other))
    if count < FEWEST_PROCESSES:
        return None
    if paired:
        pairs = zip(baseline[:count], other[:count], strict=True)
        found = _interval_of_mean(np.array([_middle_difference(a, b) for a, b in pairs]))
    else:
        found = _interval_of_difference(*(np.array([_middle(np.log(item)) for item in of]) for of in (baseline, other)))
    value, low, high = (math.exp(item) for item in found)
    return Ratio(value, low, high, count)


def process_interval(processes: Sequence[Sequence[float]]) -> Interval | None:
    """The 95 % interval of the median of a process, from the medians of the rounds of several. None below
    `FEWEST_PROCESSES`."""
    if len(processes) < FEWEST_PROCESSES:
        return None
    _, low, high = _interval_of_mean(np.array([_middle(np.log(item)) for item in processes]), CONFIDENCE)
    return Interval(math.exp(low), math.exp(high))


def _middle_difference(a: Sequence[float], b: Sequence[float]) -> float:
    rounds = min(len(a), len(b))
    return _middle(np.log(b[:rounds]) - np.log(a[:rounds]))


def _interval_of_mean(values: Floats, confidence: float = SURE) -> tuple[float, float, float]:
    """The mean, and its interval by Student's t."""
    count = len(values)
    middle, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)
    half = t_quantile(confidence, count - 1) * error
    return middle, middle - half, middle + half


def _interval_of_difference(a: Floats, b: Floats) -> tuple[float, float, float]:
    """The same of the difference of two means, by Welch's approximation: they need not vary alike."""
    errors = [float(item.var(ddof=1)) / len(item) for item in (a, b)]
    middle, variance = float(b.mean() - a.mean()), sum(errors)
    if not variance:
        return middle, middle, middle
    freedom = variance**2 / sum(error**2 / (len(item) - 1) for error, item in zip(errors, (a, b), strict=True))
    half = t_quantile(SURE, freedom) * math.sqrt(variance)
    return middle, middle - half, middle + half


def _middle(values: Floats) -> float:
    """Hodges-Lehmann: the median of the means of all pairs. As robust as one needs here, and nearly as exact as the
    mean, where the median of a few rounds jumps from one to the next."""
    merged = np.array([np.median(part) for part in np.array_split(values, min(len(values), MOST_ROUNDS))])
    first, second = np.triu_indices(len(merged))
    return float(np.median((merged[first] + merged[second]) / 2))
