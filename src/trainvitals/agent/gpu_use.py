"""What each GPU did during a run: how busy, how much memory, how much energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

MEANS = ("utilization_percent", "power_draw_watts")
HIGHEST = ("utilization_percent", "memory_used_mb", "temperature_celsius")
FACTS = ("gpu_index", "gpu_name", "vendor", "simulated")


class GpuUse:
    """Means, maxima and energy by GPU, over all lines written for the run. Goes on from what `as_json` made."""

    def __init__(self, known: object = None) -> None:
        self._gpus: dict[str, dict[str, Any]] = {}
        if isinstance(known, dict):
            self._gpus = {str(key): dict(item) for key, item in known.items() if isinstance(item, dict)}

    def add(self, labels: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Take one sample in; values that are missing or not finite numbers are not counted."""
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
        energy = values.get("energy_joules")
        if _is_finite(energy):
            before = gpu.get("energy_counter_joules", energy)
            # The counter begins again at zero when the driver is loaded anew.
            grown = energy - before if energy >= before else energy
            gpu["energy_used_joules"] = gpu.get("energy_used_joules", 0.0) + grown
            gpu["energy_counter_joules"] = energy

    def as_json(self) -> dict[str, dict[str, Any]]:
        return self._gpus


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)
