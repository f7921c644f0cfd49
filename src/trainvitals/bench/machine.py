"""The machine that a benchmark ran on, as far as it decides its figures."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from trainvitals import runtime
from trainvitals.analysis.wording import count_of, percent
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.benchmark import MeasuredVariant

BUSY = 1.3
"""Load per core that is used above which something else was running."""
NOTABLE_STEAL = 1.0
NOTABLE_DRIFT = 0.05
FEWEST_READINGS = 3
"""Of power, for a mean."""
FEW_OUTLIERS = 0.005
"""Share of outliers that every machine has."""


def allowed_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def read_available_cores() -> frozenset[int]:
    """The cores that the container or job may use, of which this process may be pinned to some: where a thread of its
    own comes that asks for all."""
    found = set(allowed_cores())

    def ask() -> None:
        with suppress(OSError, ValueError):
            os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))  # of this thread alone
            found.update(os.sched_getaffinity(0))

    if hasattr(os, "sched_setaffinity"):
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join()
    return frozenset(found)


def describe_machine(root: Path = Path("/")) -> dict[str, Any]:
    """CPU, governor, cores and limits; what cannot be read is missing."""
    found = {
        "host": runtime.host_name(),
        "cpu": _read_model(root / "proc/cpuinfo") or platform.processor(),
        "cores": len(allowed_cores()),
        "governor": _read_word(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "cpu_quota": _read_quota(root / "sys/fs/cgroup/cpu.max"),
        "python": platform.python_version(),
    }
    return {key: value for key, value in found.items() if value}


def read_load() -> float:
    """Processes that ran or wanted to, over the last minute."""
    return os.getloadavg()[0]


def _read_word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read_model(path: Path) -> str:
    lines = _read_word(path).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _read_quota(path: Path) -> float | None:
    """CPUs that the container may use."""
    quota, _, period = _read_word(path).partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


_HIGHEST: Mapping[str, tuple[str, ...]] = {"system": ("load_1m", "cpu_steal_percent")}
_GROWN: Mapping[str, tuple[str, ...]] = {
    "system": ("cpu_throttled_seconds",),
    "gpu": ("throttle_power_seconds", "throttle_thermal_seconds", "throttle_hardware_seconds"),
}


def read_hardware(reader: Reader) -> dict[str, float]:
    """What the agent wrote into a run: the highest load and steal, and the increase of throttled time. What was not
    measured is missing."""
    found: dict[str, float] = {}
    for table, names in _HIGHEST.items():
        for series in reader.series(names, table=table, x="time"):
            found[series.name] = max(found.get(series.name, 0.0), float(np.nanmax(series.y)))
    for table, names in _GROWN.items():
        for series in reader.series(names, table=table, x="time"):
            name = "throttle_seconds" if table == "gpu" else series.name
            found[name] = found.get(name, 0.0) + float(series.y[-1] - series.y[0])
    return found


def read_power(reader: Reader, start: float, end: float) -> float | None:
    """Mean watts of the GPU between two moments, by its energy counter if it has one; None unless it is the only one
    (of several, nobody knows here which the model was on) and was read often enough."""
    for name in ("energy_joules", "power_draw_watts"):
        found = list(reader.series([name], table="gpu", x="time", start=start, end=end))
        if len(found) > 1:
            return None
        if found and len(found[0].y) >= FEWEST_READINGS and np.isfinite(found[0].y).all():
            x, y = found[0].x, found[0].y
            return float((y[-1] - y[0]) / (x[-1] - x[0])) if name == "energy_joules" else float(y.mean())
    return None


def explain(rows: list[MeasuredVariant], load: float, seen: Mapping[str, float], device: str = "") -> list[str]:
    """What makes the figures less sure, and what to do. `seen` are the highest values that the agent measured
    meanwhile, by catalog name. GPUs do not matter to a model on the CPU."""
    warnings = []
    timed = [row for row in rows if row.latency.median is not None]
    if not timed:
        return []
    threads = max(row.threads or 1 for row in timed)
    causes = []
    if load > BUSY * threads:
        causes.append(f"the machine's load was {load:.1f}: repeat on a quiet machine")
    if seen.get("cpu_steal_percent", 0.0) > NOTABLE_STEAL:
        causes.append(f"other virtual machines took {seen['cpu_steal_percent']:.0f} % of the CPU")
    if seen.get("throttle_seconds", 0.0) > 0 and device != "cpu":
        causes.append(f"the GPU was throttled for {seen['throttle_seconds']:.1f} s")
    if seen.get("cpu_throttled_seconds", 0.0) > 0:
        causes.append(f"the container's CPU quota stopped it for {seen['cpu_throttled_seconds']:.1f} s")
    slow = [row for row in timed if row.latency.outliers > FEW_OUTLIERS * row.latency.calls]
    if slow:
        worst = max(slow, key=lambda row: row.latency.outliers / row.latency.calls)
        why = "; ".join(causes) or "no cause found on this machine"
        warnings.append(
            f"{worst.name}: {worst.latency.outliers:,} of {count_of(worst.latency.calls, 'call')} were slower than "
            f"5 MAD; {why}"
        )
    elif causes:
        warnings.append("; ".join(causes))
    for row in timed:
        latency = row.latency
        if latency.drift is not None and abs(latency.drift) > NOTABLE_DRIFT:
            word = "slower" if latency.drift > 0 else "faster"
            warnings.append(
                f"{row.name}: the second half was {percent(abs(latency.drift))} {word} than the first: clocks or load "
                "changed meanwhile"
            )
    unsteady = [row.name for row in timed if not row.latency.steady]
    if unsteady:
        more = f" and {len(unsteady) - 3} more" if len(unsteady) > 3 else ""
        warnings.append(f"{', '.join(unsteady[:3])}{more}: timings were still changing at the end of warm-up")
    return warnings
