"""What each GPU did during a run: how busy, how hot, how much memory, power and energy.

The agent adds samples as it writes them and keeps the result in status.json; the monitor adds the rows it prints; a
view reads what the agent kept, or the recorded series where there is no such result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainvitals.analysis.energy import Energy
from trainvitals.analysis.gpu_days import IDLE_PERCENT, GpuDays
from trainvitals.analysis.spread import Spread
from trainvitals.journal.documents.fields import finite, text, whole
from trainvitals.journal.identity import gpu_key, gpu_title

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


def parse_use(key: str, kept: Mapping[str, Any], host: object = None, idle_percent: float = IDLE_PERCENT) -> GpuUse:
    """What `as_json` made of the GPU with this key."""
    labels = {name: kept[name] for name in _FACTS if name in kept}
    labels |= {"gpu_uuid": key} if key != str(labels.get("gpu_index")) else {}
    labels |= {"host": host} if host is not None else {}
    numbers = {key: value for key, item in kept.items() if (value := finite(item)) is not None}
    use = GpuUse(
        labels,
        memory_total_mb=numbers.get("memory_total_mb"),
        energy=Energy(*map(numbers.get, _ENERGY_KEYS)),
        state=text(kept.get("state")) or "",
        days=GpuDays.parse(kept.get("days")),
        idle_percent=idle_percent,
    )
    for name in METRICS:
        values = (numbers.get(f"{name}_{_SPREAD_KEYS[part]}") for part in ("low", "mean", "high", "last"))
        use.spreads[name] = Spread(whole(kept.get(f"{name}_count")) or 0, *values)
    return use


def name_model(labels: Mapping[str, Any]) -> str:
    """The model of a GPU. One that does not exist is always called simulated."""
    name = str(labels.get("gpu_name") or "")
    return f"{name} (simulated)".lstrip() if labels.get("simulated") and "simulated" not in name.lower() else name


def is_own(key: str, about: Mapping[str, Any], own: Collection[str] | None) -> bool:
    """Whether a GPU is the run's, whose own are `own` if that is known. One that does not exist is nobody else's."""
    return own is None or bool(about.get("simulated")) or key in own or about.get("mig_parent") in own


def parse_uses(summary: object, host: object = None, idle_percent: float = IDLE_PERCENT) -> list[GpuUse]:
    """The GPUs in the `gpu_summary` of a status file."""
    kept = summary.items() if isinstance(summary, Mapping) else ()
    return [parse_use(str(key), item, host, idle_percent) for key, item in kept if isinstance(item, Mapping)]


def parse_energy(summary: Mapping[str, Mapping[str, Any]], own: Collection[str] | None) -> float | None:
    """Joules of the run's own GPUs in the `gpu_summary` of a status file, for lists of many runs; None if none reported
    any."""
    found = (finite(kept.get(_ENERGY_KEYS[0])) for key, kept in summary.items() if is_own(key, kept, own))
    known = [joules for joules in found if joules is not None]
    return sum(known) if known else None


def last_of(kept: Mapping[str, Any], name: str) -> float | None:
    """The newest value of a metric in what `as_json` made, for pages of thousands of GPUs."""
    return finite(kept.get(f"{name}_{_SPREAD_KEYS['last']}"))


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


def total_energy(uses: Iterable[GpuUse]) -> float | None:
    """Joules of the run's own GPUs together; None if none reported any."""
    known = [use.energy.joules for use in uses if use.is_own and use.energy.joules is not None]
    return sum(known) if known else None
