"""GPUMonitor, GPUResourceMonitor and SystemMonitor: hardware readings inside a program.

The agent writes the same readings into the run folder without any of these; they are for code that uses them directly.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainvitals.integrations.classic.sampler import ClassicSampler, as_row, check_index, label_of
from trainvitals.sources import Sample, World, gpu_sources
from trainvitals.stderr import print_line


class GPUMonitor:
    """One GPU, read every `sample_interval` seconds in a thread. Also a context manager."""

    def __init__(self, gpu_index: int = 0, sample_interval: float = 1.0, *, world: World | None = None) -> None:
        self.gpu_index = check_index(gpu_index, "gpu_index must be an integer")
        self.sample_interval = sample_interval
        gpus = (self.gpu_index,)
        self._sampler = ClassicSampler(gpu_sources(), sample_interval, wanted=self._is_mine, gpus=gpus, world=world)

    def _is_mine(self, sample: Sample) -> bool:
        return sample.table == "gpu" and sample.labels.get("gpu_index") == self.gpu_index

    def start(self) -> None:
        """Start reading. Without such a GPU this warns once, and there are no readings."""
        self._sampler.start()

    def stop(self) -> None:
        """Stop reading. The readings stay."""
        self._sampler.stop()

    def latest(self) -> dict[str, Any] | None:
        """The newest reading, with the names of a GPU line (docs/metrics.md); None if there is none."""
        for sample in self._sampler.samples():
            return as_row(sample)
        return None

    def summary(self) -> dict[str, Any]:
        """`samples`, `duration_seconds`, and for each metric its `min`, `mean`, `max`, `last` and `count`."""
        found: dict[str, Any] = {"samples": self._sampler.rounds, "duration_seconds": self._sampler.seconds()}
        for metrics in self._sampler.summary().values():
            found.update(metrics)
        return found

    def __enter__(self) -> GPUMonitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class SystemMonitor:
    """The host and all GPUs, read every `update_interval` seconds in a thread. Also a context manager."""

    def __init__(self, update_interval: float = 1.0, *, world: World | None = None) -> None:
        self._sampler = ClassicSampler(("system", *gpu_sources()), update_interval, world=world)

    def start(self) -> None:
        self._sampler.start()

    def stop(self) -> None:
        self._sampler.stop()

    def latest(self) -> dict[str, dict[str, Any]]:
        """The newest readings: `system`, `gpu_0`, ... Absent where there is none."""
        found: dict[str, dict[str, Any]] = {}
        for sample in self._sampler.samples():  # the host is read in several parts
            found.setdefault(label_of(sample), {}).update(as_row(sample))
        return found

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """For each of `system`, `gpu_0`, ...: each metric's `min`, `mean`, `max`, `last` and `count`."""
        return self._sampler.summary()

    def __enter__(self) -> SystemMonitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


MB_PER_GB = 1024
# Flat name -> the catalog's name, and by how much it is divided.
GPU_KEYS = {
    "gpu_utilization_pct": ("utilization_percent", 1),
    "memory_utilization_pct": ("memory_percent", 1),
    "memory_allocated_gb": ("memory_used_mb", MB_PER_GB),
    "memory_reserved_gb": ("memory_reserved_mb", MB_PER_GB),
    "memory_total_gb": ("memory_total_mb", MB_PER_GB),
    "temperature_c": ("temperature_celsius", 1),
    "power_usage_w": ("power_draw_watts", 1),
    "graphics_clock_mhz": ("graphics_clock_mhz", 1),
    "memory_clock_mhz": ("memory_clock_mhz", 1),
}
SYSTEM_KEYS = {
    "cpu_utilization_pct": ("cpu_usage_percent", 1),
    "system_memory_used_gb": ("memory_used_mb", MB_PER_GB),
    "system_memory_utilization_pct": ("memory_usage_percent", 1),
}


class GPUResourceMonitor:
    """GPUs and host as one flat dict of numbers, read every `monitor_interval` seconds in a thread."""

    def __init__(
        self,
        monitor_interval: float = 1.0,
        log_to_wandb: bool = False,
        log_to_console: bool = False,
        device_ids: Sequence[int] | None = None,
        *,
        world: World | None = None,
    ) -> None:
        """`device_ids` are the GPUs to read, all if None. `log_to_wandb` adds the numbers to the current W&B run,
        `log_to_console` writes a line to stderr, each time they are read."""
        refusal = "device_ids must be integers"
        self._devices = None if device_ids is None else {check_index(index, refusal) for index in device_ids}
        self._to_wandb = log_to_wandb
        self._to_console = log_to_console
        self._sampler = ClassicSampler(
            ("system", *gpu_sources()),
            monitor_interval,
            wanted=self._is_wanted,
            gpus=sorted(self._devices or ()),
            on_round=self._pass_on,
            world=world,
        )

    def _is_wanted(self, sample: Sample) -> bool:
        return sample.table != "gpu" or self._devices is None or sample.labels.get("gpu_index") in self._devices

    def start_monitoring(self) -> None:
        self._sampler.start()

    def stop_monitoring(self) -> None:
        self._sampler.stop()

    def get_latest_metrics(self) -> dict[str, float]:
        """The newest numbers: `gpu_0_gpu_utilization_pct` and so on. What was not measured is absent."""
        found: dict[str, float] = {}
        for sample in self._sampler.samples():
            keys, prefix = (GPU_KEYS, f"{label_of(sample)}_") if sample.table == "gpu" else (SYSTEM_KEYS, "")
            for key, (name, divisor) in keys.items():
                value = sample.values.get(name)
                if isinstance(value, (int, float)):
                    found[f"{prefix}{key}"] = value / divisor
        return found

    @contextmanager
    def monitoring(self) -> Iterator[GPUResourceMonitor]:
        """`with monitor.monitoring():` around a training."""
        self.start_monitoring()
        try:
            yield self
        finally:
            self.stop_monitoring()

    def _pass_on(self) -> None:
        if not (self._to_wandb or self._to_console):
            return
        metrics = self.get_latest_metrics()
        if self._to_console:
            print_line("  ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
        if self._to_wandb:
            wandb = sys.modules.get("wandb")
            if wandb is None or wandb.run is None:
                self._to_wandb = False
                print_line("log_to_wandb: no active W&B run, so nothing is logged to it (call wandb.init() first)")
            else:
                wandb.log(metrics, commit=False)
