"""Runs to judge detectors by: healthy ones, and the same with a fault put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainvitals import catalog
from trainvitals.analysis.diagnosis import Diagnosis, diagnose
from trainvitals.analysis.findings import Curve, Device, Finding, Floats, Measurements, RunEnding
from trainvitals.conditions import Conditions
from trainvitals.journal.identity import TRAINER, Participant

STEPS = 3000
SECONDS = 1200
START = 1_800_000_000.0
CONDITIONS = Conditions()


class Curves:
    """Curves that are there already."""

    def __init__(self, curves: Mapping[str, Curve]) -> None:
        self.curves = dict(curves)

    def get(self, name: str) -> Curve | None:
        logged = catalog.find_spelling("training", name, self.curves)
        return self.curves[logged] if logged is not None else None

    def names(self) -> Sequence[str]:
        return list(self.curves)


def by_step(values: Floats, every: int = 1) -> Curve:
    return Curve(np.arange(len(values), dtype=np.float64) * every, np.asarray(values, dtype=np.float64))


def by_time(values: Floats) -> Curve:
    return Curve(START + np.arange(len(values), dtype=np.float64), np.asarray(values, dtype=np.float64))


def training(seed: int = 0, noise: float = 0.03, steps: int = STEPS) -> dict[str, Curve]:
    """A loss that falls, gradients, phases that add up to the step; all in good health."""
    random = np.random.default_rng(seed)
    step = np.arange(steps)
    loss = (1.8 + 6.0 * (step + 30.0) ** -0.3) * np.exp(noise * random.standard_t(5, steps))
    parts = {
        "data_time": 0.002 + np.abs(random.normal(0, 0.0005, steps)),
        "transfer_time": np.full(steps, 0.002),
        "forward_time": 0.06 + np.abs(random.normal(0, 0.003, steps)),
        "backward_time": 0.11 + np.abs(random.normal(0, 0.005, steps)),
        "optimizer_time": np.full(steps, 0.01),
        "other_time": np.full(steps, 0.004),
    }
    return {
        "loss": by_step(loss),
        "val_loss": by_step(1.9 + 6.0 * (step[::200] + 30.0) ** -0.3 + random.normal(0, 0.005, len(step[::200])), 200),
        "learning_rate": by_step(np.full(steps, 3e-4)),
        "gradient_norm": by_step(0.6 * np.exp(0.3 * random.normal(0, 1, steps))),
        "gradient_norm/first": by_step(np.full(steps // 100, 0.2), 100),
        "gradient_norm/last": by_step(np.full(steps // 100, 0.4), 100),
        "update_ratio/first": by_step(np.full(steps // 100, 2e-3), 100),
        "update_ratio/last": by_step(np.full(steps // 100, 1e-3), 100),
        "activation_dead/first": by_step(np.full(steps // 100, 0.1), 100),
        "accuracy": by_step(0.9 - 0.8 * np.exp(-np.arange(steps // 50) / 10), 50),
        "loss_scale": by_step(np.full(steps, 65_536.0)),
        "memory_allocated_mb": by_step(30_000 + 2000 * random.random(steps)),
        "memory_reserved_mb": by_step(np.full(steps, 34_000.0)),
        **{name: by_step(values) for name, values in parts.items()},
        "batch_time": by_step(np.sum(list(parts.values()), axis=0)),
    }


def gpu(index: int = 0, seed: int = 0, simulated: bool = False, **changed: Floats) -> Device:
    random = np.random.default_rng(seed + index)
    values: dict[str, Any] = {
        "utilization_percent": np.clip(random.normal(92, 4, SECONDS), 0, 100),
        "memory_percent": np.full(SECONDS, 70.0),
        "memory_total_mb": np.full(SECONDS, 81_920.0),
        "temperature_celsius": 62 + random.normal(0, 1, SECONDS),
        "temperature_limit_celsius": np.full(SECONDS, 87.0),
        "power_draw_watts": 500 + random.normal(0, 10, SECONDS),
        "graphics_clock_mhz": 1900 + random.normal(0, 5, SECONDS),
        "graphics_clock_max_mhz": np.full(SECONDS, 1980.0),
        "throttle_thermal_seconds": np.zeros(SECONDS),
        "throttle_power_seconds": np.zeros(SECONDS),
        "pcie_link_width": np.full(SECONDS, 16.0),
        "pcie_link_width_max": np.full(SECONDS, 16.0),
        "pcie_link_generation": np.full(SECONDS, 5.0),
        "pcie_link_generation_max": np.full(SECONDS, 5.0),
        "sm_active_percent": 82 + random.normal(0, 3, SECONDS),
        "tensor_active_percent": 45 + random.normal(0, 3, SECONDS),
        "fp32_active_percent": 12 + random.normal(0, 1, SECONDS),
        "ecc_uncorrected_total": np.full(SECONDS, 3.0),
        "xid_errors_total": np.zeros(SECONDS),
        **changed,
    }
    curves = {name: by_time(y) for name, y in values.items()}
    return Device(f"GPU {index}", curves, simulated, states=[(START, "ok")])


def host(seed: int = 0, **changed: Floats) -> Device:
    random = np.random.default_rng(seed)
    values: dict[str, Any] = {
        "cpu_usage_percent": np.clip(random.normal(45, 15, SECONDS), 0, 100),
        "cpu_count": np.full(SECONDS, 32.0),
        "pressure_cpu_percent": np.full(SECONDS, 1.0),
        "cpu_iowait_percent": np.clip(random.normal(2, 1, SECONDS), 0, 100),
        "memory_total_mb": np.full(SECONDS, 256_000.0),
        "disk_free_gb": 900 - np.arange(SECONDS) * 0.001,
        **changed,
    }
    return Device("box", {name: by_time(y) for name, y in values.items()})


def process(rank: int = 0, **changed: Floats) -> Device:
    random = np.random.default_rng(rank)
    values: dict[str, Any] = {
        "main_cpu_percent": np.full(SECONDS, 60.0),
        "cpu_percent": np.full(SECONDS, 300.0),
        "rss_mb": 9000 * (1 - np.exp(-np.arange(SECONDS) / 60)) + random.normal(0, 30, SECONDS),
        **changed,
    }
    return Device(f"rank {rank}", {name: by_time(y) for name, y in values.items()})


def ranks(
    slow: int | None = None, factor: float = 1.5, count: int = 4, role: str = TRAINER
) -> dict[Participant, Curve]:
    random = np.random.default_rng(7)
    return {
        Participant(role, rank): by_step(
            (0.06 + np.abs(random.normal(0, 0.004, 500))) * (factor if rank == slow else 1.0)
        )
        for rank in range(count)
    }


def healthy(seed: int = 0, **changed: Any) -> Measurements:
    """Everything that is looked at, and nothing wrong with it."""
    given: dict[str, Any] = {
        "training": Curves(training(seed)),
        "rank_steps": ranks(),
        "rank_weights": {"first": {Participant(TRAINER, rank): by_step(np.full(30, 5.0), 100) for rank in range(2)}},
        "gpus": [gpu(0, seed), gpu(1, seed)],
        "hosts": [host(seed)],
        "processes": [process()],
        "ending": RunEnding("finished"),
        **changed,
    }
    return Measurements(**given)


def with_curves(**changed: Curve | None) -> Measurements:
    """A healthy run with some of its training curves changed, or left out (None)."""
    curves = {**training(), **changed}
    return healthy(training=Curves({name: curve for name, curve in curves.items() if curve is not None}))


def find(measured: Measurements, rule: str) -> Finding:
    """The one finding of that rule."""
    found = diagnose(measured, CONDITIONS)
    (finding,) = [item for item in found.findings if item.rule == rule] or [None]
    assert finding is not None, f"{rule} was not found, but {[item.rule for item in found.findings]}"
    return finding


def rules(found: Diagnosis) -> set[str]:
    return {item.rule for item in found.findings}
