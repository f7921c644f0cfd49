"""Runs to judge rules by: healthy ones, and the same with a fault put in. Real small trainings, and noisy curves."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


def varied(seed: int, shape: str, share: float = 1.0) -> list[Values]:
    """A noisy curve with numbers of its own, drawn by the seed: how long, how noisy, where it ends, how large its
    gradients are, and with something that happens in healthy runs too."""
    random = np.random.default_rng(seed)
    steps = int(random.integers(4000, 9000) * share)
    step = np.arange(steps)
    floor, height = 10 ** random.uniform(-2, 1), 10 ** random.uniform(-0.3, 1)
    level = floor * (1 + height * (1 + step / random.uniform(20, 200)) ** -random.uniform(0.3, 0.8))
    if shape == "late start":  # nothing is learnt for a while
        late = int(random.integers(300, 1500))
        level = np.concatenate([np.full(late, level[0]), level])[:steps]
    elif shape == "epochs":  # each pass over the data begins a little lower and ends a little higher
        level *= 1 - 0.08 * (step // 1200) / 5 + 0.05 * ((step % 1200) / 1200)
    elif shape == "data changes":  # the mixture is another from here on: a little harder
        level *= 1 + 0.08 * (step > steps * 0.6)
    elif shape == "bump":  # rises slowly by a quarter and comes down again
        level *= 1 + 0.25 * np.exp(-(((step - steps * 0.5) / (steps * 0.06)) ** 2))
    spread = random.uniform(0.02, 0.25)
    noise = np.clip(random.standard_t(random.uniform(3, 8), steps), -7, 9)
    loss = level * np.exp(spread * noise - spread**2 / 2)
    if shape == "odd batches":  # one in 300 is far off, alone
        odd = random.random(steps) < 1 / 300
        loss = np.where(odd, loss * random.uniform(2, 5, steps), loss)
    size = 10 ** random.uniform(-1.5, 1.2)
    norm = size * (1 + 4 * np.exp(-step / 200)) * np.exp(random.uniform(0.1, 0.5) * random.normal(0, 1, steps))
    kind = ("constant", "cosine", "restarts")[int(random.integers(3))]
    rate = schedule(kind, steps, peak=10 ** random.uniform(-5, -2.5), warmup=int(random.integers(50, 800)))
    return [
        {"loss": float(a), "learning_rate": float(b), "gradient_norm": float(c)}
        for a, b, c in zip(loss, rate, norm, strict=True)
    ]


SHAPES = ("plain", "late start", "epochs", "data changes", "bump", "odd batches")


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


@dataclass(frozen=True)
class World:
    """What a run happens in: its pace, its pauses, and how its machine behaves. All of it healthy."""

    step_seconds: float = STEP_SECONDS
    jitter: float = 0.06
    """Of the length of a step: batches of other lengths, a busy machine."""
    compiling: int = 0
    """So many steps at the start take 20 times as long."""
    evaluation: tuple[int, float] = (2000, 0.0)
    """Every so many steps a pause of so many seconds, in which nothing is logged."""
    epoch: int = 0
    """Every so many steps the loader starts again, and one batch takes 15 steps' time."""
    data_share: float = 0.05
    checkpoint: float = 120.0
    checkpoint_spread: float = 0.025
    checkpoint_gb: float = 0.0
    """Written each time; of three the oldest is removed."""
    temperature: float = 73.0
    temperature_wave: float = 0.0
    gpu_use: tuple[float, float] = (88.0, 12.0)
    gpu_memory: float = 0.81
    gpu_memory_steps: int = 0
    """The caching allocator takes so many more pieces of 1.5 % over the first third of the run."""
    allocated_spread: float = 0.002
    cpu: tuple[float, float] = (55.0, 15.0)
    loader_cache: float = 0.0
    """MB a second that the loader keeps in each pass over the data, given back when the next begins."""
    rss_growth: float = 0.0
    """MB that the process takes in the first quarter of an hour, less and less."""


def draw_world(seed: int) -> World:
    """Another machine, another pace."""
    random = np.random.default_rng(seed + 3000)

    def between(low: float, high: float) -> float:
        return float(random.uniform(low, high))

    pace = float(10 ** between(-0.9, -0.1))
    return World(
        step_seconds=pace,
        jitter=between(0.02, 0.35),
        compiling=int(random.integers(0, 6)),
        evaluation=(int(random.integers(400, 2000)), between(5, 90)),
        epoch=int(random.choice([0, 300, 1100])),
        data_share=between(0.01, 0.15),
        checkpoint=between(60, 400),
        checkpoint_spread=between(0.02, 0.3),
        checkpoint_gb=between(0, 12),
        temperature=between(60, 77),
        temperature_wave=between(0, 2),
        gpu_use=(between(55, 97), between(3, 20)),
        gpu_memory=between(0.3, 0.8),
        gpu_memory_steps=int(random.integers(0, 5)),
        allocated_spread=between(0.001, 0.08),
        cpu=(between(10, 72), between(5, 25)),
        loader_cache=between(0, 40),
        rss_growth=between(0, 6000),
    )


def surroundings(
    seed: int, seconds: int, world: World, pauses: list[tuple[float, float]]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], float]]:
    """What else is measured during the run, once a second: 2 GPUs, the host, the process; all in good health."""
    random = np.random.default_rng(seed + 1000)
    next_checkpoint, checkpoints, last_checkpoint = world.checkpoint, 0, 0.0
    resting = deque(pauses)
    for second in range(seconds):
        now = START + second
        warm = 1 - math.exp(-second / 120)
        while resting and resting[0][1] < second:
            resting.popleft()
        paused = bool(resting and resting[0][0] <= second)
        busy = 0.0 if second < 8 else 0.4 if paused else 1.0
        pieces = min(world.gpu_memory_steps, second * 3 * world.gpu_memory_steps // seconds)
        wave = world.temperature_wave * math.sin(second / 300)
        for gpu in range(2):
            used = 24576 * (world.gpu_memory * min(1.0, second / 30) + 0.015 * pieces) + random.normal(0, 100)
            use = random.normal(*world.gpu_use) * busy
            yield (
                "gpu",
                {"gpu_index": gpu, "gpu_uuid": f"GPU-{gpu}"},
                {
                    "utilization_percent": min(100.0, max(0.0, use)),
                    "memory_used_mb": used,
                    "memory_total_mb": 24576.0,
                    "memory_percent": used / 245.76,
                    "temperature_celsius": 35 + (world.temperature - 35) * warm + wave + random.normal(0, 1.2),
                    "temperature_limit_celsius": 90,
                    "fan_speed_percent": 0 if second < 20 else 55 + random.normal(0, 4),
                    "power_draw_watts": 300.0,
                    "throttle_reasons": "power cap" if random.random() < 0.4 else "none",
                    "xid_errors_total": 0,
                    "ecc_uncorrected_total": 3,
                    "ecc_corrected_total": 10 + second // 600,
                    "row_remap_pending": 0,
                    "pcie_link_width": 16,
                    "pcie_link_width_max": 16,
                    "row_remap_failed": 0,
                    "state": "ok",
                    "held_by_run": 1.0,
                },
                now + 0.01 * gpu,
            )
        kept = world.checkpoint_gb * min(checkpoints, 3)
        cached = world.loader_cache * (second % 700)
        free = 400.0 - kept - 4 * (second // 600)
        yield (
            "system",
            {},
            {
                "cpu_usage_percent": min(100.0, max(0.0, random.normal(*world.cpu))),
                "memory_usage_percent": 48 + 2 * math.sin(second / 90) + cached / 1280 + random.normal(0, 0.3),
                "memory_available_mb": 66000 - 1200 * math.sin(second / 90) - cached + random.normal(0, 100),
                "memory_total_mb": 128000.0,
                "swap_usage_percent": 3.0,
                "swap_used_mb": 200.0,
                "disk_usage_percent": 100 - free / 10.25,
                "disk_free_gb": free,
            },
            now + 0.05,
        )
        if second % 2 == 0:
            grown = world.rss_growth * (1 - math.exp(-second / 900))
            yield (
                "process",
                {"rank": 0},
                {
                    "rss_mb": 6000 * (1 - math.exp(-second / 200)) + grown + random.normal(0, 40),
                    "fd_count": 180.0,
                    "fd_limit": 1024.0,
                    "process_count": 5.0,
                },
                now + 0.06,
            )
        state = {"state": "running", "cause": "", "cause_kind": "", "seconds_since_step": 0.1, "world_size": 1.0}
        yield "run", {"rank": 0}, state, now + 0.07
        if second >= next_checkpoint:
            checkpoints += 1
            values = {"total": float(checkpoints), "message": "saved", "severity": "info"}
            if checkpoints > 1:
                values["interval"] = second - last_checkpoint
            last_checkpoint = float(second)
            next_checkpoint = second + world.checkpoint * math.exp(world.checkpoint_spread * random.normal())
            yield "event", {"event": "checkpoint"}, values, now + 0.08


Fault = Callable[[str, dict[str, Any], dict[str, Any], float, int], dict[str, Any] | None]


@cache
def _recorded(seed: int, name: str) -> tuple[tuple[Point, int], ...]:
    """Every point of the run kept under that name, and the step it belongs to: made once, used for every fault."""
    return tuple(measure(seed, KEPT[name], WORLDS.get(name, World())))


KEPT: dict[str, list[Values]] = {}
WORLDS: dict[str, World] = {}


def play(seed: int, name: str, fault: Fault | None = None, until: float = math.inf, every: int = 1) -> Iterator[Point]:
    """All points of the run kept as `name`, in order of time; of the training's only one in `every`. `fault` may change
    the values of a line, or leave it out (None)."""
    for point, step in _recorded(seed, name):
        if point.time - START > until:
            return
        if point.step is not None and point.step % every:
            continue
        if fault is None:
            yield point
            continue
        changed = fault(point.table, dict(point.labels), dict(point.values), point.time - START, step)
        if changed is not None:
            yield point._replace(values=changed)


def measure(seed: int, rows: list[Values], world: World) -> Iterator[tuple[Point, int]]:
    """The lines of the training and of its surroundings in order of time, and the step each belongs to."""
    steps, pauses = _pace(seed, rows, world)
    others = surroundings(seed, int(steps[-1][3] - START), world, pauses)
    merged = heapq.merge(
        ((*step[:4], step[4]) for step in steps), ((*other, None) for other in others), key=lambda item: item[3]
    )
    current = 0
    for table, labels, values, now, step in merged:
        current = current if step is None else step
        yield Point(table, labels, values, now, step), current


def _pace(
    seed: int, rows: list[Values], world: World
) -> tuple[list[tuple[str, dict[str, Any], dict[str, Any], float, int]], list[tuple[float, float]]]:
    """The lines of the training with the time of each, and its pauses in seconds since the start."""
    random = np.random.default_rng(seed + 2000)
    every, rest = world.evaluation
    clock = 0.0
    lines, pauses = [], []
    for step, row in enumerate(rows):
        duration = world.step_seconds * math.exp(world.jitter * random.normal())
        data = world.data_share * world.step_seconds * math.exp(0.3 * random.normal())
        if step < world.compiling:
            duration *= 20
        if world.epoch and step % world.epoch == world.epoch - 1:
            data += 15 * world.step_seconds
            duration += 15 * world.step_seconds
        clock += duration
        if step % every == every - 1:
            if rest:
                pauses.append((clock, clock + rest))
            clock += rest
            duration = duration + rest if rest else duration * 6  # an evaluation now and then
        extra = {
            "batch_time": duration,
            "data_time": data,
            "transfer_time": 0.01 * world.step_seconds,
            "communication_time": 0.01 * world.step_seconds,
            "throughput_samples_per_sec": 32 / duration,
            "memory_allocated_mb": 15000.0 * (1 + world.allocated_spread * random.normal()),
            "forward_time": 0.25 * world.step_seconds * math.exp(0.05 * random.normal()),
        }
        lines.append(("training", {"rank": 0}, {**row, **extra}, START + clock, step))
    return lines, pauses
