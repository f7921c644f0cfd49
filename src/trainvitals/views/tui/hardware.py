"""The hardware of this machine, live: from the agent's newest samples, or sampled here where no agent runs.
Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainvitals import sources
from trainvitals.journal.documents.latest import LatestSample, read_latest
from trainvitals.journal.documents.rows import EventRow
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import gpu_number
from trainvitals.newest import is_late
from trainvitals.sources import World
from trainvitals.views.panels import PANELS
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.own_sampling import OwnSampling
from trainvitals.views.tui.snapshot import Gpu, Value

if TYPE_CHECKING:
    from trainvitals.views.tui.tracks import Track, Tracks

HISTORY = 120
"""Newest utilization values of a GPU for its sparkline."""

LIVE_TABLES = ("gpu", "system", "process")
_CHARTED = {
    table: {name for panel in PANELS if panel.table == table for name in panel.metrics} for table in LIVE_TABLES
}


class HardwareNow(NamedTuple):
    """The hardware at one moment."""

    origin: str
    """Where the numbers are from: `agent`, `own sampling`, `run folder`."""
    gpus: tuple[Gpu, ...]
    system: Mapping[str, Value]
    notes: tuple[str, ...] = ()


class Hardware:
    """Reads the newest samples, and keeps a history of what is charted. Used by one thread, except for `end`."""

    def __init__(self, options: TopOptions, world: World) -> None:
        self._simulated = options.simulate_gpus > 0
        self._own = OwnSampling(options, world)
        self._seen: dict[str, float] = {}
        """Unit -> time of its sample that was added to the history."""
        self._made_tracks: Tracks | None = None

    @property
    def notices(self) -> Sequence[EventRow]:
        """What the sources reported, where it is sampled here."""
        return self._own.notices

    @property
    def is_sampled_here(self) -> bool:
        return self._own.is_on

    def read(self, now: float, interval: float) -> HardwareNow:
        latest = None if self._simulated else read_latest()
        if latest is not None and latest.is_current(now, interval):
            self._own.pause()
            samples: Mapping[str, LatestSample] = latest.samples
            reasons = {key: unit.reason for key, unit in latest.sources.items() if unit.reason}
            origin = "agent"
        else:
            samples, reasons = self._own.read(interval)
            origin = "own sampling"
        times = {unit: parse_time(sample.time) or 0.0 for unit, sample in samples.items()}
        self._add_to_history(samples, times)
        gpus = []
        system: dict[str, Value] = {}
        for unit, sample in samples.items():
            if sample.table == "gpu":
                problem = ""
                if is_late(age := now - times[unit], interval):
                    problem = reasons.get(_unit_of(unit)) or f"no response for {age:.0f} s"
                gpus.append(self._make_gpu(sample, times[unit], problem))
            elif sample.table == "system":
                system.update(sample.values)  # the host is read in several parts
        explained = self._own.explain_missing_gpus(reasons) if origin == "own sampling" and not gpus else ""
        gpus += _silent_gpus(reasons, {_unit_of(unit) for unit in samples})
        return HardwareNow(origin, tuple(sorted(gpus, key=_order)), system, (explained,) if explained else ())

    def end(self) -> None:
        """Stop sampling here. For any thread."""
        self._own.end()

    # -- history

    @property
    def _tracks(self) -> Tracks:
        """Created on demand, in the feed's thread: it imports numpy."""
        if self._made_tracks is None:
            from trainvitals.views.tui.tracks import Tracks

            self._made_tracks = Tracks()
        return self._made_tracks

    def names(self, table: str) -> set[str]:
        """The charted metrics of a table that were measured so far."""
        return self._tracks.names(table)

    def tracks(self, table: str, metric: str) -> list[Track]:
        """Their curves over time, one per GPU, rank or host."""
        return self._tracks.of_group(table, metric)

    def reset(self) -> None:
        """Forget the history."""
        self._tracks.clear()

    def _add_to_history(self, samples: Mapping[str, LatestSample], times: Mapping[str, float]) -> None:
        from trainvitals.views.tui.tracks import owner_of

        tracks = self._tracks
        for unit, sample in samples.items():
            table, moment = sample.table, times[unit]
            if table not in LIVE_TABLES or self._seen.get(unit) == moment:
                continue
            self._seen[unit] = moment
            owner = owner_of(table, sample.labels)
            for name in _CHARTED[table].intersection(sample.values):
                value = sample.values[name]
                if isinstance(value, (int, float)):
                    tracks.track(name, owner, table, name).add(moment, float(value))

    def _make_gpu(self, sample: LatestSample, moment: float, problem: str) -> Gpu:
        """`problem` is why there is no new sample; what the GPU itself reports is closer to the cause."""
        from trainvitals.views.tui.tracks import owner_of

        labels, state = sample.labels, sample.values.get("state")
        key = owner_of("gpu", labels).key
        track = self._tracks.find(key, "gpu", "utilization_percent")
        return Gpu(
            key=key,
            index=gpu_number(labels),
            name=str(labels.get("gpu_name") or labels.get("vendor") or ""),
            uuid=str(labels.get("gpu_uuid") or ""),
            values=sample.values,
            time=moment,
            problem=state if isinstance(state, str) and state != "ok" else problem,
            simulated=bool(labels.get("simulated")),
            host=str(labels.get("host") or ""),
            history=track.last(HISTORY) if track is not None else (),
        )


def _unit_of(name: str) -> str:
    """Of the several samples of one unit, which are numbered, the unit."""
    return name.partition("#")[0]


def _silent_gpus(reasons: Mapping[str, str], answered: set[str]) -> list[Gpu]:
    """GPUs that have never responded: they have no values, but must be shown."""
    found = []
    for unit, reason in reasons.items():
        vendor, _, place = unit.partition(":")
        if place and place != "events" and unit not in answered and vendor in sources.gpu_sources():
            index = place if place.isdigit() else "?"
            found.append(Gpu(unit, index, "", place if index == "?" else "", {}, 0.0, problem=reason))
    return found


def _order(gpu: Gpu) -> tuple[Any, ...]:
    from trainvitals.views.tui.tracks import owner_of

    index, _, part = gpu.index.partition(":")
    labels = {"gpu_index": index, "host": gpu.host, **({"mig_index": part} if part else {})}
    return owner_of("gpu", labels).order
