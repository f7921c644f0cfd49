"""GPUMonitor, GPUResourceMonitor and SystemMonitor: hardware readings inside a program.

The agent writes the same readings into the run folder without any of these; they are for code that uses them directly.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from trainvitals.errors import TrainvitalsError
from trainvitals.integrations.classic import allocator
from trainvitals.integrations.classic.outputs import LogFolder, MetricsPage, SampleOutput
from trainvitals.integrations.classic.sampler import ClassicSampler, as_row, check_index, label_of
from trainvitals.sources import Sample, World, gpu_sources
from trainvitals.stderr import print_error, print_line


class GPUMonitor:
    """One GPU, read every `sample_interval` seconds in a thread. Also a context manager."""

    def __init__(
        self,
        gpu_index: int = 0,
        sample_interval: float = 1.0,
        log_dir: str | os.PathLike[str] | None = None,
        prometheus_port: int | None = None,
        history_size: int = 1000,
        *,
        world: World | None = None,
    ) -> None:
        """`log_dir` is a run folder to write the readings into, `prometheus_port` one on which they are served, and
        `history_size` how many of them `history()` keeps."""
        self.gpu_index = check_index(gpu_index, "gpu_index must be an integer")
        self.sample_interval = sample_interval
        self._log_dir = log_dir
        self._port = prometheus_port
        self._history: deque[dict[str, Any]] = deque(maxlen=history_size)
        self._outputs: list[SampleOutput] = []
        self._sampler = ClassicSampler(
            gpu_sources(),
            sample_interval,
            wanted=self._is_mine,
            gpus=(self.gpu_index,),
            on_round=self._pass_on,
            world=world,
        )

    def _is_mine(self, sample: Sample) -> bool:
        return sample.table == "gpu" and sample.labels.get("gpu_index") == self.gpu_index

    def start(self) -> None:
        """Start reading. Without such a GPU, or if the readings cannot go where they should, this warns
        once."""
        if not self._outputs:
            if self._log_dir is not None:
                self._open("log_dir", partial(LogFolder, self._log_dir))
            if self._port is not None:
                self._open("prometheus_port", partial(MetricsPage, self._port, self.sample_interval))
        self._sampler.start()

    def _open(self, option: str, make: Callable[[], SampleOutput]) -> None:
        try:
            self._outputs.append(make())
        except ImportError:
            print_line(f"{option} needs: pip install 'trainvitals[prometheus]'")
        except (OSError, TrainvitalsError) as error:
            reason = error.message if isinstance(error, TrainvitalsError) else error.strerror or error
            print_line(f"{option} has no effect: {reason}")

    def _pass_on(self) -> None:
        samples = self._sampler.samples()
        rows = [as_row(sample) for sample in samples]
        self._history.extend(rows)
        for output in self._outputs:
            output.take(samples, rows)

    def stop(self) -> None:
        """Stop reading. The readings stay."""
        self._sampler.stop()
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            output.close()

    def latest(self) -> dict[str, Any] | None:
        """The newest reading, with the names of a GPU line (docs/metrics.md); None if there is none."""
        for sample in self._sampler.samples():
            return as_row(sample)
        return None

    def history(self) -> list[dict[str, Any]]:
        """The newest readings, the oldest first: `history_size` of them at most."""
        return list(self._history)

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
        """`device_ids` are the GPUs to read, all if None. At each reading `log_to_wandb` adds the numbers to the
        current W&B run, and `log_to_console` writes a line to stderr."""
        refusal = "device_ids must be integers"
        self._devices = None if device_ids is None else {check_index(index, refusal) for index in device_ids}
        self._to_wandb = log_to_wandb
        self._to_console = log_to_console
        self._warned: set[str] = set()
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
        """The newest numbers: `gpu_0_gpu_utilization_pct` and so on. What was not measured is absent. Allocated and
        reserved memory are those of PyTorch's allocator where this process uses the GPU through torch."""
        found: dict[str, float] = {}
        samples = self._sampler.samples()
        own = allocator.read_gpus(sample.labels for sample in samples if sample.table == "gpu")
        for sample in samples:
            keys, prefix = (GPU_KEYS, f"{label_of(sample)}_") if sample.table == "gpu" else (SYSTEM_KEYS, "")
            for key, (name, divisor) in keys.items():
                value = sample.values.get(name)
                if isinstance(value, (int, float)):
                    found[f"{prefix}{key}"] = value / divisor
        for index, held in own.items():
            for name, megabytes in held.items():
                found[f"gpu_{index}_{name.removesuffix('_mb')}_gb"] = megabytes / MB_PER_GB
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
        if self._to_console:
            print_error(self._draw_line())
        if self._to_wandb:
            self._add_to_wandb(self.get_latest_metrics())

    def _draw_line(self) -> str:
        """`GPU Monitor - GPU0: 85.2%/76.3% | GPU1: ...`: utilization and memory, as `trainvitals monitor` prints them;
        of the host where there is no GPU."""
        gpus = {sample.labels["gpu_index"]: sample for sample in self._sampler.samples() if sample.table == "gpu"}
        if not gpus:
            numbers = self.get_latest_metrics()
            cpu, memory = (numbers.get(key) for key in ("cpu_utilization_pct", "system_memory_utilization_pct"))
            return f"System Monitor - CPU: {_percent(cpu)} | memory: {_percent(memory)}"
        simulated = " (simulated)" if all(sample.labels.get("simulated") for sample in gpus.values()) else ""
        parts = (
            f"GPU{index}: {_percent(sample.values.get('utilization_percent'))}/"
            f"{_percent(sample.values.get('memory_percent'))}"
            for index, sample in sorted(gpus.items(), key=lambda pair: pair[0])
        )
        return f"GPU Monitor{simulated} - {' | '.join(parts)}"

    def _add_to_wandb(self, metrics: dict[str, float]) -> None:
        """Every sample into the run's system metrics, which have their own time axis, and the newest beside the
        program's next step: a row of history per sample would take the program's step numbers."""
        wandb = sys.modules.get("wandb")
        run = wandb.run if wandb is not None else None
        if run is None:
            self._warn_once("log_to_wandb: no active W&B run yet; samples are logged to it from wandb.init() on")
            return
        publish = getattr(getattr(run, "_interface", None), "publish_stats", None)
        if publish is not None:
            publish(metrics)
        else:
            self._warn_once("log_to_wandb: this version of wandb takes no system metrics, only one sample per step")
        run.log(metrics, commit=False)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            print_line(text)


def _percent(value: object) -> str:
    return f"{value:.1f}%" if isinstance(value, (int, float)) else "-"
