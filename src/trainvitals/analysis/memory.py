"""Findings in memory and disk: leaks, what is nearly full, and when it will be.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainvitals.analysis.findings import Curve, Device, Finding, Measurements, NotJudged
from trainvitals.analysis.hardware import mark_simulated, name_devices
from trainvitals.analysis.robust import rises, slope_of
from trainvitals.analysis.wording import growth, percent, show, span
from trainvitals.conditions import Conditions
from trainvitals.episodes import Episode
from trainvitals.leaks import LEAST_SECONDS, LEAST_STEPS, LeakJudge

CERTAIN = 0.01
FEWEST_HELD = 100
LONG = 600.0
"""Seconds of samples before growth is forecast: start-up grows too."""


def detect_device_leak(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """What tensors hold after a step grows with the steps."""
    held = measured.need("memory_allocated_mb", FEWEST_HELD).finite()
    leak = find_leak(held, conditions.thresholds["gpu_leak_percent"] / 100, LEAST_STEPS)
    if leak is None:
        return []
    per_step = _slope_in(held, leak)
    per_thousand = per_step * 1000
    evidence = [
        f"floor of memory_allocated_mb: {show(leak.before)} MB to {show(leak.after)} MB "
        f"({growth(leak.before, leak.after)})",
        f"about {show(per_thousand)} MB per 1,000 steps",
    ]
    values = {"mb_per_1000_steps": per_thousand}
    totals = _last_values(measured.gpus, "memory_total_mb")
    if totals and leak.until is None and per_step > 0:
        left = max((min(totals) - float(held.y[-1])) / per_step, 0.0)
        times = measured.training.get("batch_time")
        usual = float(np.median(times.finite().y[-200:])) if times is not None and len(times.finite().y) else None
        values["steps_left"] = left
        evidence.append(
            f"at this rate the GPU's {show(min(totals) / 1024)} GB are full {show(round(left))} steps after the last"
            + (f", in {span(left * usual)}" if usual is not None else "")
        )
    when = f"since about step {leak.since:,}" if leak.until is None else f"from step {leak.since:,} to {leak.until:,}"
    return [
        Finding(
            "gpu.memory_leak",
            "warning" if leak.until is None else "info",
            f"GPU memory held by tensors {'grows' if leak.until is None else 'grew'} with every step {when}",
            tuple(evidence),
            conditions["gpu_memory_leak"].advice,
            step=leak.since,
            named_at=leak.named_at,
            until=leak.until,
            values=values,
        )
    ]


def find_leak(held: Curve, share: float, least: float) -> Episode | None:
    """The leak that lasts, else the largest there was."""
    judge = LeakJudge(share, least)
    judge.extend(held.x.tolist(), held.y.tolist())
    return judge.lasting or max(judge.episodes, key=lambda leak: leak.after - leak.before, default=None)


def _slope_in(curve: Curve, leak: Episode) -> float:
    during = (curve.x >= leak.since) & (curve.x <= (leak.until if leak.until is not None else curve.x[-1]))
    return slope_of(curve.x[during], curve.y[during])


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
    owners = [p for p in measured.processes if any(name in p.curves for name in _OF_PROCESSES)]
    if not owners:
        raise NotJudged("memory samples of the ranks' processes")
    totals = _last_values(measured.hosts, "memory_total_mb")
    if not totals:
        raise NotJudged("host samples of 'memory_total_mb'")
    found, judged = [], False
    for owner in owners:
        for curve in (owner.curves[name].finite() for name in _OF_PROCESSES if name in owner.curves):
            if len(curve.x) < 30 or curve.x[-1] - curve.x[0] < LEAST_SECONDS:
                continue
            judged = True
            leak = find_leak(curve, limits["host_leak_percent"] / 100, LEAST_SECONDS)
            if leak is None:
                continue
            per_hour = _slope_in(curve, leak) * 3600
            available = min(_last_values(measured.hosts, "memory_available_mb"), default=min(totals) - curve.y[-1])
            hours = available / per_hour if per_hour > 0 else math.inf
            if hours > limits["leak_hours"] and per_hour < limits["host_leak_percent_per_hour"] / 100 * min(totals):
                continue
            found.append(_describe_host_leak(owner, leak, per_hour, hours, conditions))
            break
    if not judged:
        raise NotJudged(f"{span(LEAST_SECONDS)} of samples of the ranks' processes")
    return found


_OF_PROCESSES = ("rss_mb", "pss_mb")
"""What the alert is about, and what is read more rarely: pages that workers share with the rank, and copy one by one,
are only seen there."""


def _describe_host_leak(owner: Device, leak: Episode, per_hour: float, hours: float, conditions: Conditions) -> Finding:
    lasts = leak.until is None
    evidence = [f"{show(leak.before)} MB to {show(leak.after)} MB"]
    if lasts:
        evidence.append(f"at this rate host memory will be full in {span(hours * 3600)}")
    soon = hours < conditions.thresholds["leak_critical_hours"]
    return Finding(
        "host.memory_leak",
        "info" if not lasts else "critical" if soon else "warning",
        f"Memory of {owner.title} {'grows' if lasts else 'grew'} by {show(per_hour)} MB per hour",
        tuple(evidence),
        conditions["host_memory_leak"].advice,
        subject=owner.title,
        values={"mb_per_hour": per_hour, "seconds_left": hours * 3600} if lasts else {"mb_per_hour": per_hour},
    )


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
