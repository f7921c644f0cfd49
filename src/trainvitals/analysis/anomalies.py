"""Anomalies in any series, judged value by value: nothing looks ahead.

A value is an anomaly if it breaks a record by a margin. Three things have records: the value itself, the mean of the
last few, and how much they vary; and in a series with a season, such as a day, the differences from the values at the
same time of the seasons before. The margin is a share of the distance between the record and the median, so noisy,
heavy-tailed and periodic series set their own bar, and it is wide while there is little history. A record that was
broken is the new bar: a series that keeps doing something odd is flagged when it begins, not every time.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from trainvitals.analysis.findings import Floats
from trainvitals.episodes import FLOOR

LEVEL = 10
"""Values whose mean is the level."""
VARIABILITY = 30
"""Values whose standard deviation is the variability."""
HISTORY = 2000
"""Values whose median is the middle of a record's range."""
REFRESH = 25
"""Values after which medians and sums are computed anew: sums drift, and a median need not be exact."""
FEWEST = 50
"""Values before which nothing is judged."""
HIGH, LOW = "high for its time", "low for its time"
SEASON_MARGINS = (0.25, 0.2)
"""Margins of the records of differences and of the mean of the last few."""
LITTLE = 800
"""Values up to which the margin is more than twice as wide."""
TOP = 8
"""Highest values that are kept, to know the tail."""
TAIL = 1.0
"""The margin is at least this times the tail: how far the record is above the mean of the highest."""
SEASON_HISTORY = 8192
"""Values among which a season is looked for; a third of them is the longest there may be."""
SEASON_REFRESH = 500
"""Values after which it is looked for again."""
SEASON_SHORTEST = 8
SEASON_CLEAR = 0.3
"""Correlation of the values with those a season before."""
SEASON_ALIKE = 0.9
"""Share of the best correlation that the shortest season has, as a day beside a week."""
SEASON_CHANGE = 0.02
"""Share of a season by which it is found a little longer or shorter by chance."""
SEASON_FEWEST = 100
"""Differences before which none is judged."""
SEASONS = 3
"""Seasons whose median is the usual value of that time."""
HUGE = 1e100
"""What is larger is taken for this: its square must not overflow."""
REST = 50
"""Calm values after which an episode is over."""


class Anomaly(NamedTuple):
    """A value that begins an episode of unusual ones."""

    place: int
    """Its place in the series, from 0; values that are missing count."""
    value: float
    kind: str
    """What is unusual: `high`, `low`, `level rose`, `level fell`, `more variable`, `less variable`,
    `high for its time`, `low for its time`, `not finite`."""
    score: float
    """How far past the record, in margins: at least 1."""


class _Record:
    """The highest and the lowest of a quantity so far."""

    __slots__ = ("_count", "_highest", "_history", "_level", "_lowest", "falls", "margin", "middle", "rises")

    def __init__(self, margin: float, rises: str, falls: str, level: _Record | None = None) -> None:
        self.margin = margin
        self.rises = rises
        self.falls = falls
        # Ascending, the last is the record; the lowest with their signs turned.
        self._highest: list[float] = []
        self._lowest: list[float] = []
        self.middle = 0.0
        self._level = level or self
        self._count = 0
        self._history = np.empty(HISTORY)

    def add(self, value: float) -> tuple[float, bool]:
        """(how many margins it is past a record, whether that is the high one), and what it is now a part of."""
        past, rises = 0.0, True
        highest, lowest = self._highest, self._lowest
        if len(highest) < TOP or value > highest[0]:
            past = self._add_to(highest, value, self.middle)
        if len(lowest) < TOP or -value > lowest[0]:
            below = self._add_to(lowest, -value, -self.middle)
            if below > past:
                past, rises = below, False
        count = self._count
        self._history[count % HISTORY] = value
        self._count = count = count + 1
        if count % REFRESH == 0:
            self.middle = float(np.median(self._history[:count]))
        return past, rises

    def _add_to(self, top: list[float], value: float, middle: float) -> float:
        """How many margins `value` is past the record of `top`, of which it becomes a part."""
        past = 0.0
        if self._count >= REFRESH and value > top[-1]:
            # How far apart the highest are says how far the next one may well be: more in a heavy tail.
            tail = top[-1] - sum(top) / len(top)
            # A constant series has no range: then a difference that is small beside the values is rounding.
            rounding = FLOOR * abs(self._level.middle)
            margin = max(self.margin * max(top[-1] - middle, rounding), TAIL * tail, 1e-300)
            past = (value - top[-1]) / margin
        insort(top, value)
        if len(top) > TOP:
            del top[0]
        return past


def find_season(values: Floats) -> int:
    """After how many values the same comes again; 0 if there is no such number. NaN is a missing value."""
    count = len(values)
    known = values[~np.isnan(values)]
    if count < 4 * SEASON_SHORTEST or len(known) < count / 2:
        return 0
    # Neither a trend nor single wild values are a season.
    quarter = len(known) // 4
    low, high = np.quantile(known, (0.01, 0.99))
    trend = np.linspace(np.median(known[:quarter]), np.median(known[-quarter:]), count)
    off = np.where(np.isnan(values), 0.0, np.clip(values, low, high) - trend)
    off -= off.mean()
    power = np.abs(np.fft.rfft(off, 1 << (2 * count - 1).bit_length())) ** 2
    shared = np.fft.irfft(power)[: count // SEASONS + 1]
    if not shared[0] > 0:
        return 0
    alike = shared / shared[0] * count / (count - np.arange(len(shared)))
    # Neighbours are alike in any case: a season begins where values are no longer.
    apart = np.flatnonzero(alike < min(0.2, 0.5 * float(alike[1:].max())))
    first = max(int(apart[0]), SEASON_SHORTEST) if len(apart) else len(alike)
    best = float(alike[first:].max(initial=0.0))
    if best < SEASON_CLEAR:
        return 0
    season = first + int(np.flatnonzero(alike[first:] >= SEASON_ALIKE * best)[0])
    begin = max(season - season // 10, first)
    return begin + int(alike[begin : season + season // 10 + 1].argmax())


class _Season:
    """How far each value is from those at the same time of the seasons before."""

    def __init__(self, level: _Record) -> None:
        self._level = level
        self._values = np.full(SEASON_HISTORY, math.nan)
        self._count = 0
        self._begin(0)

    def _begin(self, length: int) -> None:
        """A season of another length has other differences; 0 is none."""
        self._length = length
        self._judged = 0
        self._recent: deque[float] = deque(maxlen=LEVEL)
        self._records = [_Record(margin, HIGH, LOW, self._level) for margin in SEASON_MARGINS]

    def add(self, value: float) -> Iterator[tuple[_Record, float, bool]]:
        """As `AnomalyDetector._measure`; NaN is a missing value, which has its place in a season."""
        count, length = self._count, self._length
        if count and count % SEASON_REFRESH == 0:
            self._look()
            length = self._length
        if length and not math.isnan(value):
            usual = sorted(
                other
                for back in range(length, min(SEASONS * length, count) + 1, length)
                if not math.isnan(other := float(self._values[(count - back) % SEASON_HISTORY]))
            )
            if len(usual) == SEASONS:
                yield from self._compare(value - usual[SEASONS // 2])
        self._values[count % SEASON_HISTORY] = value
        self._count = count + 1

    def _compare(self, off: float) -> Iterator[tuple[_Record, float, bool]]:
        self._judged += 1
        self._recent.append(off)
        measured = (off, math.fsum(self._recent) / LEVEL) if len(self._recent) == LEVEL else (off,)
        for record, quantity in zip(self._records, measured, strict=False):
            past, rises = record.add(quantity)
            # The detector's own bar is for all values; there are fewer differences.
            yield record, past / _bar(self._judged) if self._judged > SEASON_FEWEST else 0.0, rises

    def _look(self) -> None:
        count = self._count
        values = self._values[:count] if count < SEASON_HISTORY else np.roll(self._values, -(count % SEASON_HISTORY))
        length = find_season(values)
        if not length or abs(length - self._length) > max(2.0, SEASON_CHANGE * self._length):
            self._begin(length)


def _bar(count: int) -> float:
    """Margins by which a record must be broken when there were so many values."""
    return 1 + (LITTLE / count) ** 2


class AnomalyDetector:
    """Takes the values of one series one by one."""

    def __init__(self) -> None:
        self.seen = 0
        """Values that were given, missing ones too."""
        self._judged = 0
        self._last_unusual = -REST - 1
        self._recent: deque[float] = deque(maxlen=VARIABILITY)
        self._level_sum = 0.0
        self._shift = 0.0
        self._sum = 0.0
        self._squares = 0.0
        self._value = _Record(0.1, "high", "low")
        self._level = _Record(0.15, "level rose", "level fell")
        self._variability = _Record(0.2, "more variable", "less variable", self._value)
        self._season = _Season(self._value)

    def add(self, value: float) -> Anomaly | None:
        """The anomaly that begins with this value, if one does. NaN is a missing value; infinity is an anomaly."""
        place = self.seen
        self.seen = place + 1
        if not math.isfinite(value):
            list(self._season.add(math.nan))
            return None if math.isnan(value) else self._report(place, value, "not finite", math.inf)
        count = self._judged
        self._judged = count + 1
        if count < FEWEST:
            self._measure(value)
            return None
        bar = _bar(count)
        # A single wild value also moves the level and the variability: it is what it is called by.
        for record, past, rises in self._measure(value):
            if past >= bar:
                return self._report(place, value, record.rises if rises else record.falls, past / bar)
        return None

    def _report(self, place: int, value: float, kind: str, score: float) -> Anomaly | None:
        """Only what begins an episode."""
        calm = place - self._last_unusual
        self._last_unusual = place
        return Anomaly(place, value, kind, score) if calm > REST else None

    def _measure(self, value: float) -> list[tuple[_Record, float, bool]]:
        """For each quantity how many margins it is past a record, and whether that is the high one."""
        value = min(max(value, -HUGE), HUGE)
        self._remember(value)
        found = [(self._value, *self._value.add(value))]
        count = len(self._recent)
        if count >= LEVEL:
            found.append((self._level, *self._level.add(self._level_sum / LEVEL)))
        if count == VARIABILITY:
            mean = self._sum / count
            deviation = math.sqrt(max(self._squares / count - mean * mean, 0.0))
            found.append((self._variability, *self._variability.add(deviation)))
        found += self._season.add(value)
        return found

    def _remember(self, value: float) -> None:
        recent = self._recent
        if self._judged % REFRESH == 1 and recent:
            self._shift = value
            tail = list(recent)
            self._level_sum = math.fsum(tail[-LEVEL:])
            self._sum = math.fsum(item - value for item in tail)
            self._squares = math.fsum((item - value) ** 2 for item in tail)
        if len(recent) >= LEVEL:
            self._level_sum -= recent[-LEVEL]
        if len(recent) == VARIABILITY:
            oldest = recent[0] - self._shift
            self._sum -= oldest
            self._squares -= oldest * oldest
        recent.append(value)
        self._level_sum += value
        shifted = value - self._shift
        self._sum += shifted
        self._squares += shifted * shifted


def find_anomalies(values: Iterable[float]) -> Iterator[Anomaly]:
    """The anomalies of a series, each as soon as its value is there."""
    detector = AnomalyDetector()
    for value in values:
        if (found := detector.add(float(value))) is not None:
            yield found
