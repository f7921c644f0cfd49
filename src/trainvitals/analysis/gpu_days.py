"""What a GPU did on each day of a run: the agent counts it as it samples, so that whoever asks about weeks of a fleet
adds up a few numbers per day instead of a sample per second. Without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from trainvitals.analysis.energy import LONGEST_GAP
from trainvitals.conditions import Conditions
from trainvitals.journal.documents.fields import finite

DAY = 86_400
MOST_DAYS = 62
"""That are kept of one run; the oldest are forgotten."""
IDLE_PERCENT = Conditions().thresholds["gpu_idle_percent"]


@dataclass(slots=True)
class GpuDay:
    """Sums and peaks; what was never measured is None."""

    seconds: float = 0.0
    """That were measured."""
    used_seconds: float | None = None
    """Utilization times time: half an hour at 50 % is 900."""
    idle_seconds: float | None = None
    joules: float | None = None
    idle_joules: float | None = None
    hottest_celsius: float | None = None
    fullest_percent: float | None = None
    """Of its memory."""

    def add(self, other: GpuDay) -> None:
        """What another sample, day or GPU adds to this."""
        self.seconds += other.seconds
        self.used_seconds = _plus(self.used_seconds, other.used_seconds)
        self.idle_seconds = _plus(self.idle_seconds, other.idle_seconds)
        self.joules = _plus(self.joules, other.joules)
        self.idle_joules = _plus(self.idle_joules, other.idle_joules)
        self.hottest_celsius = _most(self.hottest_celsius, other.hottest_celsius)
        self.fullest_percent = _most(self.fullest_percent, other.fullest_percent)

    def values(self) -> list[float | None]:
        """Its fields in their order."""
        return [getattr(self, name) for name in _FIELDS]

    @property
    def use_percent(self) -> float | None:
        """Mean utilization."""
        return 100 * self.used_seconds / self.seconds if self.used_seconds is not None and self.seconds else None

    @property
    def watts(self) -> float | None:
        """Mean power."""
        return self.joules / self.seconds if self.joules is not None and self.seconds else None


@dataclass(slots=True)
class GpuDays:
    """The days of one GPU, by date (UTC)."""

    days: dict[str, GpuDay] = field(default_factory=dict)
    _moment: float | None = None

    def add(self, moment: float | None, values: Mapping[str, Any], joules: float | None, idle_percent: float) -> None:
        """A sample of the time `moment`, until which it has used `joules` since the one before."""
        if moment is None:
            return
        before, self._moment = self._moment, moment
        # A longer pause was not measured.
        seconds = moment - before if before is not None and 0 < moment - before <= LONGEST_GAP else 0.0
        use = finite(values.get("utilization_percent"))
        is_idle = use is not None and use < idle_percent
        sample = GpuDay(
            seconds,
            seconds * use / 100 if use is not None else None,
            (seconds if is_idle else 0.0) if use is not None else None,
            joules,
            (joules if is_idle else 0.0) if use is not None and joules is not None else None,
            finite(values.get("temperature_celsius")),
            finite(values.get("memory_percent")),
        )
        self._find(date_of(moment)).add(sample)

    def between(self, first: str, last: str) -> GpuDay | None:
        """All days from the `first` to the `last` together; None if nothing was measured."""
        found = [day for date, day in self.days.items() if first <= date <= last]
        if not found:
            return None
        total = GpuDay()
        for day in found:
            total.add(day)
        return total

    def _find(self, date: str) -> GpuDay:
        found = self.days.get(date)
        if found is None:
            found = self.days[date] = GpuDay()
            while len(self.days) > MOST_DAYS:
                del self.days[min(self.days)]
        return found

    def as_json(self) -> dict[str, list[float | None]]:
        """For the status file: the fields of each day in their order."""
        return {
            date: [None if value is None else round(value, 1) for value in day.values()]
            for date, day in self.days.items()
            if day != GpuDay()
        }

    @classmethod
    def parse(cls, kept: object) -> GpuDays:
        """What `as_json` made; anything else is left out."""
        days: dict[str, GpuDay] = {}
        for date, numbers in kept.items() if isinstance(kept, Mapping) else ():
            if isinstance(date, str) and len(date) == 10 and isinstance(numbers, list) and len(numbers) == len(_FIELDS):
                seconds, *rest = (finite(number) for number in numbers)
                if len(days) < MOST_DAYS:
                    days[date] = GpuDay(seconds or 0.0, *rest)
        return cls(days)


_FIELDS = tuple(item.name for item in fields(GpuDay))


def date_of(moment: float) -> str:
    """The day of a time, in UTC: `2026-11-18`."""
    return _date_of_day(int(moment // DAY))


@lru_cache(maxsize=8)  # asked of every sample
def _date_of_day(day: int) -> str:
    return datetime.fromtimestamp(day * DAY, UTC).strftime("%Y-%m-%d")


def _plus(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one
