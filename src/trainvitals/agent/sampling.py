"""Reading the sources: a thread per source that looks for units, a thread per unit that reads it on schedule.

A unit that hangs or raises harms nobody but itself. Its schedule does not drift: readings begin at multiples of the
interval on the monotonic clock, and one that took too long skips the slots it missed instead of catching up.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainvitals import sources
from trainvitals.agent.log import BoundLog
from trainvitals.agent.reading import Reading
from trainvitals.agent.wanted import Demand
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.identity import gpu_key
from trainvitals.newest import Newest, Value, holds_for
from trainvitals.sources import GpuProcess, Notice, Sample, Source, SourceUnavailable, Unit, UnitGone, World

PHASE_SECONDS = 0.002
"""Units begin this much after each other: threads that all want the interpreter at once wake each other in vain."""
DISCOVER_SECONDS = 10.0
UNAVAILABLE_SECONDS = 60.0
REDISCOVER_PAUSE = 1.0
"""Seconds between two searches at least, when units get lost one after the other."""
STALE_SECONDS = 2.0
STALE_INTERVALS = 3
ABANDON_SECONDS = 60.0
UNRESPONSIVE = "unresponsive"
"""The state of a GPU whose driver does not return."""
BACKOFF_LIMIT = 60.0
GOOD_READINGS = 3
"""Readings in time before trouble is over, so that a unit that works now and then is not an event each time."""


Deliver = Callable[[Reading], None]


_places = itertools.count()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom the thread of a unit asks and whom it informs."""

    demand: Callable[[], Demand]
    deliver: Deliver
    on_gone: Callable[[str], None]


class UnitThread:
    """One unit on its schedule. `end` is its thread's own work, so a hung unit is never waited for."""

    def __init__(
        self,
        source: str,
        unit: Unit,
        owner: Owner,
        *,
        place: int = 0,
        in_trouble: bool = False,
        is_foreign: bool = False,
    ) -> None:
        """`is_foreign` is one of another package: what it gives is checked before anybody else gets it."""
        self._place = place
        self._is_foreign = is_foreign
        self.source = source
        self.key = unit.key
        self._unit = unit
        self._demand = owner.demand
        self._deliver = owner.deliver
        self._on_gone = owner.on_gone
        self._wake = threading.Event()
        self._ending = False
        self._table: str | None = None
        self._slot = (0.0, 0)  # the interval, and how many of them since the clock began
        self._began: float | None = None
        self._last_good: float | None = None
        self._duration: float | None = None
        self._errors = 0
        self._skipped = 0
        self._failures = 0
        self._good = 0
        self._reason: str | None = None
        self._in_trouble = in_trouble  # of a unit before this one: its recovery is reported, too
        self._abandoned = False
        known = getattr(unit, "identity", None)
        self._gpus = [] if known is None else [Sample("gpu", known.labels, {}, 0.0)]
        """Of the newest reading; before the first what is known from looking for it."""
        self._reported = 0.0
        self._thread = threading.Thread(target=self._run, name=f"unit {unit.key}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._ending = True
        self._wake.set()

    def reschedule(self) -> None:
        """The interval may have changed."""
        self._wake.set()

    def health(self, now: float) -> SourceHealth:
        began, last = self._began, self._last_good
        overdue = began is not None and now - began > self._deadline()
        reason = f"no response for {now - began:.0f} s" if overdue and began is not None else self._reason
        up = not overdue and not self._abandoned and last is not None and self._failures == 0
        age = now - last if last is not None else None
        return SourceHealth(
            source=self.source,
            up=up,
            age=age,
            duration=self._duration,
            errors=self._errors,
            skipped=self._skipped,
            reason=reason,
        )

    @property
    def gpu_labels(self) -> Mapping[str, Value]:
        """Of a GPU; of one that is divided those of the whole."""
        return self._gpus[0].labels if self._gpus else {}

    def gpu_processes(self, now: float) -> list[GpuProcess]:
        """Who uses this unit, if it is a GPU whose driver says so; of one that does not answer it is not known how much
        any more."""
        processes: Sequence[GpuProcess] = getattr(self._unit, "processes", ())
        if processes and not self.health(now).up:
            return [GpuProcess(process.pid, part=process.part) for process in processes]
        return list(processes)

    def check(self, now: float) -> None:
        """Called from outside the thread, which may hang: report trouble, and give up on it in the end."""
        began = self._began
        if began is None or (self._ending and not self._abandoned):
            return
        if now - began > holds_for(self._interval()):
            self._report_hung_gpus(now)
        if now - began > ABANDON_SECONDS:
            self._abandoned = True
            self.end()
        elif now - began > self._deadline():
            self._trouble(f"{self.key} has not responded for {now - began:.1f} s; its values are stale")

    def _report_hung_gpus(self, now: float) -> None:
        """A GPU whose driver does not return is still there, whoever looks: in a state, and without the values that
        have expired by now."""
        interval = self._interval()
        if self._gpus and now - self._reported >= interval:
            self._reported = now
            at = time.time()
            items = [Sample("gpu", gpu.labels, {"state": UNRESPONSIVE}, at) for gpu in self._gpus]
            self._deliver(Reading(self.source, self.key, items, now, 0.0, interval))

    # -- the thread

    def _run(self) -> None:
        while not self._ending:
            self._read(self._interval())
            self._sleep()
        try:
            self._unit.close()
        except Exception as error:  # noqa: BLE001 - the boundary around a source
            self._reason = _describe(error)

    def _sleep(self) -> None:
        """Wait for the next slot, recomputed whenever the interval changes."""
        if self._failures:
            self._wake.wait(min(self._interval() * 2.0**self._failures, BACKOFF_LIMIT))
            self._wake.clear()
            self._slot = (0.0, 0)
            return
        while not self._ending:
            interval, skipped = self._interval(), 0
            phase = self._place * PHASE_SECONDS % (interval / 2)
            slot = math.floor((time.monotonic() - phase) / interval) + 1
            if interval == self._slot[0]:
                slot = max(slot, self._slot[1] + 1)
                skipped = slot - self._slot[1] - 1
            if not self._wake.wait(slot * interval + phase - time.monotonic()):
                self._slot = (interval, slot)
                self._skipped += skipped
                return
            self._wake.clear()

    def _read(self, interval: float) -> None:
        began = self._began = time.monotonic()
        try:
            items = self._unit.read()
            if self._is_foreign:
                sources.check_items(items)
        except UnitGone as gone:
            self._began = None
            if not self._abandoned:
                self._lose(gone)
            return
        except Exception as error:  # noqa: BLE001 - the boundary around a source: it is reported, and tried again later
            self._began = None
            self._errors += 1
            self._failures += 1
            self._good = 0
            self._reason = _describe(error)
            if not self._abandoned:
                self._trouble(f"{self.key}: {self._reason}")
            return
        self._began = None
        if self._abandoned:
            return
        duration = time.monotonic() - began
        late = duration > self._deadline()
        self._failures = 0
        self._reason = None
        self._duration = duration
        self._last_good = began
        samples = [item for item in items if isinstance(item, Sample)]
        if samples:
            self._table = samples[0].table
            self._gpus = [sample for sample in samples if sample.table == "gpu"]
        if items:
            self._deliver(Reading(self.source, self.key, items, began, duration, interval, late))
        self._good = 0 if late else self._good + 1
        if self._in_trouble and self._good >= GOOD_READINGS:
            self._in_trouble = False
            self._notice("source_recovered", f"{self.key} is responding again", "info")

    def _interval(self) -> float:
        return self._demand().interval(self._table)

    def _deadline(self) -> float:
        return max(STALE_INTERVALS * self._interval(), STALE_SECONDS)

    def _lose(self, gone: UnitGone) -> None:
        self._ending = True
        self._reason = str(gone) or "disappeared"
        if self.source != "process":  # the end of a process is reported by whoever watches it
            self._notice("source_trouble", f"{self.key}: {self._reason}", "warning")
        self._on_gone(self.key)

    def _trouble(self, message: str) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            self._notice("source_trouble", message, "warning")

    def _notice(self, event: str, message: str, severity: str) -> None:
        notice = Notice(event, message, severity, {"source": self.source, "unit": self.key})
        self._deliver(Reading(self.source, self.key, (notice,), time.monotonic(), 0.0, 0.0))


class SourceThread:
    """One source: looks for its units again and again, and keeps a thread for each."""

    def __init__(
        self,
        name: str,
        world: World,
        demand: Callable[[], Demand],
        deliver: Deliver,
        on_end: Callable[[str], None],
        log: BoundLog,
    ) -> None:
        self.name = name
        self.world = world
        self._is_foreign = all(row.name != name for row in sources.REGISTRY.own)
        self.description: Mapping[str, Any] = {}
        self.units: dict[str, UnitThread] = {}
        self.reason: str | None = "not checked yet"
        self._demand = demand
        self._deliver = deliver
        self._on_end = on_end
        self._log = log.bind(source=name)
        self._source: Source | None = None
        self._lost: set[str] = set()
        self._looking_since: float | None = None
        self._ending = False
        self._failures = 0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"source {name}", daemon=True)
        self._thread.start()

    @property
    def ending(self) -> bool:
        """Whether it was asked to end."""
        return self._ending

    @property
    def ended(self) -> bool:
        """Whether it and all its units have ended."""
        return not self._thread.is_alive() and all(unit.ended for unit in list(self.units.values()))

    def state(self, now: float) -> str:
        """`ok`, or why not."""
        since = self._looking_since
        if since is not None and now - since > STALE_SECONDS:
            return f"no response for {now - since:.0f} s"
        return self.reason or "ok"

    def end(self) -> None:
        self._ending = True
        self._wake.set()
        for unit in list(self.units.values()):
            unit.end()

    def rediscover(self) -> None:
        self._wake.set()

    def _lose(self, key: str) -> None:
        self._lost.add(key)
        self.rediscover()

    # -- the thread

    def _run(self) -> None:
        while not self._ending:
            self._wake.clear()
            self._looking_since = time.monotonic()
            pause = self._discover()
            self._looking_since = None
            if self._wake.wait(pause) and not self._ending:
                time.sleep(REDISCOVER_PAUSE if self.units else 0.0)
        for unit in self.units.values():
            unit.end()

    def _discover(self) -> float:
        """Look once. Returns after how many seconds to look again."""
        try:
            if self._source is None:
                self._source = sources.create(self.name, self.world)
            found = {unit.key: unit for unit in self._source.discover()}
            before = set(self.units)
            self._keep(found)
            if set(self.units) != before or not self.description:
                self.description = dict(self._source.describe())
        except SourceUnavailable as unavailable:
            self._keep({})
            self._log_reason(str(unavailable) or "unavailable")
            # What was there once, such as a driver that is being reloaded, may be back soon.
            return DISCOVER_SECONDS if self.description or self._lost else UNAVAILABLE_SECONDS
        except Exception as error:  # noqa: BLE001 - the boundary around a source: what already runs continues
            self._failures += 1
            self._log_reason(_describe(error))
            return min(DISCOVER_SECONDS * 2.0 ** (self._failures - 1), UNAVAILABLE_SECONDS)
        self._failures = 0
        self._log_reason(None)
        return DISCOVER_SECONDS

    def _keep(self, found: Mapping[str, Unit]) -> None:
        for key, unit in found.items():
            known = self.units.get(key)
            # One that hangs is not started again beside itself: threads must not pile up.
            if (known is None or known.ended) and not self._ending:
                again = known is not None or key in self._lost
                self._lost.discard(key)
                self.units[key] = UnitThread(
                    self.name,
                    unit,
                    Owner(self._demand, self._deliver, self._lose),
                    place=next(_places),
                    in_trouble=again,
                    is_foreign=self._is_foreign,
                )
        for key in [key for key in self.units if key not in found]:
            self.units[key].end()
            if self.units[key].ended:
                del self.units[key]
                self._on_end(key)

    def _log_reason(self, reason: str | None) -> None:
        if reason != self.reason:
            if reason is None:
                self._log.info("source is up", units=sorted(self.units))
            else:
                self._log.info("source is not available", reason=reason)
            self.reason = reason


class Sampler:
    """All sources that somebody wants, at the shortest interval that somebody wants."""

    def __init__(self, log: BoundLog, deliver: Deliver) -> None:
        self._log = log
        self._deliver = deliver
        self._demand = Demand()
        self._world = World()
        self._sources: dict[str, SourceThread] = {}
        self.newest = Newest()

    def want(self, demand: Demand, world: World) -> None:
        """Start, stop and reschedule so that the demand is met. Cheap when nothing has changed."""
        changed = demand != self._demand
        self._demand, self._world = demand, world
        if changed:
            for source in list(self._sources.values()):
                for unit in list(source.units.values()):
                    unit.reschedule()
        self._apply()

    def rediscover(self, name: str) -> None:
        """Look for the units of this source now."""
        if name in self._sources:
            self._sources[name].rediscover()

    def check(self) -> None:
        """Notice units that hang; to be called every second or so."""
        now = time.monotonic()
        for source in list(self._sources.values()):
            for unit in list(source.units.values()):
                unit.check(now)
        self._apply()

    def end(self) -> None:
        self._demand = Demand()
        self._apply()

    def health(self) -> dict[str, SourceHealth]:
        """By unit."""
        now = time.monotonic()
        units = [unit for source in list(self._sources.values()) for unit in list(source.units.values())]
        return {unit.key: unit.health(now) for unit in units}

    def gpu_processes(self) -> list[GpuProcess]:
        """Who uses a GPU: an entry for each process and GPU."""
        now = time.monotonic()
        units = [unit for source in list(self._sources.values()) for unit in list(source.units.values())]
        return [process for unit in units for process in unit.gpu_processes(now)]

    def gpu_utilization(self) -> dict[str, float]:
        """How busy each GPU is, in percent, as it was sampled last."""
        found = (
            (gpu_key(thing.labels), thing.values.get("utilization_percent")) for thing in self.newest.things("gpu")
        )
        return {key: float(used) for key, used in found if isinstance(used, (int, float))}

    def gpu_holders(self) -> list[tuple[Mapping[str, Value], Sequence[GpuProcess]]]:
        """The labels of each GPU whose processes are known, and these."""
        now = time.monotonic()
        units = [unit for source in list(self._sources.values()) for unit in list(source.units.values())]
        return [(unit.gpu_labels, found) for unit in units if unit.gpu_labels and (found := unit.gpu_processes(now))]

    def gpu_users(self) -> dict[str, frozenset[int]]:
        """The processes on each GPU, by the key of its unit, as far as its driver reports them."""
        now = time.monotonic()
        units = [unit for source in list(self._sources.values()) for unit in list(source.units.values())]
        found = {unit.key: frozenset(process.pid for process in unit.gpu_processes(now)) for unit in units}
        return {key: pids for key, pids in found.items() if pids}

    def describe(self) -> dict[str, Any]:
        """What each source reports about the machine; sources without anything are omitted."""
        return {name: source.description for name, source in list(self._sources.items()) if source.description}

    def states(self) -> dict[str, str]:
        """`ok`, or why not, of each source that is wanted."""
        now = time.monotonic()
        return {name: source.state(now) for name, source in list(self._sources.items())}

    def _apply(self) -> None:
        wanted = self._demand.sources
        for name, source in list(self._sources.items()):
            # One that was asked to end is made again if it is wanted again before it is gone: it does not turn back.
            changed = _relevant(name, source.world) != _relevant(name, self._world)
            if source.ending or changed or name not in wanted:
                source.end()
                if source.ended:
                    del self._sources[name]
                    for unit in source.units:
                        self.newest.forget(unit)
        for name in wanted:
            if name not in self._sources:
                self._sources[name] = self._begin(name)

    def _begin(self, name: str) -> SourceThread:
        return SourceThread(name, self._world, lambda: self._demand, self._take, self.newest.forget, self._log)

    def _take(self, reading: Reading) -> None:
        samples = [item for item in reading.items if isinstance(item, Sample)]
        self.newest.take(reading.source, reading.unit, samples, reading.moment, reading.interval)
        self._deliver(reading)


def _relevant(name: str, world: World) -> object:
    """The part of the world whose change makes another source of it."""
    return [getattr(world, field) for field in sources.REGISTRY[name].world]


def _describe(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
