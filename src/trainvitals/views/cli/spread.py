"""Lowest, mean and highest value of each GPU, from samples as they come: constant memory, however long it lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainvitals.analysis.energy import Energy
from trainvitals.views.cli.terminal import Cell, Paint, clean, draw_table
from trainvitals.views.data import quantities

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
        moment = quantities.parse_time(row.get("timestamp"))
        self.energy.add(moment, row.get("energy_joules"), row.get("power_draw_watts"))


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
