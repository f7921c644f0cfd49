"""GPUs that are busy, and could still do more: small kernels, a narrow link, low clocks, small batches, no tensor
cores. Tested in tests/analysis/test_gpu_pace.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainvitals.analysis.findings import Curve, Device, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.hardware import SAMPLES, mark_simulated, name_devices, name_users, steady
from trainvitals.analysis.speed import START
from trainvitals.analysis.wording import percent, seconds_of, show
from trainvitals.conditions import Conditions

LOADED = 80.0
"""Percent of utilization above which a GPU has work all the time."""
FEWEST_LOADED = 30
"""Samples under load."""
FEWEST_PEERS = 2
"""Others of the same model that a GPU is compared with."""
PAUSED = 0.01
"""Share of the time that a throttle counter may rise before it explains low clocks."""
MOST_TIMES = 4
"""Times that a batch is proposed to grow at most."""
FULL = 85.0
"""Percent of its memory that a GPU may hold after that."""
BUSY_LINK_MB = 500.0
"""MB/s over NVLink, PCIe or the network, from which on ranks exchange a lot."""

_COUNTERS = ("throttle_power_seconds", "throttle_thermal_seconds", "throttle_hardware_seconds")
_TRAFFIC = {"nvlink_rx_mb_s": "NVLink", "pcie_rx_mb_s": "PCIe"}


def loaded(gpu: Device, name: str) -> Floats:
    """The finite values of a curve while the GPU had work all the time; empty if too few are known."""
    own, use = gpu.curves.get(name), gpu.curves.get("utilization_percent")
    if own is None or use is None or not len(known := use.finite().x) or not len(own.finite().x):
        return np.zeros(0)
    curve = steady(own)
    values: Floats = curve.y[np.interp(curve.x, known, use.finite().y) > LOADED]
    return values if len(values) >= FEWEST_LOADED else np.zeros(0)


def _need_loaded(measured: Measurements, *names: str) -> list[tuple[Device, list[float]]]:
    """The GPUs with these curves under load, and their medians; raises NotJudged if there are none."""
    for name in names:
        measured.with_curve(measured.gpus, name, "GPU", SAMPLES)
    known = [(gpu, [loaded(gpu, name) for name in names]) for gpu in measured.gpus]
    found = [(gpu, [float(np.median(values)) for values in curves]) for gpu, curves in known if all(map(len, curves))]
    if not found:
        raise NotJudged(f"{FEWEST_LOADED} GPU samples above {LOADED:.0f} % utilization")
    return found


def detect_small_kernels(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs that always run a kernel, but one that occupies little of them: what launches or feeds it is the limit."""
    limits = conditions.thresholds
    small = [
        (gpu, use, active)
        for gpu, (active, use) in _need_loaded(measured, "sm_active_percent", "utilization_percent")
        if active < limits["sm_active_low_percent"]
    ]
    if not small:
        return []
    chosen = [gpu for gpu, _, _ in small]
    quoted = [
        f"{gpu.title}: utilization {use:.0f} %, but {active:.0f} % of its SMs active" for gpu, use, active in small
    ]
    thread = _busiest_thread(measured, chosen)
    traffic = _heaviest_traffic(chosen) if len(measured.places) > 1 else None
    evidence, values = quoted[:4], {"sm_active_percent": float(np.median([active for _, _, active in small]))}
    step = measured.training.get("batch_time")
    if step is not None and len(times := step.finite().y[START:]):
        evidence.append(f"median step {seconds_of(float(np.median(times)))}")
    if thread is not None:
        evidence.append(f"{thread[0]}'s main thread uses {thread[1]:.0f} % of a core")
        values["main_cpu_percent"] = thread[1]
    name, many = name_devices(chosen), len(chosen) > 1
    launching = thread is not None and thread[1] >= limits["main_thread_percent"]
    if traffic is not None and not launching:
        evidence.append(f"meanwhile {show(traffic[1])} MB/s received over {traffic[0]}")
        rule, row = "comm.bound", conditions["communication_bound"]
        title = f"{name} mostly {'wait' if many else 'waits'} for other ranks"
    else:
        rule, row = "launch.bound", conditions["launch_bound"]
        title = f"{name} {'run' if many else 'runs'} kernels too small to fill {'them' if many else 'it'}"
    return [
        Finding(
            rule,
            "warning" if launching else "info",
            title,
            (*evidence, *mark_simulated(chosen)),
            row.advice,
            subject=name,
            about=tuple(gpu.title for gpu in chosen),
            values=values,
        )
    ]


def _busiest_thread(measured: Measurements, gpus: Sequence[Device]) -> tuple[str, float] | None:
    """The participant on these GPUs whose main thread has most to do, and the median of its use."""
    titles = {gpu.title for gpu in gpus}
    found = []
    for process in measured.processes:
        place = measured.places.get(process.title)
        curve = process.curves.get("main_cpu_percent")
        if curve is None or (place is not None and place.gpus and titles.isdisjoint(place.gpus)):
            continue
        if len(curve.finite().y):
            found.append((process.title, float(np.median(steady(curve).y))))
    return max(found, key=lambda item: item[1], default=None)


def _heaviest_traffic(gpus: Sequence[Device]) -> tuple[str, float] | None:
    """Over what the GPUs exchange a lot, and how many MB/s."""
    found = [
        (link, float(np.median(values)))
        for gpu in gpus
        for name, link in _TRAFFIC.items()
        if len(values := loaded(gpu, name))
    ]
    link, rate = max(found, key=lambda item: item[1], default=("", 0.0))
    return (link, rate) if rate > BUSY_LINK_MB else None


def detect_narrow_link(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs with fewer PCIe lanes, or slower ones, than they and their slot can have."""
    found = []
    names = ("pcie_link_width", "pcie_link_width_max", "pcie_link_generation", "pcie_link_generation_max")
    for gpu, (width, most, generation, newest) in _need_loaded(measured, *names):
        if (width >= most and generation >= newest) or min(width, most, generation, newest) <= 0:
            continue
        share = min(width / most, 1.0) * 2.0 ** min(generation - newest, 0.0)
        found.append(
            Finding(
                "gpu.link",
                conditions["gpu_link_narrow"].severity,
                f"{gpu.title} uses PCIe {generation:.0f}.0 x{width:.0f}, but could use {newest:.0f}.0 x{most:.0f}",
                (
                    f"under load, about {percent(share)} of its bandwidth",
                    *_peers_on(measured, gpu, width, generation),
                    *name_users(measured, gpu),
                    *mark_simulated([gpu]),
                ),
                conditions["gpu_link_narrow"].advise(gpu.index),
                subject=gpu.title,
                values={"width": width, "generation": generation, "bandwidth_share": share},
            )
        )
    return found


def _peers_on(measured: Measurements, gpu: Device, width: float, generation: float) -> list[str]:
    """That others of the same host do better, if they do."""
    better = 0
    for other in measured.gpus:
        lanes, speed = loaded(other, "pcie_link_width"), loaded(other, "pcie_link_generation")
        if other is not gpu and other.host == gpu.host and len(lanes) and len(speed):
            better += bool(np.median(lanes) > width or np.median(speed) > generation)
    count = len(measured.gpus) - 1
    whose = "the other GPU has" if count == 1 else f"{better} of {count} other GPUs {'has' if better == 1 else 'have'}"
    return [f"{whose} a faster link"] if better else []


def detect_low_clocks(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs whose clocks stay low under load, and nothing that their driver reports holds them down."""
    limits = conditions.thresholds
    known = _need_loaded(measured, "graphics_clock_mhz", "throttle_power_seconds")
    clocks = {gpu.title: clock for gpu, (clock, _) in known if _runs_free(gpu)}
    found = []
    for gpu in measured.gpus:
        if (clock := clocks.get(gpu.title)) is None:
            continue
        most = loaded(gpu, "graphics_clock_max_mhz")
        peers = [clocks[other.title] for other in _alike(measured, gpu) if other.title in clocks]
        evidence, low = [], False
        if len(most) and 0 < clock < (top := float(most[-1])) * limits["gpu_clock_percent"] / 100:
            evidence.append(f"{clock:,.0f} MHz under load, {percent(clock / top)} of its {top:,.0f} MHz")
            low = True
        if len(peers) >= FEWEST_PEERS and clock < (usual := float(np.median(peers))) * (
            1 - limits["gpu_clock_below_peers_percent"] / 100
        ):
            evidence.append(f"{clock:,.0f} MHz under load; others of its model run at {usual:,.0f} MHz")
            low = True
        if low:
            found.append(
                Finding(
                    "gpu.clock",
                    conditions["gpu_clock_low"].severity,
                    f"{gpu.title} runs at a low clock, and not because of heat or power",
                    (*evidence, *name_users(measured, gpu), *mark_simulated([gpu])),
                    conditions["gpu_clock_low"].advise(gpu.index),
                    subject=gpu.title,
                    values={"clock_mhz": clock},
                )
            )
    return found


def _runs_free(gpu: Device) -> bool:
    """Whether there was hardly any time in which it was throttled, by what its driver counts."""
    known = [gpu.curves[name].finite() for name in _COUNTERS if name in gpu.curves]
    return all(len(c.x) < 2 or c.y[-1] - c.y[0] <= PAUSED * (c.x[-1] - c.x[0]) for c in known)


def _alike(measured: Measurements, gpu: Device) -> list[Device]:
    return [other for other in measured.gpus if other is not gpu and other.model == gpu.model]


def detect_small_batches(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Batches that could be larger, where that makes training faster: part of a step takes as long for any batch."""
    limits = conditions.thresholds
    gpus = list(measured.with_curve(measured.gpus, "memory_percent", "GPU", SAMPLES))
    peaks = [float(gpu.curves["memory_percent"].finite().y.max()) for gpu in gpus]
    step, update = measured.need("batch_time", 50), measured.need("optimizer_time", 50)
    if len(gpus) < len(measured.gpus) or max(peaks) >= limits["batch_memory_percent"]:
        return []
    times = 2
    while 2 * times * max(peaks) <= FULL and 2 * times <= MOST_TIMES:
        times *= 2
    whole, fixed = (_middle(curve) for curve in (step, update))
    rest = measured.training.get("other_time")
    fixed += _middle(rest) if rest is not None and measured.training.get("data_time") is not None else 0.0
    share = min(fixed / whole, 1.0) if whole > 0 else 0.0
    gain = 1 / (1 - share * (1 - 1 / times)) - 1
    if gain < limits["batch_gain_percent"] / 100:
        return []
    return [
        Finding(
            "batch.small",
            conditions["batch_small"].severity,
            f"A batch {times} times as large would fit, and train about {percent(gain)} faster",
            (
                f"at most {max(peaks):.0f} % of GPU memory used, on {name_devices(gpus)}",
                f"{percent(share)} of a {seconds_of(whole)} step takes as long for any batch: the optimizer and the "
                "work between steps",
                *mark_simulated(gpus),
            ),
            conditions["batch_small"].advice,
            values={"times": times, "gain": gain, "memory_percent": max(peaks), "fixed_share": share},
        )
    ]


def _middle(curve: Curve) -> float:
    values = curve.finite().y[START:]
    return float(np.median(values)) if len(values) else 0.0


def detect_idle_tensor_cores(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs with tensor cores that multiply matrices without them."""
    limits = conditions.thresholds
    names = ("tensor_active_percent", "fp32_active_percent")
    unused: list[tuple[Device, Mapping[str, float]]] = [
        (gpu, {"tensor": tensor, "fp32": single})
        for gpu, (tensor, single) in _need_loaded(measured, *names)
        if tensor < limits["tensor_idle_percent"] and single > limits["fp32_busy_percent"]
    ]
    if not unused:
        return []
    chosen = [gpu for gpu, _ in unused]
    return [
        Finding(
            "gpu.precision",
            conditions["gpu_precision"].severity,
            f"{name_devices(chosen)} {'compute' if len(chosen) > 1 else 'computes'} in FP32 without tensor cores",
            (
                *(
                    f"{gpu.title}: tensor cores {use['tensor']:.1f} % active, FP32 pipe {use['fp32']:.0f} %"
                    for gpu, use in unused[:4]
                ),
                *mark_simulated(chosen),
            ),
            conditions["gpu_precision"].advice,
            subject=name_devices(chosen),
            about=tuple(gpu.title for gpu in chosen),
            values={name: float(np.median([use[name] for _, use in unused])) for name in ("tensor", "fp32")},
        )
    ]
