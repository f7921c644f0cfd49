"""Every GPU of every node: how it is now or was over some days, who holds it, active alerts, and how much is free.

A node is a host on which a run was within the last days, or a machine of `--host`. What it is now its newest
status.json says; what a GPU did on earlier days the agents have counted (`analysis.gpu_days`), so nothing here reads a
series.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainvitals.analysis.gpu_days import DAY, IDLE_PERCENT, GpuDay, date_of
from trainvitals.journal.documents.rows import SEVERITIES
from trainvitals.journal.encoding import parse_time
from trainvitals.safe_text import one_line
from trainvitals.views.data.fleet_runs import FleetRun, HostPart
from trainvitals.views.data.machines import MachineNow
from trainvitals.views.data.natural_order import natural_key
from trainvitals.views.data.run_rows import describe_ahead, measure_ahead
from trainvitals.views.data.shapes import (
    CapacityJson,
    FleetAlertJson,
    FleetGpuJson,
    FleetJson,
    FleetNodeJson,
    HolderJson,
)

KNOWN_DAYS = 7
"""A host on which no run was for longer is no longer counted."""
SILENT_SECONDS = 120.0
"""A node with a live run whose agent has not written for longer is not known to be well."""
METRICS = ("utilization_percent", "memory_percent", "temperature_celsius", "power_draw_watts")
PERIODS: Mapping[str, int] = {"day": 1, "week": 7, "month": 30}
"""How many days, the last one included."""
MOST_NODES = 4_000
MOST_ALERTS = 2_000

GpuState = Literal["busy", "idle", "other", "free", "down", "unknown"]


@dataclass(slots=True)
class _Gpu:
    index: str
    name: str = ""
    simulated: bool = False
    values: dict[str, float] = field(default_factory=dict)
    """As they are now."""
    problem: str = ""
    measured: bool = False
    """Whether anything is known of now."""
    holders: list[int] = field(default_factory=list)
    total: GpuDay | None = None
    """Over the window."""


@dataclass(slots=True)
class _Node:
    name: str
    rack: str = ""
    state: str = "quiet"
    detail: str = ""
    seen: float | None = None
    gpus: dict[str, _Gpu] = field(default_factory=dict)

    def gpu(self, index: str) -> _Gpu:
        return self.gpus.setdefault(index, _Gpu(index))


def describe_fleet(
    runs: Iterable[FleetRun],
    machines: Sequence[MachineNow] = (),
    *,
    window: str = "now",
    idle_percent: float = IDLE_PERCENT,
    now: float | None = None,
) -> FleetJson:
    """`window` is `now` or one of `PERIODS`; `machines` are those of `--host`."""
    now = time.time() if now is None else now
    names = name_nodes(machines)
    nodes: dict[str, _Node] = {}
    holders: list[HolderJson] = []
    alerts: list[FleetAlertJson] = []
    parts = [(run, part) for run in runs for part in run.parts]
    # What was said last counts.
    parts.sort(key=lambda item: item[1].updated or 0.0)
    for run, part in parts:
        if not run.is_live and (part.updated is None or part.updated < now - KNOWN_DAYS * DAY):
            continue
        node = nodes.setdefault(names.get(part.host, part.host), _Node(names.get(part.host, part.host)))
        _take_part(node, run, part, holders, now)
        if run.is_live:
            alerts += _list_alerts(node.name, run, part)
    for machine in machines:
        _take_machine(nodes, machine)
    if window != "now":
        _add_days(nodes, names, parts, window, now)
    shown = sorted(nodes.values(), key=lambda node: (node.rack, natural_key(node.name)))
    described = [_describe(node, window, idle_percent) for node in shown]
    alerts.sort(key=lambda item: (-SEVERITIES.index(item["severity"]), item["since"] or "", item["node"], item["rule"]))
    return {
        "now": now,
        "window": window,
        "metrics": list(METRICS),
        "nodes": described[:MOST_NODES],
        "left_out": max(len(described) - MOST_NODES, 0),
        "holders": holders,
        "alerts": alerts[:MOST_ALERTS],
        "alerts_total": len(alerts),
        "capacity": _count(described),
        "simulated": any(gpu.simulated for node in shown for gpu in node.gpus.values()),
    }


def name_nodes(machines: Sequence[MachineNow]) -> dict[str, str]:
    """What a host calls itself -> what who asks calls it, where that is another name."""
    found: dict[str, str] = {}
    for machine in machines:
        if machine.state.host:
            found.setdefault(machine.state.host, machine.state.name)
    return found


def _take_part(node: _Node, run: FleetRun, part: HostPart, holders: list[HolderJson], now: float) -> None:
    node.rack = part.rack or node.rack
    node.seen = max((moment for moment in (part.updated, node.seen) if moment is not None), default=None)
    is_fresh = part.updated is None or now - part.updated <= SILENT_SECONDS or not part.gpus
    if run.is_live:
        ahead = measure_ahead(part.updated, now)
        node.state, node.detail = "up", describe_ahead(ahead)
        if ahead:
            node.seen = now  # it has told us something; when that was, its clock does not say
        if not is_fresh:
            node.state, node.detail = "silent", "a run is there, but its agent does not report"
    held = []
    for use in part.gpus:
        gpu = node.gpu(use.number)
        gpu.name = use.name or gpu.name
        gpu.simulated = gpu.simulated or use.simulated
        if not run.is_live:
            continue
        gpu.problem = use.state
        if is_fresh:
            gpu.measured = True
            # Of a GPU that is lost the newest values are of before.
            gpu.values = {} if use.state else {name: value for name in METRICS if (value := use.last(name)) is not None}
        if part.holds(use):
            gpu.holders.append(len(holders))
            held.append(gpu.index)
    if held:
        holders.append(_describe_holder(node.name, run, part, held))


def _take_machine(nodes: dict[str, _Node], machine: MachineNow) -> None:
    state = machine.state
    node = nodes.setdefault(state.name, _Node(state.name))
    node.seen = state.heard
    if state.word != "up":
        node.state, node.detail = state.word, one_line(state.detail)[:200]
    elif node.state == "quiet":
        node.state = "up"
    for read in machine.gpus:
        gpu = node.gpu(read.index)
        gpu.name, gpu.simulated = read.name or gpu.name, gpu.simulated or read.simulated
        if machine.is_current:
            gpu.measured = True
            gpu.values = {name: value for name, value in read.values.items() if name in METRICS} or gpu.values
            gpu.problem = read.problem


def _add_days(
    nodes: Mapping[str, _Node],
    names: Mapping[str, str],
    parts: Sequence[tuple[FleetRun, HostPart]],
    window: str,
    now: float,
) -> None:
    first, last = find_dates(window, now)
    for _, part in parts:
        node = nodes.get(names.get(part.host, part.host))
        if node is None:
            continue
        for use in part.gpus:
            found = use.between(first, last)
            if found is not None:
                gpu = node.gpu(use.number)
                gpu.total = gpu.total or GpuDay()
                gpu.total.add(found)


def find_dates(period: str, until: float) -> tuple[str, str]:
    """The first and the last day (UTC) of the period that ends with the day of `until`."""
    return date_of(until - (PERIODS[period] - 1) * DAY), date_of(until)


def _describe(node: _Node, window: str, idle_percent: float) -> FleetNodeJson:
    gpus = sorted(node.gpus.values(), key=lambda gpu: natural_key(gpu.index))
    models = list(dict.fromkeys(gpu.name for gpu in gpus if gpu.name))
    return {
        "name": node.name,
        "rack": node.rack,
        "state": node.state,
        "detail": node.detail,
        "seen": node.seen,
        "model": ", ".join(models),
        "simulated": any(gpu.simulated for gpu in gpus),
        "gpus": [_describe_gpu(node, gpu, window, idle_percent) for gpu in gpus],
    }


def _describe_gpu(node: _Node, gpu: _Gpu, window: str, idle_percent: float) -> FleetGpuJson:
    values: Mapping[str, float | None] = gpu.values
    if window != "now":
        total = gpu.total or GpuDay()
        values = dict(
            zip(METRICS, (total.use_percent, total.fullest_percent, total.hottest_celsius, total.watts), strict=True)
        )
    return {
        "index": gpu.index,
        "values": [None if (value := values.get(name)) is None else round(value, 1) for name in METRICS],
        "state": _judge(node, gpu, idle_percent),
        "holders": gpu.holders,
        "problem": gpu.problem,
    }


def _judge(node: _Node, gpu: _Gpu, idle_percent: float) -> GpuState:
    if gpu.problem or node.state not in ("up", "quiet", "connecting", "slow"):
        return "down"
    use = gpu.values.get("utilization_percent")
    if gpu.holders:
        return "unknown" if use is None else "idle" if use < idle_percent else "busy"
    if use is not None and use >= idle_percent:
        return "other"  # of a program that nobody watches, or that this viewer does not see
    return "free" if gpu.measured or node.state == "quiet" else "unknown"


def _count(nodes: Sequence[FleetNodeJson]) -> CapacityJson:
    # A slice is a part of a GPU that is counted already.
    found = [gpu["state"] for node in nodes for gpu in node["gpus"] if ":" not in gpu["index"]]
    return {
        "nodes": len(nodes),
        "nodes_down": sum(node["state"] not in ("up", "quiet", "connecting", "slow") for node in nodes),
        "gpus": len(found),
        "busy": found.count("busy"),
        "idle": found.count("idle"),
        "other": found.count("other"),
        "free": found.count("free"),
        "down": found.count("down"),
        "unknown": found.count("unknown"),
    }


def _describe_holder(node: str, run: FleetRun, part: HostPart, gpus: list[str]) -> HolderJson:
    return {
        "node": node,
        "gpus": gpus,
        "key": run.key,
        "name": run.info.name,
        "project": run.info.project,
        "user": run.user,
        "job": str(run.info.file.placed),
        "pids": list(part.pids),
        "started": run.info.started,
        "status": run.info.status,
    }


def _list_alerts(node: str, run: FleetRun, part: HostPart) -> list[FleetAlertJson]:
    return [
        {
            "node": node,
            "key": run.key,
            "name": run.info.name,
            "rule": alert.rule,
            "severity": alert.severity if alert.severity in SEVERITIES else "warning",
            "count": alert.count,
            "since": alert.since if parse_time(alert.since) is not None else None,
            "message": one_line(alert.message)[:500],
            "acknowledged": alert.acknowledged,
            "silenced": alert.silenced,
        }
        for alert in part.alerts
    ]
