"""Findings in memory and disk: leaks, what is nearly full, and when it will be.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainvitals.analysis.findings import Curve, Device, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.hardware import mark_simulated, name_devices
from trainvitals.analysis.robust import holding_since, rises, scale_of, slope_of
from trainvitals.analysis.speed import START
from trainvitals.analysis.wording import growth, percent, show, span
from trainvitals.conditions import Conditions

CERTAIN = 0.01
FEWEST_HELD = 100
PIECES = 40
FEWEST_RISING = 6
"""Pieces of a run, of `PIECES`, in which memory must rise."""
LONG = 600.0
"""Seconds of samples before growth is judged: start-up grows too."""


class _Leak(NamedTuple):
    """Growth that does not end."""

    since: float
    """The step from which on it grew."""
    before: float
    now: float
    per_step: float


def detect_device_leak(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """What tensors hold after a step grows with the steps."""
    held = measured.need("memory_allocated_mb", FEWEST_HELD).finite()
    least = conditions.thresholds["gpu_leak_percent"] / 100
    leak = _find_leak(held.x, held.y, least)
    if leak is None:
        return []
    per_thousand = leak.per_step * 1000
    evidence = [
        f"floor of memory_allocated_mb: {show(leak.before)} MB to {show(leak.now)} MB "
        f"({growth(leak.before, leak.now)})",
        f"about {show(per_thousand)} MB per 1,000 steps",
    ]
    values = {"mb_per_1000_steps": per_thousand}
    totals = _last_values(measured.gpus, "memory_total_mb")
    if totals:
        left = max((min(totals) - float(held.y[-1])) / leak.per_step, 0.0)
        times = measured.training.get("batch_time")
        usual = float(np.median(times.finite().y[-200:])) if times is not None and len(times.finite().y) else None
        values["steps_left"] = left
        evidence.append(
            f"at this rate the GPU's {show(min(totals) / 1024)} GB are full {show(round(left))} steps after the last"
            + (f", in {span(left * usual)}" if usual is not None else "")
        )
    return [
        Finding(
            "gpu.memory_leak",
            "warning",
            f"GPU memory held by tensors grows with every step since about step {int(leak.since):,}",
            tuple(evidence),
            conditions["gpu_memory_leak"].advice,
            step=int(leak.since),
            named_at=holding_since(
                held.x,
                float(held.x[FEWEST_HELD - 1] - held.x[0]),
                lambda count: _find_leak(held.x[:count], held.y[:count], least) is not None,
            ),
            values=values,
        )
    ]


def _find_leak(x: Floats, y: Floats, least: float) -> _Leak | None:
    """Growth by this share of what was held before, step by step until the end. Start-up grows too."""
    start = len(y) // 5
    places, floors = _floors(x[start:], y[start:], PIECES)
    before = float(floors[:3].min())
    grown = float(floors[-1]) - before
    if grown < least * max(before, 1.0) or rises(places, floors) > CERTAIN:
        return None
    # The last floor that it came back to, or nearly: what lies below it to the end is noise or level.
    low = np.minimum.accumulate(floors[::-1])[::-1]
    slack = max(3 * scale_of(np.diff(floors)), 0.05 * grown)
    last = int(np.flatnonzero(low <= before + slack)[-1])
    if len(floors) - last < FEWEST_RISING:
        return None
    per_step = slope_of(places[last:], floors[last:])
    # A single step up, after which it stays, is a larger buffer.
    if per_step * (places[-1] - places[last]) < grown / 2:
        return None
    # Where the trend leaves the level; of one that grew all the time, that of the first steps after start-up.
    level = float(y[START:start].min()) if last < 3 and start > START else before
    trend = float(np.median(floors[last:] - per_step * places[last:]))
    crossing = min(max((level - trend) / per_step, float(x[0])), float(places[-1]))
    return _Leak(crossing, before, float(floors[-1]), per_step)


def _floors(x: Floats, y: Floats, count: int) -> tuple[Floats, Floats]:
    """The lowest value of each of `count` pieces: what stays between two peaks."""
    size = max(len(y) // count, 1)
    pieces = y[len(y) % size :].reshape(-1, size)
    return x[len(y) % size :: size][: len(pieces)], pieces.min(axis=1)


def _last_values(devices: Sequence[Device], name: str) -> list[float]:
    """The newest finite value of each device that has one above zero."""
    found = [device.curves[name].finite().y for device in devices if name in device.curves]
    return [float(values[-1]) for values in found if len(values) and values[-1] > 0]


def detect_fragmentation(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The allocator keeps much more than it uses."""
    held, kept = measured.need("memory_allocated_mb", 50).finite(), measured.need("memory_reserved_mb", 50).finite()
    totals = _last_values(measured.gpus, "memory_total_mb")
    if not totals:
        raise NotJudged("GPU samples of 'memory_total_mb'")
    gap = float(np.median(kept.y[-200:])) - float(np.median(held.y[-200:]))
    if gap <= conditions.thresholds["gpu_fragmentation_percent"] / 100 * min(totals):
        return []
    return [
        Finding(
            "gpu.fragmentation",
            "info",
            f"The allocator reserves {show(gap / 1024)} GB more than the tensors use",
            (f"memory_reserved_mb - memory_allocated_mb: {percent(gap / min(totals))} of GPU memory",),
            conditions["gpu_memory_fragmented"].advice,
            values={"gap_mb": gap},
        )
    ]


def detect_device_full(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Little memory left on the cards, or none soon."""
    limit, soonest = conditions.thresholds["gpu_memory_percent"], conditions.thresholds["oom_minutes"] * 60
    full, soon = [], []
    for gpu in measured.with_curve(measured.gpus, "memory_percent", "GPU"):
        curve = gpu.curves["memory_percent"].finite()
        peak = float(curve.y.max())
        if peak > limit:
            full.append((gpu, peak))
        left = _seconds_until(curve, 100.0)
        if left is not None and left < soonest and measured.is_live:
            soon.append((gpu, left))
    found = []
    if soon:
        gpu, left = min(soon, key=lambda item: item[1])
        found.append(
            Finding(
                "gpu.memory_forecast",
                "critical",
                f"{gpu.title} will run out of memory in about {span(left)}",
                (f"memory use {gpu.curves['memory_percent'].finite().y[-1]:.0f} % and rising", *mark_simulated([gpu])),
                conditions["gpu_oom_soon"].advice,
                subject=gpu.title,
                values={"seconds": left},
            )
        )
    if full:
        gpus = [gpu for gpu, _ in full]
        found.append(
            Finding(
                "gpu.memory_full",
                "info",
                f"{name_devices(gpus)}: less than {100 - limit:g} % of memory free",
                (f"peak {max(peak for _, peak in full):.1f} %", *mark_simulated(gpus)),
                conditions["gpu_memory_high"].advice,
                subject=name_devices(gpus),
                about=tuple(gpu.title for gpu in gpus),
                values={"peak_percent": max(peak for _, peak in full)},
            )
        )
    return found


def _seconds_until(curve: Curve, limit: float) -> float | None:
    """When the second half's trend reaches `limit`, counted from its end; None if it does not rise for certain."""
    half = len(curve.x) // 2
    x, y = curve.x[half:], curve.y[half:]
    if len(x) < 30 or x[-1] - x[0] < LONG / 2 or rises(x, y) > CERTAIN:
        return None
    slope = slope_of(x, y)
    return float((limit - y[-1]) / slope) if slope > 0 else None


def detect_host_leak(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The memory of a rank's processes grows without end."""
    limits = conditions.thresholds
    names = ("pss_mb", "rss_mb")
    owners = [p for p in measured.processes if any(name in p.curves for name in names)]
    if not owners:
        raise NotJudged("memory samples of the ranks' processes")
    totals = _last_values(measured.hosts, "memory_total_mb")
    if not totals:
        raise NotJudged("host samples of 'memory_total_mb'")
    found, judged = [], False
    for owner in owners:
        curve = next(owner.curves[name] for name in names if name in owner.curves).finite()
        if len(curve.x) < 30 or curve.x[-1] - curve.x[0] < LONG:
            continue
        judged = True
        start = len(curve.x) // 5
        x, y = curve.x[start:], curve.y[start:]
        per_hour = slope_of(x, y) * 3600
        left = (min(totals) - y[-1]) / per_hour * 3600 if per_hour > 0 else float("inf")
        fast = per_hour > limits["host_leak_percent_per_hour"] / 100 * min(totals)
        if not fast and left > limits["leak_hours"] * 3600:
            continue
        if y[-1] < (1 + limits["host_leak_percent"] / 100) * y[0] or rises(x, y) > CERTAIN:
            continue
        found.append(
            Finding(
                "host.memory_leak",
                "critical" if left < limits["leak_critical_hours"] * 3600 else "warning",
                f"Memory of {owner.title} grows by {show(per_hour)} MB per hour",
                (
                    f"{show(y[0])} MB to {show(y[-1])} MB",
                    f"at this rate host memory will be full in {span(left)}",
                ),
                conditions["host_memory_leak"].advice,
                subject=owner.title,
                values={"mb_per_hour": per_hour, "seconds_left": left},
            )
        )
    if not judged:
        raise NotJudged(f"{span(LONG)} of samples of the ranks' processes")
    return found


def detect_disk_full(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The disk of the run folder is full soon."""
    soonest = conditions.thresholds["disk_full_hours"] * 3600
    found = []
    for host in measured.with_curve(measured.hosts, "disk_free_gb", "host"):
        curve = host.curves["disk_free_gb"].finite()
        left = _seconds_until(Curve(curve.x, -curve.y), 0.0)
        if left is not None and left < soonest:
            found.append(
                Finding(
                    "disk.full",
                    conditions["disk_full_soon"].severity,
                    f"Disk on {host.title} will be full in about {span(left)}",
                    (f"{show(curve.y[0])} GB free at the start, {show(curve.y[-1])} GB at the end",),
                    conditions["disk_full_soon"].advice,
                    subject=host.title,
                    values={"seconds": left, "free_gb": float(curve.y[-1])},
                )
            )
    return found
