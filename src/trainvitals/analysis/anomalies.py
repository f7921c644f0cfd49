"""Anomalies in any series, judged value by value: nothing looks ahead.

A value is an anomaly if it breaks a record by a margin. Three things have records: the value itself, the mean of the
last few, and how much they vary. The margin is a share of the distance between the record and the median, so noisy,
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
LITTLE = 800
"""Values up to which the margin is more than twice as wide."""
TOP = 8
"""Highest values that are kept, to know the tail."""
TAIL = 1.0
"""The margin is at least this times the tail: how far the record is above the mean of the highest."""
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
    """What is unusual: `high`, `low`, `level rose`, `level fell`, `more variable`, `less variable`, `not finite`."""
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

    def add(self, value: float) -> Anomaly | None:
        """The anomaly that begins with this value, if one does. NaN is a missing value; infinity is an anomaly."""
        place = self.seen
        self.seen = place + 1
        if not math.isfinite(value):
            return None if math.isnan(value) else self._report(place, value, "not finite", math.inf)
        count = self._judged
        self._judged = count + 1
        if count < FEWEST:
            self._measure(value)
            return None
        bar = 1 + (LITTLE / count) ** 2
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
