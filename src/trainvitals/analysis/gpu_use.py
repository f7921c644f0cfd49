"""What each GPU did during a run: how busy, how much memory, how much energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, TypeGuard

from trainvitals.analysis.energy import Energy

MEANS = ("utilization_percent", "power_draw_watts")
HIGHEST = ("utilization_percent", "memory_used_mb", "temperature_celsius")
ENERGY = ("energy_used_joules", "energy_counter_joules", "power_read_time", "power_read_watts")
"""Where the fields of an Energy stand in the status file."""
FACTS = ("gpu_index", "gpu_name", "vendor", "simulated")


class GpuUse:
    """Means, maxima and energy by GPU, over all lines written for the run. Goes on from what `as_json` made."""

    def __init__(self, known: object = None) -> None:
        self._gpus: dict[str, dict[str, Any]] = {}
        if isinstance(known, dict):
            self._gpus = {str(key): dict(item) for key, item in known.items() if isinstance(item, dict)}

    def add(self, labels: Mapping[str, Any], values: Mapping[str, Any], when: float) -> None:
        """Take in one sample of the time `when`; values that are missing or not finite numbers are not counted."""
        key = str(labels.get("gpu_uuid", labels.get("gpu_index")))
        gpu = self._gpus.get(key)
        if gpu is None:
            gpu = self._gpus[key] = {name: labels[name] for name in FACTS if name in labels}
        for name in MEANS:
            value = values.get(name)
            if _is_finite(value):
                count = gpu.get(f"{name}_count", 0) + 1
                mean = gpu.get(f"{name}_mean", 0.0)
                gpu[f"{name}_mean"] = mean + (value - mean) / count
                gpu[f"{name}_count"] = count
        for name in HIGHEST:
            value = values.get(name)
            if _is_finite(value) and value >= gpu.get(f"{name}_max", value):
                gpu[f"{name}_max"] = value
        if "memory_total_mb" in values:
            gpu["memory_total_mb"] = values["memory_total_mb"]
        energy = Energy(*(gpu.get(name) for name in ENERGY))
        energy.add(when, values.get("energy_joules"), values.get("power_draw_watts"))
        told = zip(ENERGY, astuple(energy), strict=True)
        gpu.update((name, value) for name, value in told if value is not None)

    def as_json(self) -> dict[str, dict[str, Any]]:
        return self._gpus


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)
