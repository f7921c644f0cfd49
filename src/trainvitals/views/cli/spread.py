"""Lowest, mean and highest value of each GPU, from samples as they come: constant memory, however long it lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainvitals.views.cli import quantities
from trainvitals.views.cli.terminal import Cell, Paint, clean, draw_table

_SHOWN = (
    ("utilization_percent", "use %"),
    ("memory_percent", "memory %"),
    ("temperature_celsius", "°C"),
    ("power_draw_watts", "W"),
)


@dataclass(slots=True)
class Spread:
    """Of one metric; missing and non-finite values are not counted."""

    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0

    def add(self, value: object) -> None:
        if isinstance(value, (int, float)) and math.isfinite(value):
            self.count += 1
            self.low, self.high = min(self.low, value), max(self.high, value)
            self.total += value

    def __str__(self) -> str:
        if not self.count:
            return quantities.NONE
        return f"{self.low:.0f} / {self.total / self.count:.0f} / {self.high:.0f}"


@dataclass(slots=True)
class Energy:
    """Joules used: from the card's own counter where it has one, else power over time."""

    joules: float | None = None
    _counter: float | None = None
    _before: tuple[float, float] | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        counter, power = row.get("energy_joules"), row.get("power_draw_watts")
        moment = quantities.parse_time(row.get("timestamp"))
        if isinstance(counter, (int, float)) and math.isfinite(counter):
            if self._counter is not None:  # it begins again at zero when the driver is loaded anew
                self.joules = (self.joules or 0.0) + max(counter - self._counter, 0.0)
            self._counter = counter
        elif self._counter is None and isinstance(power, (int, float)) and math.isfinite(power) and moment is not None:
            if self._before is not None and 0 < moment - self._before[0] < _LONGEST_GAP:
                self.joules = (self.joules or 0.0) + (moment - self._before[0]) * (power + self._before[1]) / 2
            self._before = (moment, power)


_LONGEST_GAP = 60.0
"""Seconds over which power is taken to have changed evenly; a longer pause was not measured."""


@dataclass(slots=True)
class GpuSpread:
    """One GPU."""

    row: Mapping[str, Any]
    spreads: dict[str, Spread] = field(default_factory=lambda: {name: Spread() for name, _ in _SHOWN})
    energy: Energy = field(default_factory=Energy)

    @property
    def index(self) -> int:
        index = self.row.get("gpu_index")
        return index if isinstance(index, int) else 1 << 30

    @property
    def title(self) -> str:
        index = self.row.get("gpu_index")
        return f"GPU{index}" if index is not None else clean(self.row.get("gpu_uuid", "GPU"))[:12]

    @property
    def simulated(self) -> bool:
        return bool(self.row.get("simulated"))

    def add(self, row: Mapping[str, Any]) -> None:
        for name, spread in self.spreads.items():
            spread.add(row.get(name))
        self.energy.add(row)


def draw_spreads(gpus: Sequence[GpuSpread], paint: Paint, columns: int | None) -> str:
    """A line per GPU: lowest / mean / highest."""
    rows = []
    for gpu in gpus:
        name = clean(gpu.row.get("gpu_name", ""))
        label = f"{name} (simulated)".lstrip() if gpu.simulated and "simulated" not in name.lower() else name
        rows.append(
            (
                gpu.title,
                *(str(gpu.spreads[key]) for key, _ in _SHOWN),
                quantities.format_energy(gpu.energy.joules),
                Cell(label, "dim"),
            )
        )
    header = ("GPU", *(title for _, title in _SHOWN), "energy", "")
    return draw_table(header, rows, paint=paint, columns=columns, right=(1, 2, 3, 4, 5), optional=(6,), indent="  ")
