"""Reading sources at an interval, in a separate thread of the program."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainvitals import settings, sources
from trainvitals.analysis.spread import Spread
from trainvitals.errors import no_such_gpu
from trainvitals.journal.encoding import format_time
from trainvitals.sources import Sample, SourceUnavailable, Unit, World
from trainvitals.stderr import print_line

REDISCOVER_SECONDS = 30.0


class ClassicSampler:
    """The newest reading of every unit, and min, mean and max of everything numeric.

    A unit that cannot be read has no reading; nothing here raises because of hardware.
    """

    def __init__(
        self,
        names: Iterable[str],
        interval: float,
        *,
        wanted: Callable[[Sample], bool] = lambda sample: True,
        gpus: Iterable[int] = (),
        on_round: Callable[[], None] = lambda: None,
        world: World | None = None,
    ) -> None:
        """`interval` in seconds. `gpus` are the requested indices: a missing one is reported.
        `on_round` is called after each round of readings, in the sampler's thread."""
        if not interval > 0:
            raise ValueError(f"the interval must be more than 0 seconds, not {interval!r}")
        effective = settings.resolve_for_training({})
        self._world = world or World(simulated_gpus=effective.simulate_gpus)
        self._names = tuple(names)
        self._interval = interval
        self._wanted = wanted
        self._gpus = tuple(gpus)
        self._seen: set[int] = set()
        self._on_round = on_round
        self._units: dict[str, Unit] = {}
        self._discovered = float("-inf")
        self._latest: dict[str, list[Sample]] = {}
        self._spreads: dict[tuple[str, str], Spread] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._rounds = 0
        self._warned: set[str] = set()

    # -- running

    def start(self) -> None:
        """Read once, so that there is a reading at once, and continue in a thread. Safe to call twice."""
        if self._thread is not None:
            return
        self._stop.clear()
        self._began = time.monotonic()
        self._round()
        missing = [index for index in self._gpus if index not in self._seen]
        if missing and self._seen:
            self._warn_once("none", no_such_gpu(missing, sorted(self._seen)))
        elif not self._latest:
            self._warn_once("none", "nothing to read: no GPU responds (run trainvitals doctor)")
        self._thread = threading.Thread(target=self._work, name="trainvitals-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The readings stay. Safe to call twice."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
            if not thread.is_alive():  # else a unit hangs, and its resources are in use
                self._close()

    def _close(self) -> None:
        units, self._units = self._units, {}
        self._discovered = float("-inf")
        for key, unit in units.items():
            try:
                unit.close()
            except Exception as error:  # noqa: BLE001 - the boundary around a source
                self._warn_once(key, f"{key} could not be closed: {error!r:.200}")

    def _work(self) -> None:
        while not self._stop.wait(self._interval):
            self._round()

    def _round(self) -> None:
        try:
            if time.monotonic() - self._discovered > REDISCOVER_SECONDS:
                self._discover()
            for key, unit in list(self._units.items()):
                self._read(key, unit)
            self._rounds += 1
            self._on_round()
        except Exception as error:  # noqa: BLE001 - the boundary around a source, in a thread that must live on
            self._warn_once("round", f"a reading failed: {error!r:.300}")

    def _discover(self) -> None:
        self._discovered = time.monotonic()
        for name in self._names:
            try:
                found = sources.create(name, self._world).discover()
            except SourceUnavailable:
                continue  # no such hardware
            except Exception as error:  # noqa: BLE001 - the boundary around a source, which may be another package's
                self._warn_once(name, f"source {name} failed: {error!r:.200}")
                continue
            for unit in found:
                self._units.setdefault(unit.key, unit)

    def _read(self, key: str, unit: Unit) -> None:
        try:
            read = [item for item in unit.read() if isinstance(item, Sample)]
        except Exception as error:  # noqa: BLE001 - the boundary around a source
            self._warn_once(key, f"{key} cannot be read now: {error!r:.200}")
            with self._lock:
                self._latest.pop(key, None)
            self._units.pop(key, None)
            return
        indices = (item.labels.get("gpu_index") for item in read)
        self._seen.update(index for index in indices if isinstance(index, int))
        samples = [item for item in read if self._wanted(item)]
        with self._lock:
            if samples:
                self._latest[key] = samples
            for sample in samples:
                for name, value in sample.values.items():
                    self._spreads.setdefault((label_of(sample), name), Spread()).add(value)

    # -- what was read

    def samples(self) -> Sequence[Sample]:
        """The newest reading of every unit."""
        with self._lock:
            return [sample for samples in self._latest.values() for sample in samples]

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """By unit and metric: `min`, `mean`, `max`, `last` and `count`."""
        with self._lock:
            found: dict[str, dict[str, dict[str, float]]] = {}
            for (label, name), spread in self._spreads.items():
                if spread.count:
                    found.setdefault(label, {})[name] = _describe(spread)
            return found

    @property
    def rounds(self) -> int:
        return self._rounds

    def seconds(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            print_line(text)


def check_index(index: object, refusal: str) -> int:
    """The index of a GPU; ValueError if it is invalid."""
    try:
        number = operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"{refusal} such as 0, not {index!r}")
    return number


def _describe(spread: Spread) -> dict[str, float]:
    known = {"min": spread.low, "mean": spread.mean, "max": spread.high, "last": spread.last, "count": spread.count}
    return {key: value for key, value in known.items() if value is not None}


def label_of(sample: Sample) -> str:
    """`gpu_0` for a GPU, else the table: `system`."""
    return f"gpu_{sample.labels['gpu_index']}" if "gpu_index" in sample.labels else sample.table


def as_row(sample: Sample) -> dict[str, Any]:
    """The reading with the names of the journal's lines."""
    values: Mapping[str, Any] = sample.values
    return {"timestamp": format_time(sample.time), **sample.labels, **values}
