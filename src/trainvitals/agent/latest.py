"""The newest of everything, for whoever looks at the machine now: `latest.json`.

Some values are read only with every n-th sample. Here, and never in a journal, such a value stays until its next turn
is overdue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from trainvitals.agent.reading import Reading
from trainvitals.journal.documents.latest import LatestSample
from trainvitals.journal.encoding import format_time
from trainvitals.sources import Sample, Value

MOST_SAMPLES = 64
"""Samples of one unit; a metrics page may have thousands of series."""
OVERDUE = 2.5
"""A value that did not come for this many of its own intervals is not shown any more."""
FIRST_INTERVAL = 16.0
"""Seconds, of a value that has come only once."""

_Key = tuple[Value, ...]


class Latest:
    """What each unit said last. Readings come from the threads of the units, each unit's from one thread."""

    def __init__(self) -> None:
        self.count = 0
        """Readings with samples so far: a change means that there is something new."""
        self._units: dict[str, tuple[Reading, dict[_Key, _Memory]]] = {}

    def take(self, reading: Reading) -> None:
        samples = [item for item in reading.items if isinstance(item, Sample)][:MOST_SAMPLES]
        if not samples:
            return
        before = self._units[reading.unit][1] if reading.unit in self._units else {}
        memories: dict[_Key, _Memory] = {}
        for sample in samples:
            key = (sample.table, *sample.labels.values())
            memory = memories[key] = before.get(key) or _Memory()
            memory.take(sample, reading.moment)
        self._units[reading.unit] = (reading, memories)
        self.count += 1

    def forget(self, unit: str) -> None:
        """There is no such unit any more."""
        self._units.pop(unit, None)

    def describe(self) -> dict[str, LatestSample]:
        """By unit, numbered where a unit has several samples."""
        now = time.monotonic()
        found: dict[str, LatestSample] = {}
        for unit, (reading, memories) in list(self._units.items()):
            for number, memory in enumerate(memories.values()):
                sample = memory.sample
                found[unit if len(memories) == 1 else f"{unit}#{number}"] = LatestSample(
                    source=reading.source,
                    table=sample.table,
                    time=format_time(sample.time),
                    age=now - reading.moment,
                    labels=dict(sample.labels),
                    values=memory.values(now),
                )
        return found


class _Memory:
    """One sample and what those before it said besides."""

    sample: Sample

    def __init__(self) -> None:
        self._moment = 0.0
        self._values: Mapping[str, Value] = {}
        self._kept: dict[str, tuple[float, Value]] = {}  # when it came last, and what it was
        self._intervals: dict[str, float] = {}

    def take(self, sample: Sample, moment: float) -> None:
        kept = self._kept
        if sample.values.get("state") != self._values.get("state"):
            kept = {}  # what a GPU said before it was lost is not true of it now
        else:
            kept = dict(kept)
            for name in self._values.keys() - sample.values.keys():
                kept[name] = (self._moment, self._values[name])
            for name in kept.keys() & sample.values.keys():
                interval = moment - kept.pop(name)[0]
                # One long pause, as of a unit that hung, does not make a slow value of it.
                self._intervals[name] = min(interval, 2 * self._intervals.get(name, interval))
        self._kept, self._moment, self._values, self.sample = kept, moment, sample.values, sample

    def values(self, now: float) -> dict[str, Value]:
        """By name; those of an earlier sample last."""
        found = dict(self._values)
        for name, (moment, value) in self._kept.items():
            if now - moment <= OVERDUE * self._intervals.get(name, FIRST_INTERVAL):
                found.setdefault(name, value)
        return found
