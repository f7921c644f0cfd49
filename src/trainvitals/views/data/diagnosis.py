"""The diagnosis of a run: reads what the detectors need, and returns their findings as plain values."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainvitals import __version__, catalog
from trainvitals.analysis.diagnosis import Diagnosis, Gap, diagnose
from trainvitals.analysis.findings import INTERVALS, Curve, Device, Finding, Floats, Measurements, RankPlace
from trainvitals.analysis.gradients import WEIGHTS
from trainvitals.analysis.metric_sense import is_held_out
from trainvitals.analysis.statistics import describe_values
from trainvitals.conditions import Conditions
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.identity import Participant, gpu_key, gpu_title
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.settings import Settings
from trainvitals.views.data.endings import read_ending
from trainvitals.views.data.gpus import is_own_gpu
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.shapes import DiagnosisJson, FindingsJson, ResourceJson

MAX_SAMPLES = 20_000
"""Samples of one curve of a device that are looked at; of more, every n-th."""
RANK_STEPS = 20_000
"""Newest steps in which participants are compared."""
MAX_STEPS = 2_000_000
"""Newest steps whose training curves are looked at."""
WEIGHT_LAYERS = 8
"""Layers whose weights are compared between participants."""
_OWN_WORK = ("data_time", "transfer_time", "forward_time")
"""What a participant does before it has to wait for the others."""
_MOMENTS = {"checkpoint": "checkpoint", "evaluation": "evaluation", "eval": "evaluation"}
"""Events that take time between steps, and what they are."""
FINEST_SECONDS = 0.005
"""Lines are dated to the millisecond: of shorter times between them, most is rounding."""
KEPT = 6
"""Training curves that are kept in memory at once."""

_GPU = (
    *("utilization_percent", "memory_percent", "memory_used_mb", "memory_total_mb", "temperature_celsius"),
    *("temperature_limit_celsius", "power_draw_watts", "graphics_clock_mhz", "throttle_thermal_seconds"),
    *("throttle_hardware_seconds", "ecc_uncorrected_total", "xid_errors_total", "xid_last"),
    *("row_remap_failed", "row_remap_pending", "remapped_rows_uncorrected_total"),
    *("graphics_clock_max_mhz", "throttle_power_seconds", "pcie_link_width", "pcie_link_width_max"),
    *("pcie_link_generation", "pcie_link_generation_max", "pcie_rx_mb_s", "nvlink_rx_mb_s"),
    *("sm_active_percent", "tensor_active_percent", "fp32_active_percent"),
)
_HOST = (
    *("cpu_usage_percent", "cpu_count", "cpu_iowait_percent", "pressure_cpu_percent", "pressure_io_percent"),
    *("memory_usage_percent", "memory_total_mb"),
    *("disk_free_gb", "disk_read_mb_s", "disk_write_mb_s", "network_receive_mb_s", "network_send_mb_s"),
)
_PROCESS = ("main_cpu_percent", "cpu_percent", "gpu_waiting_percent", "pss_mb", "rss_mb")
_REPORTED = {
    "gpu": ("utilization_percent", "memory_percent", "memory_used_mb", "temperature_celsius", "power_draw_watts"),
    "system": (
        *("cpu_usage_percent", "memory_usage_percent", "disk_read_mb_s", "disk_write_mb_s"),
        *("network_receive_mb_s", "network_send_mb_s"),
    ),
    "process": ("cpu_percent", "pss_mb", "rss_mb"),
}
"""The metrics of each kind of device in the statistics of a report."""


class TrainingCurves:
    """The curves of the lowest participant by the catalog's names, read when asked for; the last few are kept."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._names = reader.names()
        steps = [item.last_step for item in reader.summary().values() if item.last_step is not None]
        self.start = max(steps) - MAX_STEPS if steps and max(steps) > MAX_STEPS else None
        """The first step that is looked at; None for all."""
        self._kept: OrderedDict[str, Curve | None] = OrderedDict()

    def names(self) -> Sequence[str]:
        return self._names

    def get(self, name: str) -> Curve | None:
        if name not in self._kept:
            self._kept[name] = self._read(name)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def _read(self, name: str) -> Curve | None:
        logged = catalog.find_spelling("training", name, self._names)
        if logged is not None:
            series = self._lowest(logged)
            return Curve(series.x, series.y) if series is not None else None
        if name == INTERVALS:
            logged = catalog.find_spelling("training", "batch_time", self._names)
            return self.get("batch_time") if logged is None else None
        return self._intervals() if name == "batch_time" else None

    def _lowest(self, name: str, axis: str = "step") -> Series | None:
        start = self.start if axis == "step" else None
        lowest = lowest_of(self._reader)
        found = self._reader.series([name], participants=lowest, x=axis, start=start)  # type: ignore[arg-type]
        return next(iter(found or self._reader.series([name], x=axis, start=start)), None)  # type: ignore[arg-type]

    def _intervals(self) -> Curve | None:
        """Where no step time was logged: the time between the lines of the loss, per step."""
        name = catalog.find_spelling("training", "loss", self._names)
        by_step, by_time = (self._lowest(name), self._lowest(name, "time")) if name else (None, None)
        if by_step is None or by_time is None or len(by_step.x) != len(by_time.x) or len(by_step.x) < 3:
            return None
        steps, seconds = np.diff(by_step.x), np.diff(by_time.x)
        if np.median(seconds) < FINEST_SECONDS:
            return None
        good = (steps > 0) & (seconds > 0)
        return Curve(by_step.x[1:][good], seconds[good] / steps[good])


def read_measurements(reader: Reader, prices: Prices = NO_PRICES) -> Measurements:
    """What the detectors look at; the training curves are read when they ask."""
    training = TrainingCurves(reader)
    gpus = _read_devices(reader, "gpu", _GPU)
    rank_steps, rank_phases = _read_ranks(reader)
    return Measurements(
        training=training,
        from_step=training.start,
        rank_steps=rank_steps,
        rank_phases=rank_phases,
        places=_read_places(reader, gpus),
        rank_weights=_read_weights(reader),
        moments=_read_moments(reader),
        resumes=_read_resumes(reader),
        gpus=gpus,
        hosts=_read_devices(reader, "system", _HOST),
        processes=_read_devices(reader, "process", _PROCESS),
        is_live=reader.info.is_live,
        ending=read_ending(reader),
        prices=prices,
    )


def _read_devices(reader: Reader, table: str, names: Sequence[str]) -> list[Device]:
    """Of GPUs only the run's own: what others do on theirs is neither its fault nor its cost."""
    found: dict[tuple[tuple[str, str], ...], tuple[Mapping[str, Any], dict[str, Curve]]] = {}
    statuses = reader.statuses()
    for name in names:
        for series in reader.series([name], table=table, x="time"):
            if table == "gpu" and not is_own_gpu(series.labels, statuses):
                continue
            stride = -(-len(series.x) // MAX_SAMPLES) or 1
            curve = Curve(series.x[::stride], series.y[::stride])
            found.setdefault(_key_of(series.labels), ({"rank": series.rank, **series.labels}, {}))[1][name] = curve
    states: dict[tuple[tuple[str, str], ...], list[tuple[float, str]]] = {}
    for item in reader.states(["state"], table=table) if table == "gpu" else ():
        if is_own_gpu(item.labels, statuses):
            states.setdefault(_key_of(item.labels), []).extend(item.changes)
            found.setdefault(_key_of(item.labels), (item.labels, {}))  # one that was lost from the start
    hosts = {str(labels.get("host", "")) for labels, _ in found.values()}
    devices = [
        Device(
            _title(table, labels, len(hosts) > 1),
            curves,
            bool(labels.get("simulated")),
            str(labels.get("gpu_name") or ""),
            str(labels.get("gpu_index", "")),
            str(labels.get("host", "")),
            gpu_key(labels),
            sorted(states.get(key, ())),
        )
        for key, (labels, curves) in found.items()
    ]
    return sorted(devices, key=lambda device: (len(device.title), device.title))


def _key_of(labels: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(name), str(value)) for name, value in labels.items() if name != "pid"))


def _title(table: str, labels: Mapping[str, Any], many_hosts: bool) -> str:
    host = str(labels.get("host", "")) or "host"
    if table == "system":
        return host
    if table == "process":
        return Participant.of(labels).title
    title = gpu_title(labels)
    return f"{host} {title}" if many_hosts else title


def _read_places(reader: Reader, gpus: Sequence[Device]) -> dict[str, RankPlace]:
    """Where each participant ran, by its title."""
    return {
        participant.title: RankPlace(
            status.host, frozenset(gpu.title for gpu in gpus if gpu.key in rank.gpus and gpu.host in ("", status.host))
        )
        for status in reader.statuses()
        for participant, rank in status.participants().items()
    }


def _read_ranks(reader: Reader) -> tuple[dict[Participant, Curve], dict[Participant, dict[str, float]]]:
    """Each participant's own work before it waits for the others, as far as the phases show it, with the median of
    each phase; else its step time."""
    names = reader.names()
    step = catalog.find_spelling("training", "batch_time", names)
    last = [series.x[-1] for series in reader.series([step], max_points=4) if len(series.x)] if step else []
    if step is None or len(last) < 2:
        return {}, {}
    start = float(min(last)) - RANK_STEPS
    phases = {logged: name for name in _OWN_WORK if (logged := catalog.find_spelling("training", name, names))}
    found: dict[Participant, dict[str, Curve]] = {}
    for series in reader.series([*phases] or [step], start=start):
        found.setdefault(series.participant, {})[series.name] = Curve(series.x, series.y)
    sums = {}
    for participant, curves in found.items():
        x = next(iter(curves.values())).x
        for curve in curves.values():
            x = np.intersect1d(x, curve.x)
        # A step that was logged twice counts once: the places of intersect1d are of the first.
        sums[participant] = Curve(x, np.sum([c.y[np.searchsorted(c.x, x)] for c in curves.values()], axis=0))
    medians = {
        participant: {phases[name]: float(np.median(y)) for name, c in curves.items() if len(y := c.finite().y)}
        for participant, curves in found.items()
        if phases
    }
    return sums, medians


def _read_weights(reader: Reader) -> dict[str, dict[Participant, Curve]]:
    """The weight norms of a few layers, of runs with several participants."""
    names = [name for name in reader.names() if name.startswith(WEIGHTS)]
    found: dict[str, dict[Participant, Curve]] = {}
    if not names or len({series.participant for series in reader.series(names[:1], max_points=4)}) < 2:
        return found
    for series in reader.series(names[:: -(-len(names) // WEIGHT_LAYERS)]):
        found.setdefault(series.name.removeprefix(WEIGHTS), {})[series.participant] = Curve(series.x, series.y)
    return found


def _read_moments(reader: Reader) -> dict[str, Floats]:
    """When checkpoints were saved and held-out data was evaluated."""
    found: dict[str, list[float]] = {}
    for event in reader.events():
        if event.event in _MOMENTS and event.step is not None:
            found.setdefault(_MOMENTS[event.event], []).append(float(event.step))
    held_out = next((name for name in reader.names() if is_held_out(name)), None)
    if held_out is not None:
        for series in reader.series([held_out], participants=lowest_of(reader)):
            found.setdefault("evaluation", []).extend(series.x.tolist())
    return {what: np.unique(steps) for what, steps in found.items()}


def _read_resumes(reader: Reader) -> list[int]:
    """The first steps of later attempts; one that began from the start again was not resumed."""
    steps = list(reader.first_steps().values())
    return sorted({step for step in steps[1:] if step > steps[0]})


def describe_diagnosis(reader: Reader, conditions: Conditions, prices: Prices = NO_PRICES) -> DiagnosisJson:
    """Findings with evidence and advice, what is fine, what could not be judged, and statistics of the hardware."""
    measured = read_measurements(reader, prices)
    return {
        **describe_findings(diagnose(measured, conditions)),
        "resources": describe_resources(measured),
        "from_step": measured.from_step,
    }


class DiagnosisCache:
    """Diagnoses for a server: one is made at a time and kept until the run changes; of a
    run that is alive for `FRESH` seconds at least. Safe for several threads."""

    FRESH = 20.0
    MOST = 32

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Any, float, DiagnosisJson]] = OrderedDict()

    def read(self, key: str, reader: Reader, conditions: Conditions, prices: Prices = NO_PRICES) -> DiagnosisJson:
        """The diagnosis of the run that is known by `key`."""
        with self._lock:
            stamp = reader.stamp()
            known = self._kept.pop(key, None)
            if known is None or (known[0] != stamp and time.monotonic() - known[1] > self.FRESH):
                known = (stamp, time.monotonic(), describe_diagnosis(reader, conditions, prices))
            self._kept[key] = known
            while len(self._kept) > self.MOST:
                self._kept.popitem(last=False)
            return known[2]


def describe_findings(found: Diagnosis) -> FindingsJson:
    """A diagnosis as plain values."""
    return {
        "findings": [
            {
                **finding._asdict(),
                "evidence": list(finding.evidence),
                "values": dict(finding.values),
                "about": list(finding.about),
            }
            for finding in found.findings
        ],
        "fine": list(found.fine),
        "not_judged": [gap._asdict() for gap in found.not_judged],
    }


def make_findings_file(found: Diagnosis, attempt: int, judged_by: Mapping[str, Any]) -> FindingsFile:
    """What is kept of the diagnosis of an ended run, for lists and whoever shows it."""
    return FindingsFile.parse({**describe_findings(found), "attempt": attempt, "judged_by": judged_by})


def find_kept(reader: Reader, judged_by: Mapping[str, Any]) -> FindingsJson | None:
    """The findings of an ended run, if they were kept and made of it as it is, by the same thresholds and prices."""
    kept = reader.findings()
    info = reader.info
    if kept is None or info.is_live or kept.attempt != info.attempt or kept.judged_by != judged_by:
        return None
    return {
        "findings": [
            {
                **{name: getattr(row, name) for name in Finding._fields},
                "evidence": list(row.evidence),
                "about": list(row.about),
            }
            for row in kept.findings
        ],
        "fine": list(kept.fine),
        "not_judged": [{name: getattr(gap, name) for name in Gap._fields} for gap in kept.not_judged],
    }


def read_findings(reader: Reader, settings: Settings) -> FindingsJson:
    """What was found wrong with the run, what is fine, and what could not be judged; as it was kept, where it was."""
    kept = find_kept(reader, describe_judges(settings))
    if kept is not None:
        return kept
    measured = read_measurements(reader, Prices.of(settings))
    return describe_findings(diagnose(measured, Conditions(settings.alerts_thresholds)))


def describe_judges(settings: Settings) -> dict[str, Any]:
    """What findings depend on besides the run itself."""
    return {
        "version": __version__,
        "thresholds": dict(settings.alerts_thresholds or {}),
        "prices": Prices.of(settings)._asdict(),
    }


def describe_resources(measured: Measurements) -> list[ResourceJson]:
    """Lowest, mean, median, 95th percentile and highest of what each device did over the whole run."""
    rows: list[ResourceJson] = []
    for table, devices in (("gpu", measured.gpus), ("system", measured.hosts), ("process", measured.processes)):
        for device in devices:
            for name in _REPORTED[table]:
                found = describe_values(device.curves[name].y) if name in device.curves else None
                if found is None:
                    continue
                metric = catalog.find(table, name)
                rows.append(
                    {
                        "subject": device.title,
                        "simulated": device.simulated,
                        "table": table,
                        "metric": name,
                        "unit": metric.unit if metric is not None else "",
                        "low": found.low,
                        "mean": found.mean,
                        "median": found.median,
                        "p95": found.p95,
                        "high": found.high,
                    }
                )
    return rows
