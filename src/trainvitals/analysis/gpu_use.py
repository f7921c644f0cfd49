"""What each GPU did during a run: how busy, how hot, how much memory, power and energy.

The agent adds samples as it writes them and keeps the result in status.json; the monitor adds the rows it prints; a
view reads what the agent kept, or the recorded series where there is no such result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainvitals.analysis.energy import Energy
from trainvitals.analysis.gpu_days import IDLE_PERCENT, GpuDays
from trainvitals.analysis.spread import Spread
from trainvitals.journal.documents.fields import finite, text, whole
from trainvitals.journal.documents.status import Status
from trainvitals.journal.identity import gpu_key, gpu_number, gpu_title
from trainvitals.safe_text import one_line

METRICS = ("utilization_percent", "memory_percent", "memory_used_mb", "temperature_celsius", "power_draw_watts")
_ENERGY_KEYS = ("energy_used_joules", "energy_counter_joules", "power_read_time", "power_read_watts")
_SPREAD_KEYS = {"count": "count", "low": "min", "mean": "mean", "high": "max", "last": "last"}
"""Fields of a Spread and how their keys end in the status file."""
_FACTS = ("gpu_index", "mig_index", "gpu_name", "vendor", "simulated")


@dataclass(slots=True)
class GpuUse:
    """One GPU over a whole run."""

    labels: Mapping[str, Any]
    spreads: dict[str, Spread] = field(default_factory=lambda: {name: Spread() for name in METRICS})
    memory_total_mb: float | None = None
    energy: Energy = field(default_factory=Energy)
    state: str = ""
    """As its driver says it, unless that is `ok`."""
    days: GpuDays = field(default_factory=GpuDays)
    idle_percent: float = IDLE_PERCENT
    """Of utilization, below which it is idle."""
    is_own: bool = True
    """Whether it is the run's: the others of its host are measured too, and their energy is somebody else's."""

    def add(self, values: Mapping[str, Any], moment: float | None) -> None:
        """Take in one sample of the time `moment`; values that are missing or not finite numbers are not counted."""
        for name, spread in self.spreads.items():
            spread.add(values.get(name))
        total = values.get("memory_total_mb")
        if isinstance(total, (int, float)):
            self.memory_total_mb = total
        state = values.get("state")
        self.state = state if isinstance(state, str) and state != "ok" else ""
        before = self.energy.joules
        self.energy.add(moment, values.get("energy_joules"), values.get("power_draw_watts"))
        grown = self.energy.joules - (before or 0.0) if self.energy.joules is not None else None
        self.days.add(moment, values, grown, self.idle_percent)

    @property
    def simulated(self) -> bool:
        return bool(self.labels.get("simulated"))

    @property
    def name(self) -> str:
        """Its model."""
        return name_model(self.labels)

    @property
    def order(self) -> tuple[str, int, int, str]:
        """By host and index; a GPU without an index comes last."""
        index, part = self.labels.get("gpu_index"), self.labels.get("mig_index")
        place = (index if isinstance(index, int) else 1 << 30, part if isinstance(part, int) else -1)
        return str(self.labels.get("host") or ""), *place, gpu_key(self.labels)

    def title(self, with_host: bool = False) -> str:
        """`GPU 0`, or `node1 GPU 0`."""
        title = gpu_title(self.labels)
        return f"{self.labels.get('host')} {title}" if with_host else title

    def as_json(self) -> dict[str, Any]:
        """For the status file; what is not known is left out."""
        kept = {name: self.labels[name] for name in _FACTS if name in self.labels}
        for name, spread in self.spreads.items():
            if spread.high is not None:
                for part, end in _SPREAD_KEYS.items():
                    if (value := getattr(spread, part)) is not None:
                        kept[f"{name}_{end}"] = value
        kept |= {"memory_total_mb": self.memory_total_mb} if self.memory_total_mb is not None else {}
        kept |= {"state": self.state} if self.state else {}
        known = (self.energy.joules, self.energy.counter, self.energy.moment, self.energy.watts)
        kept |= {key: value for key, value in zip(_ENERGY_KEYS, known, strict=True) if value is not None}
        return kept | ({"days": days} if (days := self.days.as_json()) else {})


class KeptGpu:
    """A GPU as an agent kept it: an entry of the `gpu_summary` of a status file. Thousands are read at once, so only
    what is asked for is parsed; what is missing or damaged is unknown."""

    __slots__ = ("_days", "_kept", "host", "key")

    def __init__(self, key: str, kept: Mapping[str, Any], host: str | None = None) -> None:
        self.key, self.host = key, host
        self._kept = kept
        self._days: GpuDays | None = None

    @property
    def number(self) -> str:
        """How people call it."""
        return one_line(gpu_number(self._kept))[:20]

    @property
    def uuid(self) -> str:
        """Empty if its agent could not read it: then it is known by its index."""
        return "" if self.key == self.number else self.key

    @property
    def name(self) -> str:
        return one_line(text(self._kept.get("gpu_name")) or "")[:80]

    @property
    def simulated(self) -> bool:
        return bool(self._kept.get("simulated"))

    @property
    def state(self) -> str:
        """What its driver says, unless that is `ok`."""
        return one_line(text(self._kept.get("state")) or "")[:80]

    @property
    def joules(self) -> float | None:
        """That it used in the run."""
        return self._number(_ENERGY_KEYS[0])

    @property
    def days(self) -> GpuDays:
        if self._days is None:
            self._days = GpuDays.parse(self._kept.get("days"))
        return self._days

    def is_own(self, own: Collection[str] | None) -> bool:
        """Whether it is the run's, whose own are `own` if that is known."""
        return is_own(self.key, self._kept, own)

    def last(self, metric: str) -> float | None:
        """The newest value of a metric."""
        found = self._number(f"{metric}_last")
        if found is None and metric == "memory_percent":
            used, total = self._number("memory_used_mb_last"), self._number("memory_total_mb")
            return 100 * used / total if used is not None and total else None
        return found

    def as_use(self, idle_percent: float = IDLE_PERCENT) -> GpuUse:
        """All of it, so that more samples can be added."""
        labels = {name: self._kept[name] for name in _FACTS if name in self._kept}
        labels |= {"gpu_uuid": self.key} if self.key != str(labels.get("gpu_index")) else {}
        labels |= {"host": self.host} if self.host is not None else {}
        return GpuUse(
            labels,
            {name: self._spread(name) for name in METRICS},
            memory_total_mb=self._number("memory_total_mb"),
            energy=Energy(*map(self._number, _ENERGY_KEYS)),
            state=text(self._kept.get("state")) or "",
            days=GpuDays.parse(self._kept.get("days")),
            idle_percent=idle_percent,
        )

    def _spread(self, metric: str) -> Spread:
        values = (self._number(f"{metric}_{_SPREAD_KEYS[part]}") for part in ("low", "mean", "high", "last"))
        return Spread(whole(self._kept.get(f"{metric}_count")) or 0, *values)

    def _number(self, name: str) -> float | None:
        return finite(self._kept.get(name))


def kept_gpus(status: Status) -> Iterator[KeptGpu]:
    """The GPUs that the agent of one host measured."""
    return (KeptGpu(key, kept, status.host) for key, kept in status.gpu_summary.items())


def name_model(labels: Mapping[str, Any]) -> str:
    """The model of a GPU. One that does not exist is always called simulated."""
    name = str(labels.get("gpu_name") or "")
    return f"{name} (simulated)".lstrip() if labels.get("simulated") and "simulated" not in name.lower() else name


def is_own(key: str, about: Mapping[str, Any], own: Collection[str] | None) -> bool:
    """Whether a GPU is the run's, whose own are `own` if that is known. One that does not exist is nobody else's."""
    return own is None or bool(about.get("simulated")) or key in own or about.get("mig_parent") in own


class GpuUses:
    """Every GPU of a run."""

    def __init__(self, known: Iterable[GpuUse] = (), idle_percent: float = IDLE_PERCENT) -> None:
        self._idle_percent = idle_percent
        self._uses = {gpu_key(use.labels): use for use in known}

    def add(self, labels: Mapping[str, Any], values: Mapping[str, Any], moment: float | None) -> None:
        """Take in one sample."""
        key = gpu_key(labels)
        use = self._uses.get(key)
        if use is None:
            use = self._uses[key] = GpuUse(labels, idle_percent=self._idle_percent)
        use.add(values, moment)

    def in_order(self) -> list[GpuUse]:
        return sorted(self._uses.values(), key=lambda use: use.order)

    def as_json(self) -> dict[str, dict[str, Any]]:
        return {key: use.as_json() for key, use in self._uses.items()}


def kept_energy(status: Status) -> float | None:
    """Joules of the run's own GPUs on one host, for lists of many runs; None if none reported any."""
    known = [gpu.joules for gpu in kept_gpus(status) if gpu.is_own(status.own_gpus) and gpu.joules is not None]
    return sum(known) if known else None


def total_energy(uses: Iterable[GpuUse]) -> float | None:
    """Joules of the run's own GPUs together; None if none reported any."""
    known = [use.energy.joules for use in uses if use.is_own and use.energy.joules is not None]
    return sum(known) if known else None
