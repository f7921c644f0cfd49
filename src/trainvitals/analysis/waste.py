"""What idle GPUs cost: hours, kWh, and money where there is a price; and whether fewer or smaller ones would do.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainvitals.analysis.findings import Device, Finding, Measurements
from trainvitals.analysis.hardware import SAMPLES, mark_simulated, name_devices
from trainvitals.analysis.wording import percent, show, span
from trainvitals.conditions import Conditions
from trainvitals.prices import find_list_price, find_smaller

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
    rates = [measured.prices.per_hour([gpu.model]) for gpu in gpus]
    known = [rate for rate in rates if rate is not None]
    if len(known) == len(gpus):
        money = sum(own / 3600 * rate.per_hour for (own, _, _), rate in zip(times, known, strict=True))
        evidence.append(f"{money:,.2f} {known[0].currency}".rstrip() + " of GPU hours")
        values["money"] = money
    elif measured.prices.kwh is not None:
        values["money"] = joules / 3.6e6 * measured.prices.kwh
        evidence.append(f"{values['money']:,.2f} {measured.prices.currency}".rstrip() + " of energy")
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


def detect_oversized(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs of which fewer, or smaller ones, would have done the same work."""
    limits = conditions.thresholds
    gpus = list(measured.with_curve(measured.gpus, "utilization_percent", "GPU", SAMPLES))
    use = [float(gpu.curves["utilization_percent"].finite().y.mean()) for gpu in gpus]
    evidence, values = [], dict[str, float]()
    needed = max(math.ceil(sum(use) / limits["gpu_enough_percent"]), 1)
    # Below that they mostly wait for something, and so would fewer: what they wait for comes first.
    if needed < len(gpus) and min(use) > limits["gpu_idle_percent"]:
        evidence.append(
            f"{needed} of {len(gpus)} GPUs would be {sum(use) / needed:.0f} % busy with the same work; "
            f"all of them were {sum(use) / len(use):.0f} % busy"
        )
        values["gpus_needed"] = needed
    smaller = _find_smaller(gpus) if sum(use) / len(use) < limits["gpu_enough_percent"] / 2 else None
    if smaller is not None:
        evidence.append(smaller)
    if not evidence:
        return []
    return [
        Finding(
            "gpu.oversized",
            "info",
            f"{needed} of {len(gpus)} GPUs would do" if values else "A smaller GPU would do",
            (*evidence, *mark_simulated(gpus)),
            conditions["gpu_oversized"].advice,
            values=values,
        )
    ]


def _find_smaller(gpus: Sequence[Device]) -> str | None:
    """A cheaper GPU of the price list that has room for what was used."""
    peaks = [gpu.curves["memory_used_mb"].finite().y for gpu in gpus if "memory_used_mb" in gpu.curves]
    own = find_list_price(gpus[0].model, "on_demand")
    if own is None or not all(map(len, peaks)) or len(peaks) < len(gpus):
        return None
    peak = max(float(values.max()) for values in peaks)
    found = find_smaller(own, peak)
    return f"at most {show(peak / 1024)} GB of memory used: {found.text} instead of {own.text}" if found else None
