"""Findings in the hardware: idle GPUs and why, heat, errors. Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainvitals.analysis.findings import ORDER, Curve, Device, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.speed import BOUNDS, share_of_step
from trainvitals.analysis.wording import percent, show, span
from trainvitals.conditions import Conditions, Severity
from trainvitals.conditions.gpu import LOW_USE_MINUTES
from trainvitals.conditions.xids import find_xid

SAMPLES = 60
BUSY = 50.0
"""Percent of utilization below which GPUs wait for something."""
LONG_SILENCE = 10.0
"""Seconds; a driver that is busy may answer late."""
HOT_SHARE = 0.1
"""Of the samples; a short peak is not worth a finding."""
WAITS_APART = 20.0
"""Percentage points between two participants whose GPUs wait unequally long."""
SHOWN = 4
"""Devices of which a finding says more."""


def name_devices(devices: Sequence[Device]) -> str:
    """`GPU 0, GPU 1 and 6 more`."""
    titles = [device.title for device in devices]
    more = f" and {len(titles) - SHOWN} more" if len(titles) > SHOWN + 1 else ""
    return ", ".join(titles[: SHOWN if more else SHOWN + 1]) + more


def mark_simulated(devices: Sequence[Device]) -> tuple[str, ...]:
    """A line of evidence if the devices are simulated."""
    return ("simulated: not a real GPU",) if any(device.simulated for device in devices) else ()


def name_users(measured: Measurements, gpu: Device) -> tuple[str, ...]:
    """A line of evidence with the participants that computed on it, where there are several."""
    users = [title for title, place in measured.places.items() if gpu.title in place.gpus]
    return (f"used by {', '.join(users)}",) if users and len(measured.places) > 1 else ()


def steady(curve: Curve) -> Curve:
    """Without the start-up: the first tenth, at most five minutes; finite values only."""
    curve = curve.finite()
    begin = curve.x[0] + min(300.0, 0.1 * (curve.x[-1] - curve.x[0]))
    keep = curve.x >= begin
    return Curve(curve.x[keep], curve.y[keep])


def detect_low_use(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs that have little to do, or wait between bursts."""
    little, idle = conditions.thresholds["gpu_low_use_p95_percent"], conditions.thresholds["gpu_idle_percent"]
    low, bursts, lulls = [], [], {}
    for gpu in measured.with_curve(measured.gpus, "utilization_percent", "GPU", SAMPLES):
        curve = steady(gpu.curves["utilization_percent"])
        spread = np.percentile(curve.y, (5, 50, 95))
        # What was an alert is a finding too, though the GPU was busy for the rest of the run.
        lull = _lowest_mean(curve, LOW_USE_MINUTES * 60)
        if lull is not None and lull < conditions.thresholds["gpu_low_use_percent"]:
            lulls[gpu.title] = lull
        if spread[2] < little or gpu.title in lulls:
            low.append((gpu, spread))
        elif spread[0] < idle:
            bursts.append((gpu, spread))
    if not low and not bursts:
        return []
    # Those that are named, not those beside them that have enough to do; the least used is the first.
    worst_first = sorted(low or bursts, key=lambda item: float(item[1][1]))
    chosen = [gpu for gpu, _ in low or bursts]
    bottom, middle, top = worst_first[0][1]
    cause, advice = find_cause(measured, conditions)
    many = len(chosen) > 1
    bursting = "alternate between busy and idle" if many else "alternates between busy and idle"
    verdict = ("are underused" if many else "is underused") if low else bursting
    severity: Severity = "warning" if middle < little else "info"
    return [
        Finding(
            "gpu.low_use",
            severity,
            f"{name_devices(chosen)} {verdict}",
            (
                *_quote_use(worst_first, lulls),
                *_tell_who_waits(measured),
                f"likely cause: {cause}",
                *mark_simulated(chosen),
            ),
            advice,
            subject=name_devices(chosen),
            about=tuple(gpu.title for gpu in chosen),
            values={"p5": float(bottom), "p50": float(middle), "p95": float(top)},
        )
    ]


def _lowest_mean(curve: Curve, seconds: float) -> float | None:
    """The lowest mean of any `seconds` on end; None if there are not as many."""
    sums = np.concatenate([[0.0], np.cumsum(curve.y)])
    starts = np.searchsorted(curve.x, curve.x - seconds)
    ends = np.arange(1, len(curve.x) + 1)
    whole = (curve.x - curve.x[0] >= seconds) & (ends - starts >= 3)
    return float(((sums[ends] - sums[starts]) / (ends - starts))[whole].min()) if whole.any() else None


def _quote_use(worst_first: Sequence[tuple[Device, Floats]], lulls: Mapping[str, float]) -> list[str]:
    """Of each GPU, as it was: a mean of an idle and a busy one is of neither."""
    lines = []
    for gpu, spread in worst_first[:SHOWN]:
        bottom, middle, top = spread
        whose = f"{gpu.title}: " if len(worst_first) > 1 else ""
        lines.append(f"{whose}utilization p5 / p50 / p95: {bottom:.0f} / {middle:.0f} / {top:.0f} %")
        if gpu.title in lulls:
            lines[-1] += f", {lulls[gpu.title]:.0f} % over the lowest {LOW_USE_MINUTES} minutes"
    return lines


def _tell_who_waits(measured: Measurements) -> list[str]:
    """Of participants that do different things, whose GPUs wait most and least."""
    waits = {
        process.title: float(np.median(steady(process.curves["gpu_waiting_percent"]).y))
        for process in measured.processes
        if "gpu_waiting_percent" in process.curves and len(process.curves["gpu_waiting_percent"].finite().y) >= SAMPLES
    }
    if not waits or max(waits.values()) - min(waits.values()) < WAITS_APART:
        return []
    most, least = max(waits, key=lambda title: waits[title]), min(waits, key=lambda title: waits[title])
    return [
        f"no kernel ran on the GPUs of {most} {waits[most]:.0f} % of the time, on those of {least} {waits[least]:.0f} %"
    ]


def find_cause(measured: Measurements, conditions: Conditions) -> tuple[str, str]:
    """Why the GPUs wait, as far as the other measurements show, and what to do."""
    limits = conditions.thresholds
    for bound in BOUNDS:
        try:
            share = share_of_step(measured, bound).share
        except NotJudged:
            continue  # if all are unknown, the host may show it
        if share > limits[bound.notable] / 100:
            return f"{bound.cause} ({percent(share)} of the step time)", conditions[bound.condition].advice
    for name, shown, threshold, explanation, condition in (
        ("cpu_iowait_percent", "I/O wait", "io_wait_percent", "the host waits for storage", "io_bound"),
        ("pressure_io_percent", "I/O pressure", "io_pressure_percent", "the host waits for storage", "io_bound"),
        ("cpu_usage_percent", "CPU use", "cpu_usage_percent", "the CPUs are saturated", "cpu_bound"),
    ):
        limit = limits[threshold]
        if (often := share_while_idle(measured, measured.hosts, name, limit)) is not None and often > 0.5:
            cause = f"{explanation} ({shown} above {limit:g} % in {percent(often)} of the samples)"
            return cause, conditions[condition].advice
    often = share_while_idle(measured, measured.processes, "main_cpu_percent", limits["main_thread_percent"])
    if often is not None and often > 0.5:
        cause = f"one Python thread saturates its core in {percent(often)} of the samples"
        return cause, conditions["cpu_bound"].advice
    return "unknown from the available measurements", conditions["gpu_low_use"].advice


def share_while_idle(measured: Measurements, devices: Sequence[Device], name: str, limit: float) -> float | None:
    """How often `name` is above `limit` while the GPUs are below half of their use; None if it is not known."""
    known = [device.curves[name].finite() for device in devices if name in device.curves]
    shares = [
        float(((own.y > limit) & (_use_of_gpus(measured, own.x) < BUSY)).mean())
        for own in known
        if len(own.x) >= SAMPLES
    ]
    return max(shares) if shares else None


def _use_of_gpus(measured: Measurements, times: Floats) -> Floats:
    """The mean utilization of all GPUs at these times; 0 if there are none."""
    curves = [d.curves["utilization_percent"].finite() for d in measured.gpus if "utilization_percent" in d.curves]
    curves = [curve for curve in curves if len(curve.x) > 1]
    if not curves:
        return np.zeros(len(times))
    return np.asarray(np.mean([np.interp(times, curve.x, curve.y) for curve in curves], axis=0))


def detect_cpu_bound(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """CPUs at their limit while the GPUs wait."""
    limits = conditions.thresholds
    signs = (
        ("cpu_usage_percent", limits["cpu_usage_percent"], measured.hosts),
        ("main_cpu_percent", limits["main_thread_percent"], measured.processes),
    )
    return _host_bound(measured, "cpu.bound", signs, "The CPUs are the bottleneck", conditions["cpu_bound"].advice)


def detect_contention(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """CPUs that other programs use, so that the training has to wait for one."""
    limits = conditions.thresholds
    needed = ("cpu_usage_percent", "cpu_count", "pressure_cpu_percent")
    hosts = [host for host in measured.hosts if all(name in host.curves for name in needed)]
    own = [device.curves["cpu_percent"].finite() for device in measured.processes if "cpu_percent" in device.curves]
    own = [curve for curve in own if len(curve.x) > 1]
    if len(measured.hosts) > 1:
        raise NotJudged("a run on one host (which processes are on which is not known)")
    curves = [hosts[0].curves[name].finite() for name in needed] if hosts else []
    if not own or not curves or len(curves[0].x) < SAMPLES or not all(len(curve.x) for curve in curves):
        raise NotJudged(f"{SAMPLES} samples of the CPUs, of their pressure and of the run's processes")
    usage, count, pressure = curves
    ours = np.sum([np.interp(usage.x, curve.x, curve.y, 0, 0) for curve in own], axis=0) / count.y[-1]
    others, waits = usage.y - ours, np.interp(usage.x, pressure.x, pressure.y)
    high = (usage.y > limits["cpu_usage_percent"]) & (waits > limits["cpu_pressure_percent"])
    high &= (others > limits["other_programs_percent"]) & (_use_of_gpus(measured, usage.x) < BUSY)
    share = float(high.mean())
    if share <= 0.5:
        return []
    middle, run = float(np.median(others[high])), float(np.median(ours[high]))
    return [
        Finding(
            "cpu.contended",
            "warning",
            f"Other programs use {middle:.0f} % of the CPUs, and the training waits for one",
            (
                f"in {percent(share)} of the samples; the run itself uses {run:.0f} % of {count.y[-1]:g} CPUs",
                f"CPU pressure meanwhile: {np.median(waits[high]):.0f} %",
            ),
            conditions["cpu_contended"].advice,
            values={"others_percent": middle, "own_percent": run, "share": share},
        )
    ]


def detect_io_bound(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Storage at its limit while the GPUs wait."""
    limits = conditions.thresholds
    signs = (
        ("cpu_iowait_percent", limits["io_wait_percent"], measured.hosts),
        ("pressure_io_percent", limits["io_pressure_percent"], measured.hosts),
    )
    return _host_bound(measured, "io.bound", signs, "Storage is the bottleneck", conditions["io_bound"].advice)


def _host_bound(
    measured: Measurements,
    rule: str,
    signs: Sequence[tuple[str, float, Sequence[Device]]],
    title: str,
    advice: str,
) -> list[Finding]:
    if not measured.gpus:
        raise NotJudged("GPU samples (none found)")
    seen = [(name, limit, share_while_idle(measured, devices, name, limit)) for name, limit, devices in signs]
    if all(share is None for _, _, share in seen):
        raise NotJudged(f"{SAMPLES} samples of " + " or ".join(f"'{name}'" for name, _, _ in signs))
    strong = [(name, limit, share) for name, limit, share in seen if share is not None and share > 0.5]
    if not strong:
        return []
    evidence = tuple(
        f"{name} above {limit:g} % while the GPUs are below {BUSY:.0f} %: {percent(share)} of the samples"
        for name, limit, share in strong
    )
    return [Finding(rule, "warning", title, evidence, advice, values={name: share for name, _, share in strong})]


_THROTTLED = {
    "throttle_thermal_seconds": ("temperature", "gpu_throttled_heat"),
    "throttle_hardware_seconds": ("the hardware", "gpu_throttled_power"),
}
"""Counter -> what holds the clocks down, and the condition that this is."""


def detect_throttling(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs that slowed themselves down for heat, or at the request of the hardware."""
    limits = conditions.thresholds
    gpus = [gpu for gpu in measured.gpus if any(name in gpu.curves for name in _THROTTLED)]
    if not gpus:
        raise NotJudged("GPU samples of 'throttle_thermal_seconds'" if measured.gpus else "GPU samples (none found)")
    found = []
    for gpu in gpus:
        shares = {name: _share_rising(gpu.curves[name]) for name in _THROTTLED if name in gpu.curves}
        name, share = max(shares.items(), key=lambda item: item[1])
        if share <= limits["gpu_throttled_percent"] / 100:
            continue
        holder, condition = _THROTTLED[name]
        evidence = [f"throttled {percent(share)} of the time by {holder}"]
        if "temperature_celsius" in gpu.curves and len(heat := gpu.curves["temperature_celsius"].finite().y):
            evidence.append(f"up to {heat.max():.0f} °C, median {np.median(heat):.0f} °C")
        evidence += [f"clock {loss}" for loss in _clock_loss(gpu)]
        found.append(
            Finding(
                "gpu.throttle",
                "critical" if share > limits["gpu_throttled_critical_percent"] / 100 else "warning",
                f"{gpu.title} is throttling",
                (*evidence, *name_users(measured, gpu), *mark_simulated([gpu])),
                conditions[condition].advice,
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
        [f"under load drops from {high:,.0f} to {low:,.0f} MHz (-{percent(1 - low / high)})"]
        if low < 0.97 * high
        else []
    )


_ERRORS = {
    "ecc_uncorrected_total": "gpu_ecc_uncorrected",
    "xid_errors_total": "gpu_xid",
    "row_remap_failed": "gpu_row_remap_failed",
    "row_remap_pending": "gpu_row_remap_pending",
    "remapped_rows_uncorrected_total": "gpu_rows_remapped",
}
"""Counter or flag -> the condition that it means."""


def detect_errors(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Errors that the cards reported during the run."""
    gpus = [gpu for gpu in measured.gpus if any(name in gpu.curves for name in _ERRORS)]
    if not gpus:
        raise NotJudged("GPU error counters (ECC, Xid, row remapping)")
    found = []
    for gpu in gpus:
        for name, condition in _ERRORS.items():
            if name not in gpu.curves or not len((curve := gpu.curves[name].finite()).y):
                continue
            flag = not name.endswith("_total")
            rises: Floats = curve.y if flag else np.concatenate([[0.0], np.diff(curve.y)])
            count = float(rises.max() if flag else rises[rises > 0].sum())
            if count <= 0:
                continue
            first = float(curve.x[int((rises > 0).argmax())])
            codes = _find_xids(gpu, first) if condition == "gpu_xid" else []
            meant = [f"Xid {code}: {find_xid(code).meaning}" for code in codes]
            worst = min((find_xid(code) for code in codes), key=lambda xid: ORDER.index(xid.severity), default=None)
            found.append(
                Finding(
                    "gpu.error",
                    worst.severity if worst is not None else conditions[condition].severity,
                    f"{gpu.title} reported {meant[0] if len(meant) == 1 else conditions[condition].title}",
                    (
                        f"{name}: {'set' if flag else '+' + show(count)}, "
                        f"first {span(first - curve.x[0])} after the start",
                        *(meant if len(meant) > 1 else ()),
                        *name_users(measured, gpu),
                        *mark_simulated([gpu]),
                    ),
                    conditions[condition].advise(gpu.index) if worst is None else worst.advise(gpu.index or "INDEX"),
                    subject=gpu.title,
                    time=first,
                    values={name: count},
                )
            )
    return found


_LOST = {
    "lost": ("gpu_lost", "is lost", "was lost"),
    "reset required": ("gpu_lost", "needs a reset", "needed a reset"),
    "unresponsive": ("gpu_hung", "does not respond", "did not respond"),
}
"""State -> the condition that it means, and how it is said."""


def detect_lost(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs that their driver lost, or that do not answer it any more."""
    gpus = [gpu for gpu in measured.gpus if gpu.states]
    if not gpus:
        raise NotJudged("GPU samples of 'state'" if measured.gpus else "GPU samples (none found)")
    found = []
    for gpu in gpus:
        times = [at for at, _ in gpu.states]
        last = max((float(curve.x[-1]) for curve in gpu.curves.values() if len(curve.x)), default=times[-1])
        ends = [*times[1:], max(last, times[-1])]
        gone = [(at, word, end - at) for (at, word), end in zip(gpu.states, ends, strict=True) if word in _LOST]
        lasts = gpu.states[-1][1] in _LOST
        seconds = sum(length for _, _, length in gone)
        if not gone or (not lasts and seconds < LONG_SILENCE and all(word == "unresponsive" for _, word, _ in gone)):
            continue
        first, word, _ = next((item for item in gone if _LOST[item[1]][0] == "gpu_lost"), gone[0])
        condition, now, before = _LOST[gpu.states[-1][1] if lasts else word]
        began = f"first {span(first - times[0])} after its first sample" if first > times[0] else "from the start"
        found.append(
            Finding(
                "gpu.lost",
                conditions[condition].severity if lasts else "warning",
                f"{gpu.title} {now}" if lasts else f"{gpu.title} {before} for {span(seconds)}",
                (began, *name_users(measured, gpu), *mark_simulated([gpu])),
                conditions[condition].advise(gpu.index),
                subject=gpu.title,
                time=first,
            )
        )
    return found


def _find_xids(gpu: Device, since: float) -> list[int]:
    """The codes that were newest at some time since then, in the order in which they came."""
    curve = gpu.curves.get("xid_last")
    if curve is None:
        return []
    newest = curve.finite()
    return list(dict.fromkeys(int(code) for code in newest.y[newest.x >= since]))


def detect_hot(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """GPUs that were too hot, or as hot as they can be before they slow down."""
    warm = conditions.thresholds["gpu_temperature_celsius"]
    critical = max(warm, conditions.thresholds["gpu_temperature_critical_celsius"])
    hot, evidence, peaks, severity = [], [], [], conditions["gpu_temperature_high"].severity
    for gpu in measured.with_curve(measured.gpus, "temperature_celsius", "GPU", SAMPLES):
        limit_curve = gpu.curves.get("temperature_limit_celsius")
        limits = limit_curve.finite().y if limit_curve is not None else np.zeros(0)
        most = min(critical, float(limits[-1])) if len(limits) else critical
        limit = min(warm, most)
        heat = steady(gpu.curves["temperature_celsius"]).y
        share = float((heat > limit).mean())
        if share <= HOT_SHARE:
            continue
        hot.append(gpu)
        peaks.append(float(heat.max()))
        evidence.append(f"{gpu.title}: above {limit:g} °C in {percent(share)} of the samples, up to {peaks[-1]:.0f} °C")
        if float((heat >= most).mean()) > HOT_SHARE:
            severity = conditions["gpu_temperature_limit"].severity
    if not hot:
        return []
    hottest_first = sorted(range(len(hot)), key=lambda at: -peaks[at])
    return [
        Finding(
            "gpu.hot",
            severity,
            f"{name_devices(hot)} {'are' if len(hot) > 1 else 'is'} too hot",
            (*(evidence[at] for at in hottest_first[:SHOWN]), *mark_simulated(hot)),
            conditions["gpu_temperature_high"].advise(hot[0].index if len(hot) == 1 else ""),
            subject=name_devices(hot),
            about=tuple(gpu.title for gpu in hot),
            values={"hottest": max(peaks)},
        )
    ]
