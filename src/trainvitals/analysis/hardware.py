"""Findings in the hardware: idle GPUs and why, heat, errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainvitals.analysis.findings import Curve, Device, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.speed import share_of_step
from trainvitals.analysis.wording import count_of, percent, show, span

SAMPLES = 60
LOW = 50.0


def name_devices(devices: Sequence[Device]) -> str:
    """`GPU 0, GPU 1 and 6 more`."""
    titles = [device.title for device in devices]
    more = f" and {len(titles) - 4} more" if len(titles) > 5 else ""
    return ", ".join(titles[: 4 if more else 5]) + more


def mark_simulated(devices: Sequence[Device]) -> tuple[str, ...]:
    """A line of evidence that says so, where the devices are not real."""
    return ("simulated: there is no such GPU",) if any(device.simulated for device in devices) else ()


def steady(curve: Curve) -> Curve:
    """Without the start-up: the first tenth, at most five minutes; finite values only."""
    curve = curve.finite()
    begin = curve.x[0] + min(300.0, 0.1 * (curve.x[-1] - curve.x[0]))
    keep = curve.x >= begin
    return Curve(curve.x[keep], curve.y[keep])


def detect_low_use(measured: Measurements) -> list[Finding]:
    """GPUs that have little to do, or wait between bursts."""
    low, bursts, numbers = [], [], []
    for gpu in measured.with_curve(measured.gpus, "utilization_percent", "the GPUs", SAMPLES):
        bottom, middle, top = np.percentile(steady(gpu.curves["utilization_percent"]).y, (5, 50, 95))
        numbers.append((float(bottom), float(middle), float(top)))
        if top < 70:
            low.append(gpu)
        elif bottom < 10:
            bursts.append(gpu)
    if not low and not bursts:
        return []
    chosen = low or bursts
    bottom, middle, top = np.median(np.array(numbers), axis=0)
    cause, advice = find_cause(measured)
    many = len(chosen) > 1
    bursting = "work in bursts and wait between" if many else "works in bursts and waits between"
    said = ("have little to do" if many else "has little to do") if low else bursting
    severity = "critical" if low and middle < 10 else "warning" if low or middle < 70 else "info"
    return [
        Finding(
            "gpu.low_use",
            severity,  # type: ignore[arg-type]
            f"{name_devices(chosen)} {said}",
            (
                f"utilisation: 5 % of the samples below {bottom:.0f} %, half below {middle:.0f} %, "
                f"95 % below {top:.0f} %",
                f"likely cause: {cause}",
                *mark_simulated(chosen),
            ),
            advice,
            subject=name_devices(chosen),
            values={"p5": float(bottom), "p50": float(middle), "p95": float(top)},
        )
    ]


def find_cause(measured: Measurements) -> tuple[str, str]:
    """Why the GPUs wait, as far as the other measurements tell, and what to do."""
    try:
        share, _, _ = share_of_step(measured, "data_time")
        if share > 0.1:
            return (
                f"waiting for data, {percent(share)} of the step time",
                "More loader workers, pin_memory, prefetching; cache or pre-process the data.",
            )
        share, _, _ = share_of_step(measured, "other_time")
        if share > 0.15:
            return (
                f"work between the steps, {percent(share)} of the time (logging, evaluation, checkpoints)",
                "Do it less often, or asynchronously.",
            )
    except NotJudged:
        pass  # the phases are not known: the host may tell
    for name, limit, said, advice in (
        ("cpu_iowait_percent", 50.0, "the host waits for storage", "Move the data to a local disk, or cache it."),
        ("pressure_io_percent", 20.0, "the host waits for storage", "Move the data to a local disk, or cache it."),
        ("cpu_usage_percent", 90.0, "the CPUs are at their limit", "Move pre-processing to the GPU or off-line."),
    ):
        if (often := share_while_idle(measured, measured.hosts, name, limit)) is not None and often > 0.5:
            return f"{said} ({name} above {limit:g} in {percent(often)} of the samples)", advice
    often = share_while_idle(measured, measured.processes, "main_cpu_percent", 95.0)
    if often is not None and often > 0.5:
        return (
            f"one Python thread is at the limit of its core in {percent(often)} of the samples",
            "Tokenise and augment in loader workers; compile the model or use CUDA graphs; a larger batch.",
        )
    return (
        "not visible in what was measured",
        "Profile one step; watch the model with trainvitals.watch to see its phases; try a larger batch.",
    )


def share_while_idle(measured: Measurements, devices: Sequence[Device], name: str, limit: float) -> float | None:
    """How often `name` is above `limit` while the GPUs are below half of their use; None if it is not known."""
    curves = [d.curves["utilization_percent"].finite() for d in measured.gpus if "utilization_percent" in d.curves]
    curves = [curve for curve in curves if len(curve.x) > 1]
    shares = []
    for device in devices:
        if name in device.curves and len((own := device.curves[name].finite()).x) >= SAMPLES:
            if curves:
                use = np.mean([np.interp(own.x, curve.x, curve.y) for curve in curves], axis=0)
            else:
                use = np.zeros(len(own.x))
            shares.append(float(((own.y > limit) & (use < LOW)).mean()))
    return max(shares) if shares else None


def detect_cpu_bound(measured: Measurements) -> list[Finding]:
    """CPUs at their limit while the GPUs wait."""
    return _host_bound(
        measured,
        "cpu.bound",
        (("cpu_usage_percent", 90.0, measured.hosts), ("main_cpu_percent", 95.0, measured.processes)),
        "The CPUs are the limit",
        "Fewer things on the main thread: tokenise and augment in loader workers or beforehand, or ask for more cores.",
    )


def detect_io_bound(measured: Measurements) -> list[Finding]:
    """Storage at its limit while the GPUs wait."""
    return _host_bound(
        measured,
        "io.bound",
        (("cpu_iowait_percent", 50.0, measured.hosts), ("pressure_io_percent", 20.0, measured.hosts)),
        "Storage is the limit",
        "Move the data to a local disk, cache it in memory, or read larger files in order.",
    )


def _host_bound(
    measured: Measurements,
    rule: str,
    signs: Sequence[tuple[str, float, Sequence[Device]]],
    title: str,
    advice: str,
) -> list[Finding]:
    if not measured.gpus:
        raise NotJudged("measurements of the GPUs; there are none")
    seen = [(name, limit, share_while_idle(measured, devices, name, limit)) for name, limit, devices in signs]
    if all(share is None for _, _, share in seen):
        raise NotJudged(f"{SAMPLES} samples of " + " or ".join(f"'{name}'" for name, _, _ in signs))
    strong = [(name, limit, share) for name, limit, share in seen if share is not None and share > 0.5]
    if not strong:
        return []
    evidence = tuple(
        f"{name} above {limit:g} % while the GPUs are below {LOW:.0f} %: {percent(share)} of the samples"
        for name, limit, share in strong
    )
    return [Finding(rule, "warning", title, evidence, advice, values={name: share for name, _, share in strong})]


def detect_throttling(measured: Measurements) -> list[Finding]:
    """GPUs that slowed themselves down for heat, or because the hardware told them to."""
    names = ("throttle_thermal_seconds", "throttle_hardware_seconds")
    gpus = [gpu for gpu in measured.gpus if any(name in gpu.curves for name in names)]
    if not gpus:
        raise NotJudged("'throttle_thermal_seconds' of the GPUs" if measured.gpus else "measurements of the GPUs")
    found = []
    for gpu in gpus:
        shares = {name: _share_rising(gpu.curves[name]) for name in names if name in gpu.curves}
        name, share = max(shares.items(), key=lambda item: item[1])
        if share <= 0.01:
            continue
        evidence = [
            f"held down {percent(share)} of the time by {'temperature' if 'thermal' in name else 'the hardware'}"
        ]
        if "temperature_celsius" in gpu.curves and len(heat := gpu.curves["temperature_celsius"].finite().y):
            evidence.append(f"up to {heat.max():.0f} °C, median {np.median(heat):.0f} °C")
        evidence += [f"clock {loss}" for loss in _clock_loss(gpu)]
        found.append(
            Finding(
                "gpu.throttle",
                "critical" if share > 0.1 else "warning",
                f"{gpu.title} slows itself down",
                (*evidence, *mark_simulated([gpu])),
                "Cooling: fans, air flow, neighbours in the rack; until then a lower power limit keeps clocks even.",
                subject=gpu.title,
                values={"share": share},
            )
        )
    return found


def _share_rising(counter: Curve) -> float:
    """The share of the time in which a counter of seconds ran."""
    curve = counter.finite()
    if len(curve.x) < 2 or curve.x[-1] <= curve.x[0]:
        return 0.0
    rises = np.diff(curve.y)
    return float(rises[rises > 0].sum() / (curve.x[-1] - curve.x[0]))


def _clock_loss(gpu: Device) -> list[str]:
    clock, use = gpu.curves.get("graphics_clock_mhz"), gpu.curves.get("utilization_percent")
    if clock is None or use is None or len(use.finite().x) < 2:
        return []
    curve = clock.finite()
    busy = curve.y[np.interp(curve.x, use.finite().x, use.finite().y) > 80]
    if len(busy) < 10:
        return []
    low, high = np.percentile(busy, (5, 95))
    return (
        [f"under load down to {low:,.0f} MHz of {high:,.0f} MHz (-{percent(1 - low / high)})"]
        if low < 0.97 * high
        else []
    )


_ERRORS = (
    ("ecc_uncorrected_total", "uncorrected memory errors", "critical", "Restart from a checkpoint; reset the GPU."),
    ("xid_errors_total", "Xid errors", "critical", "Look the number up in the events; reset the GPU or the machine."),
    ("row_remap_failed", "memory rows that could not be remapped", "critical", "Have the card replaced."),
    ("row_remap_pending", "memory rows waiting for a reset", "warning", "Reset the GPU when the run is over."),
    ("remapped_rows_uncorrected_total", "memory rows remapped", "warning", "Watch the card: repeated is a defect."),
)


def detect_errors(measured: Measurements) -> list[Finding]:
    """Errors that the cards reported during the run."""
    names = [row[0] for row in _ERRORS]
    gpus = [gpu for gpu in measured.gpus if any(name in gpu.curves for name in names)]
    if not gpus:
        raise NotJudged("error counters of the GPUs (ECC, Xid, row remapping)")
    found = []
    for gpu in gpus:
        for name, title, severity, advice in _ERRORS:
            if name not in gpu.curves or not len((curve := gpu.curves[name].finite()).y):
                continue
            flag = not name.endswith("_total")
            rises: Floats = curve.y if flag else np.concatenate([[0.0], np.diff(curve.y)])
            count = float(rises.max() if flag else rises[rises > 0].sum())
            if count <= 0:
                continue
            first = float(curve.x[int((rises > 0).argmax())])
            found.append(
                Finding(
                    "gpu.error",
                    severity,  # type: ignore[arg-type]
                    f"{gpu.title} reported {title}",
                    (
                        f"{name}: {'set' if flag else '+' + show(count)}, "
                        f"first {span(first - curve.x[0])} after the start",
                        *mark_simulated([gpu]),
                    ),
                    advice,
                    subject=gpu.title,
                    time=first,
                    values={name: count},
                )
            )
    return found


def detect_hot(measured: Measurements) -> list[Finding]:
    """GPUs close to the temperature at which they slow down."""
    hot = []
    for gpu in measured.with_curve(measured.gpus, "temperature_celsius", "the GPUs", SAMPLES):
        limit_curve = gpu.curves.get("temperature_limit_celsius")
        limits = limit_curve.finite().y if limit_curve is not None else np.zeros(0)
        limit = float(limits[-1]) if len(limits) else 88.0
        heat = steady(gpu.curves["temperature_celsius"]).y
        if float((heat > limit - 3).mean()) > 0.1:
            hot.append((gpu, float(heat.max()), limit))
    if not hot:
        return []
    gpus = [gpu for gpu, _, _ in hot]
    return [
        Finding(
            "gpu.hot",
            "info",
            f"{count_of(len(gpus), 'GPU')} within 3 °C of the limit",
            (
                *(f"{gpu.title}: up to {peak:.0f} °C, limit {limit:.0f} °C" for gpu, peak, limit in hot[:4]),
                *mark_simulated(gpus),
            ),
            "Better cooling or a lower power limit, before they slow down.",
            subject=name_devices(gpus),
            values={"hottest": max(peak for _, peak, _ in hot)},
        )
    ]
