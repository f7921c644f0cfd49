"""What idle GPUs cost: hours, kWh, and money where a price is set. Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import numpy as np

from trainvitals.analysis.findings import Device, Finding, Measurements
from trainvitals.analysis.hardware import SAMPLES, mark_simulated, name_devices
from trainvitals.analysis.wording import percent, show, span
from trainvitals.conditions import Conditions

LONGEST_GAP = 5.0
"""A pause between samples of more than this many times the usual is not counted: nothing is known of it."""


def idle_time(gpu: Device, limit: float) -> tuple[float, float, float]:
    """Seconds idle (below `limit` percent of utilization), seconds measured, joules used while idle."""
    use = gpu.curves["utilization_percent"].finite()
    spans = np.diff(use.x)
    usual = float(np.median(spans)) if len(spans) else 0.0
    counted = spans <= LONGEST_GAP * usual
    idle = counted & (use.y[1:] < limit)
    joules = 0.0
    power = gpu.curves.get("power_draw_watts")
    if power is not None and len(watts := power.finite().x) > 1:
        joules = float((np.interp(use.x[1:], watts, power.finite().y) * spans)[idle].sum())
    return float(spans[idle].sum()), float(spans[counted].sum()), joules


def detect_waste(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs that were held but did nothing for too much of the time."""
    limits = conditions.thresholds
    limit = limits["gpu_idle_percent"]
    gpus = list(measured.with_curve(measured.gpus, "utilization_percent", "GPU", SAMPLES))
    times = [idle_time(gpu, limit) for gpu in gpus]
    idle, total, joules = (sum(column) for column in zip(*times, strict=True))
    share = idle / total if total else 0.0
    if share <= limits["gpu_idle_time_percent"] / 100:
        return []
    evidence = [f"{span(idle)} of {span(total)} of GPU time below {limit:g} % utilization"]
    values = {"share": share, "gpu_seconds": idle}
    if joules:
        evidence.append(f"{show(joules / 3.6e6)} kWh used meanwhile")
        values["kwh"] = joules / 3.6e6
    currency = str(measured.prices.get("currency") or "").strip()
    hour, kwh = measured.prices.get("gpu_hour"), measured.prices.get("kwh")
    money = idle / 3600 * float(hour) if hour is not None else joules / 3.6e6 * float(kwh) if kwh is not None else None
    if money is not None:
        evidence.append(f"{money:,.2f} {currency}".rstrip() + (" of GPU hours" if hour is not None else " of energy"))
        values["money"] = money
    worst = [gpu for gpu, (own, whole, _) in zip(gpus, times, strict=True) if whole and own / whole > 0.5]
    if worst:
        evidence.append(f"idle more than half of the time: {name_devices(worst)}")
    return [
        Finding(
            "gpu.waste",
            "warning" if share > limits["gpu_idle_time_high_percent"] / 100 else "info",
            f"GPUs were idle {percent(share)} of the time",
            (*evidence, *mark_simulated(gpus)),
            conditions["gpu_idle"].advice,
            values=values,
        )
    ]
