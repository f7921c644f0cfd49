"""The newest values of everything that is measured. latest.json (and with it the terminal and the page) is a dump of
this store and /metrics is rendered from it, so they always agree on which values exist.

The rule of expiry:

- A sample expires three intervals after it was read, but not before ten seconds. It is dropped with all its values when
  its unit has not delivered another by then, and at once when its unit is gone.
- A value that is only in every n-th sample, because it changes slowly or is expensive to read, expires three of its own
  intervals after it was read, but not before ten seconds; a value that was read only once after 90 seconds.
- When the state of a thing changes, as when a GPU is lost, all earlier values are dropped at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainvitals.journal.documents.latest import LatestSample
from trainvitals.journal.encoding import format_time

Value = float | int | str

INTERVALS = 3
LEAST_SECONDS = 10.0
LATE_SECONDS = 3.0
FIRST_SECONDS = 90.0
"""The slowest values come every half a minute."""
MOST_SAMPLES = 64
"""Samples of one unit; a metrics page may have thousands of series."""


class Measured(Protocol):
    """A sample, as a source gives it."""

    @property
    def table(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, Value]: ...

    @property
    def values(self) -> Mapping[str, Value]: ...

    @property
    def time(self) -> float: ...

    @property
    def counters(self) -> Mapping[str, Mapping[str, float]]: ...


@dataclass(frozen=True, slots=True)
class Thing:
    """One GPU, the host, one rank's processes: its labels, and its values by catalog name."""

    table: str
    labels: Mapping[str, Value]
    values: Mapping[str, Value]
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def holds_for(interval: float) -> float:
    """Seconds until something expires that is read at this interval."""
    return max(LEAST_SECONDS, INTERVALS * interval)


def is_late(age: float, interval: float) -> bool:
    """Whether the next one should have come: a view says how old it is, until it expires."""
    return age > max(LATE_SECONDS, INTERVALS * interval)


class Newest:
    """The store. Each unit is written by one thread; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._units: dict[str, _Unit] = {}
        self._count = 0

    def take(self, source: str, unit: str, samples: Sequence[Measured], moment: float, interval: float) -> None:
        """Add a reading of a unit, taken at `moment` (of the clock) and repeated every `interval` seconds."""
        if not samples:
            return
        known = self._units.get(unit)
        before = known.memories if known is not None else {}
        memories: dict[tuple[Value, ...], _Memory] = {}
        for sample in samples[:MOST_SAMPLES]:
            key = (sample.table, *sample.labels.values())
            memory = before.get(key)
            memories[key] = memory.follow(sample, moment) if memory else _Memory(sample, moment, {}, {}, None)
        if known is not None:  # some units deliver less often than they are read
            interval = max(interval, _limit(moment - known.moment, known.interval))
        with self._lock:
            self._units[unit] = _Unit(source, moment, interval, memories)
            self._count += 1

    def forget(self, unit: str) -> None:
        """Drop a unit that is gone."""
        with self._lock:
            if self._units.pop(unit, None) is not None:
                self._count += 1

    @property
    def count(self) -> int:
        """Changes whenever something was added or has expired."""
        self._list()
        return self._count

    def describe(self) -> dict[str, LatestSample]:
        """For latest.json: by unit, numbered where a unit has several samples."""
        now = self._clock()
        found: dict[str, LatestSample] = {}
        for name, unit in self._list():
            for number, memory in enumerate(unit.memories.values()):
                sample = memory.sample
                found[name if len(unit.memories) == 1 else f"{name}#{number}"] = LatestSample(
                    source=unit.source,
                    table=sample.table,
                    time=format_time(sample.time),
                    age=now - unit.moment,
                    labels=dict(sample.labels),
                    values=memory.values(now),
                )
        return found

    def things(self, *tables: str) -> list[Thing]:
        """What has not expired in these tables, ordered by table and label. The units of the host are one thing."""
        now = self._clock()
        host: dict[str, Value] = {}
        host_counters: dict[str, Mapping[str, float]] = {}
        found = []
        for _, unit in self._list():
            for memory in unit.memories.values():
                sample = memory.sample
                if sample.table == "system" and "system" in tables:
                    host.update(memory.values(now))
                    host_counters.update(sample.counters)
                elif sample.table in tables:
                    found.append(Thing(sample.table, sample.labels, memory.values(now), sample.counters))
        if host:
            found.append(Thing("system", {}, host, host_counters))
        found.sort(key=lambda thing: (thing.table, str(thing.labels.get("gpu_index", thing.labels.get("rank", "")))))
        return found

    def _list(self) -> list[tuple[str, _Unit]]:
        """The units that have not expired."""
        now = self._clock()
        with self._lock:
            for name in [name for name, unit in self._units.items() if now - unit.moment > holds_for(unit.interval)]:
                del self._units[name]
                self._count += 1
            return list(self._units.items())


class _Memory:
    """One sample, with the values that only earlier samples had. Immutable."""

    __slots__ = ("_earlier", "_intervals", "_kept", "_moment", "sample")

    def __init__(
        self,
        sample: Measured,
        moment: float,
        kept: Mapping[str, tuple[float, Value]],
        intervals: Mapping[str, float],
        earlier: tuple[float, Mapping[str, Value]] | None,
    ) -> None:
        self.sample = sample
        self._moment = moment
        self._kept = kept
        """Values of earlier samples: when each came last, and what it was."""
        self._intervals = intervals
        """Seconds between the last two times that a value came, of those that are not in every sample."""
        self._earlier = earlier
        """Of the sample before this one: when it came, and its values."""

    def follow(self, sample: Measured, moment: float) -> _Memory:
        """The memory with this sample."""
        old, new = self.sample.values, sample.values
        if old.get("state") != new.get("state"):
            return _Memory(sample, moment, {}, {}, None)  # the earlier values of a lost GPU are no longer true
        kept, intervals = self._kept, self._intervals
        if kept or old.keys() != new.keys():
            kept, intervals = dict(kept), dict(intervals)
            for name in old.keys() - new.keys():
                kept[name] = (self._moment, old[name])
                if self._earlier is not None and name in self._earlier[1]:
                    _note(intervals, name, self._moment - self._earlier[0])
            for name in kept.keys() & new.keys():
                _note(intervals, name, moment - kept.pop(name)[0])
        return _Memory(sample, moment, kept, intervals, (self._moment, old))

    def values(self, now: float) -> dict[str, Value]:
        """By name; those of earlier samples last."""
        found = dict(self.sample.values)
        for name, (moment, value) in self._kept.items():
            interval = self._intervals.get(name)
            if now - moment <= (FIRST_SECONDS if interval is None else holds_for(interval)):
                found.setdefault(name, value)
        return found


def _note(intervals: dict[str, float], name: str, interval: float) -> None:
    intervals[name] = _limit(interval, intervals.get(name, interval))


def _limit(interval: float, before: float) -> float:
    """Grows at most twofold: one long pause, as of a unit that hung, does not make a value slow."""
    return min(interval, 2 * before)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The newest reading of one unit."""

    source: str
    moment: float
    interval: float
    memories: Mapping[tuple[Value, ...], _Memory]
