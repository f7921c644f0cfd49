"""The newest values of everything the agent samples, each with its age.

A slow value (the video engines, processes, proportional memory) is only in the samples that read it, so values are
kept by name, and how long one holds follows from how often it has come. What is older than that is gone, and so is all
of a thing that gives no samples any more: a series ends, it never freezes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Value = float | int | str
LEAST_SECONDS = 10.0
"""How long a value holds at least."""
FIRST_SECONDS = 90.0
"""How long one holds that has come once: the slowest ones come every half a minute."""
TIMES = 3
"""And otherwise: this many times the time between its last two."""
_TABLES = ("gpu", "system", "process")
_IDENTITY = ("gpu_uuid", "gpu_index", "mig_index", "pci", "run_id", "rank")


@dataclass(frozen=True, slots=True)
class Thing:
    """One GPU, the host, one rank's processes: what it is called, and its values by catalog name."""

    table: str
    labels: Mapping[str, Value]
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How one unit of one source is doing, in the words of the catalog's `source` table."""

    source: str
    unit: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """A rule that fires, and of what."""

    rule: str
    severity: str
    labels: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run that the agent watches."""

    run_id: str
    folder: Path
    project: str
    name: str
    state: str
    ranks: frozenset[int] = frozenset()
    """The ranks on this machine."""
    alerts: tuple[ActiveAlert, ...] = ()


class _Entry:
    __slots__ = ("labels", "until", "values")

    def __init__(self) -> None:
        self.labels: Mapping[str, Value] = {}
        self.until = 0.0
        self.values: dict[str, tuple[Value, float, float]] = {}  # value, when it came, until when it holds


class Store:
    """Written by the units' threads and the agent's loop, read by whoever serves; no method waits for long."""

    def __init__(self, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self.started = time.time()
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._runs: tuple[RunView, ...] = ()
        self._healths: tuple[SourceHealth, ...] = ()
        self.driver: Mapping[str, str] = {}
        """`driver_version` and `cuda_version` of NVIDIA's driver, where there is one."""

    def take(
        self,
        table: str,
        labels: Mapping[str, Value],
        values: Mapping[str, Value],
        moment: float,
        interval: float,
    ) -> None:
        """A new sample: read at `moment` (of this store's clock), the next one due after `interval` seconds."""
        if table not in _TABLES:
            return  # what was scraped from another exporter is served by that one
        key = (table, *(labels.get(name) for name in _IDENTITY))
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            entry.labels = labels
            entry.until = moment + max(LEAST_SECONDS, TIMES * interval)
            if values.get("state", "ok") != "ok":
                entry.values.clear()  # a GPU that is lost or asleep has no temperature
            for name, value in values.items():
                before = entry.values.get(name)
                holds = FIRST_SECONDS if before is None else max(LEAST_SECONDS, TIMES * (moment - before[1]))
                entry.values[name] = (value, moment, moment + holds)

    def set_runs(self, runs: Iterable[RunView]) -> None:
        """The runs that are watched now."""
        self._runs = tuple(runs)

    def set_healths(self, healths: Iterable[SourceHealth]) -> None:
        self._healths = tuple(healths)

    @property
    def runs(self) -> tuple[RunView, ...]:
        return self._runs

    @property
    def healths(self) -> tuple[SourceHealth, ...]:
        return self._healths

    def things(self) -> list[Thing]:
        """What holds now, ordered by table and label."""
        now = self._clock()
        found = []
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.until < now:
                    del self._entries[key]
                    continue
                values = {name: value for name, (value, _, until) in entry.values.items() if until >= now}
                found.append(Thing(str(key[0]), entry.labels, values))
        found.sort(key=lambda thing: (thing.table, str(thing.labels.get("gpu_index", thing.labels.get("rank", "")))))
        return found
