"""Runs to judge rules by: healthy ones, and the same with a fault put in. Real small trainings, and noisy curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from trainvitals.alerts.engine import Point

START = 1_800_000_000.0
STEPS = 10_000
STEP_SECONDS = 0.2

Values = dict[str, float]


def schedule(kind: str, steps: int, peak: float = 3e-4, warmup: int = 500) -> np.ndarray:
    """Learning rates: constant, cosine to zero with warm-up, or cosine with three restarts."""
    step = np.arange(steps)
    if kind == "constant":
        return np.full(steps, peak)
    ramp = np.minimum(1.0, (step + 1) / warmup)
    if kind == "cosine":
        share = np.clip((step - warmup) / (steps - warmup), 0, 1)
    else:
        cycle = (steps - warmup) / 3
        share = np.clip(((step - warmup) % cycle) / cycle, 0, 1)
    return peak * ramp * np.where(step < warmup, 1.0, 0.5 * (1 + np.cos(math.pi * share)))


def synthetic(seed: int, kind: str, noise: float, shape: str, floor: float = 1.8) -> list[Values]:
    """A noisy curve: power law or exponential fall, lognormal or heavy-tailed noise, slow drift of the data."""
    random = np.random.default_rng(seed)
    rate = schedule(kind, STEPS)
    step = np.arange(STEPS)
    if shape == "power":
        level = floor + 8.0 * (step + 30.0) ** -0.35
    else:
        level = floor + 4.0 * np.exp(-step / 3000.0) + 3.0 * np.exp(-step / 200.0)
    if kind == "restarts":  # the loss rises for a while when the learning rate jumps up again
        level = level + 0.25 * (rate / rate.max()) * (step > 500)
    drift = np.convolve(random.normal(0, 1, STEPS + 400), np.ones(401) / 401, "valid")[:STEPS] * noise * 3
    tail = random.standard_t(4, STEPS) if seed % 2 else random.normal(0, 1, STEPS)
    loss = level * np.exp(noise * np.clip(tail, -6, 8)) * (1 + drift)
    norm = (0.6 + 3.0 * np.exp(-step / 150.0)) * np.exp(0.25 * random.normal(0, 1, STEPS))
    return [
        {"loss": float(a), "learning_rate": float(b), "gradient_norm": float(c)}
        for a, b, c in zip(loss, rate, norm, strict=True)
    ]


def real(seed: int, kind: str, optimizer: str = "adam", batch: int = 32) -> list[Values]:
    """A small network that is really trained: two spirals with noise, numpy, every step's own batch loss."""
    random = np.random.default_rng(seed)
    rate = schedule(kind, STEPS, peak=3e-3 if optimizer == "adam" else 0.02, warmup=200)
    angle = random.uniform(0.5, 9.0, 4000)
    side = random.integers(0, 2, 4000)
    x = np.stack([angle * np.cos(angle + np.pi * side), angle * np.sin(angle + np.pi * side)], 1) / 9
    x += random.normal(0, 0.03, x.shape)
    sizes = [(2, 32), (32, 32), (32, 2)]
    weights = [random.normal(0, (2 / a) ** 0.5, (a, b)) for a, b in sizes] + [np.zeros(b) for _, b in sizes]
    m = [np.zeros_like(w) for w in weights]
    v = [np.zeros_like(w) for w in weights]
    rows: list[Values] = []
    for step in range(STEPS):
        pick = random.integers(0, len(x), batch)
        h0, target = x[pick], side[pick]
        h1 = np.maximum(h0 @ weights[0] + weights[3], 0)
        h2 = np.maximum(h1 @ weights[1] + weights[4], 0)
        logits = h2 @ weights[2] + weights[5]
        logits -= logits.max(1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(1, keepdims=True)
        loss = float(-np.log(p[np.arange(batch), target] + 1e-12).mean())
        d2 = p.copy()
        d2[np.arange(batch), target] -= 1
        d2 /= batch
        d1 = (d2 @ weights[2].T) * (h2 > 0)
        d0 = (d1 @ weights[1].T) * (h1 > 0)
        gradients = [h0.T @ d0, h1.T @ d1, h2.T @ d2, d0.sum(0), d1.sum(0), d2.sum(0)]
        norm = float(np.sqrt(sum(float((g * g).sum()) for g in gradients)))
        for i, g in enumerate(gradients):
            if optimizer == "adam":
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                hat = (m[i] / (1 - 0.9 ** (step + 1))) / (np.sqrt(v[i] / (1 - 0.999 ** (step + 1))) + 1e-8)
                weights[i] -= rate[step] * hat
            else:
                m[i] = 0.9 * m[i] + g
                weights[i] -= rate[step] * m[i]
        rows.append({"loss": loss, "learning_rate": float(rate[step]), "gradient_norm": norm})
    return rows


def surroundings(seed: int, rows: list[Values]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], float]]:
    """What else is measured during the run, once a second: 2 GPUs, the host, the process; all in good health."""
    random = np.random.default_rng(seed + 1000)
    seconds = int(len(rows) * STEP_SECONDS)
    for second in range(seconds):
        now = START + second
        warm = 1 - math.exp(-second / 120)
        busy = 0.0 if second < 8 else 1.0
        for gpu in range(2):
            used = 20000 * min(1.0, second / 30) + random.normal(0, 100)
            yield (
                "gpu",
                {"gpu_index": gpu, "gpu_uuid": f"GPU-{gpu}"},
                {
                    "utilization_percent": float(np.clip(random.normal(88, 12), 0, 100)) * busy,
                    "memory_used_mb": used,
                    "memory_total_mb": 24576.0,
                    "memory_percent": used / 245.76,
                    "temperature_celsius": 35 + 38 * warm + random.normal(0, 1.2),
                    "temperature_limit_celsius": 90,
                    "fan_speed_percent": 0 if second < 20 else 55 + random.normal(0, 4),
                    "power_draw_watts": 300.0,
                    "throttle_reasons": "power cap" if random.random() < 0.4 else "none",
                    "xid_errors_total": 0,
                    "ecc_uncorrected_total": 3,
                    "ecc_corrected_total": 10 + second // 600,
                    "row_remap_pending": 0,
                    "row_remap_failed": 0,
                    "state": "ok",
                },
                now + 0.01 * gpu,
            )
        yield (
            "system",
            {},
            {
                "cpu_usage_percent": float(np.clip(random.normal(55, 15), 0, 100)),
                "memory_usage_percent": 48 + 2 * math.sin(second / 90) + random.normal(0, 0.3),
                "memory_available_mb": 66000 - 1200 * math.sin(second / 90) + random.normal(0, 100),
                "memory_total_mb": 128000.0,
                "swap_usage_percent": 3.0,
                "swap_used_mb": 200.0,
                "disk_usage_percent": 61 + 0.4 * (second // 600),
                "disk_free_gb": 400.0 - 4 * (second // 600),
            },
            now + 0.05,
        )
        if second % 2 == 0:
            yield (
                "process",
                {"rank": 0},
                {
                    "rss_mb": 6000 * (1 - math.exp(-second / 200)) + random.normal(0, 40),
                    "fd_count": 180.0,
                    "fd_limit": 1024.0,
                    "process_count": 5.0,
                },
                now + 0.06,
            )
        state = {"state": "running", "cause": "", "seconds_since_step": 0.1, "world_size": 1.0}
        yield "run", {"rank": 0}, state, now + 0.07
        if second and second % 120 == 0:
            values = {"total": float(second // 120), "message": "saved", "severity": "info"}
            if second > 120:
                values["interval"] = 120.0 + random.normal(0, 3)
            yield "event", {"event": "checkpoint"}, values, now + 0.08


Fault = Callable[[str, dict[str, Any], dict[str, Any], float, int], dict[str, Any] | None]


@cache
def _recorded(seed: int, name: str) -> tuple[tuple[Point, int], ...]:
    """Every point of the run kept under that name, and the step it belongs to: made once, used for every fault."""
    return tuple(_measure(seed, KEPT[name]))


KEPT: dict[str, list[Values]] = {}


def play(seed: int, name: str, fault: Fault | None = None, until: float = math.inf) -> Iterator[Point]:
    """All points of the run kept as `name`, in order of time. `fault` may change the values of a line, or leave it
    out (None)."""
    for point, step in _recorded(seed, name):
        if point.time - START > until:
            return
        if fault is None:
            yield point
            continue
        changed = fault(point.table, dict(point.labels), dict(point.values), point.time - START, step)
        if changed is not None:
            yield point._replace(values=changed)


def _measure(seed: int, rows: list[Values]) -> Iterator[tuple[Point, int]]:
    random = np.random.default_rng(seed + 2000)

    def training() -> Iterator[tuple[str, dict[str, Any], dict[str, Any], float, int]]:
        now = START
        for step, row in enumerate(rows):
            long = 6.0 if step % 2000 == 1999 else 1.0  # an evaluation now and then
            duration = STEP_SECONDS * long * math.exp(0.06 * random.normal())
            now = START + step * STEP_SECONDS
            extra = {
                "batch_time": duration,
                "data_time": 0.01 * math.exp(0.3 * random.normal()),
                "throughput_samples_per_sec": 32 / duration,
                "memory_allocated_mb": 15000.0 + 30 * math.sin(step) + 20 * random.normal(),
                "forward_time": 0.05 * math.exp(0.05 * random.normal()),
            }
            yield "training", {"rank": 0}, {**row, **extra}, now + 0.2, step

    steps, others = training(), surroundings(seed, rows)
    step, other = next(steps, None), next(others, None)
    current = 0
    while step is not None or other is not None:
        if other is None or (step is not None and step[3] <= other[3]):
            assert step is not None
            table, labels, values, now, current = step
            step = next(steps, None)
            number: int | None = current
        else:
            table, labels, values, now = other
            other = next(others, None)
            number = None
        yield Point(table, labels, values, now, number), current
