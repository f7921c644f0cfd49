"""Every GPU of every node: how it is now or was over some days, who holds it, active alerts, and how much is free.

A node is a host on which a run was within the last days, or a machine of `--host`; one whose last run was earlier is
listed as idle. What it is now its newest
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
from trainvitals.lab.places import machine_of
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
    IdleNodeJson,
)

KNOWN_DAYS = 7
"""A host on which no run was for longer is idle: it may be gone for good, so its GPUs are not counted."""
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
    uuid: str = ""
    """Empty if whoever reports it does not know."""
    name: str = ""
    simulated: bool = False
    values: dict[str, float] = field(default_factory=dict)
    """As they are now."""
    problem: str = ""
    is_reported: bool = False
    """By a live run, or by the machine."""
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
    gpus: list[_Gpu] = field(default_factory=list)
    """What was reported last comes last."""

    def find(self, index: str, uuid: str) -> _Gpu | None:
        """By its UUID: in a container it may have another index. By its index where one of both has no UUID."""
        same = (gpu for gpu in self.gpus if uuid and gpu.uuid == uuid)
        alike = (gpu for gpu in self.gpus if gpu.index == index and not (uuid and gpu.uuid))
        return next(same, None) or next(alike, None)

    def gpu(self, index: str, uuid: str) -> _Gpu:
        """The same, which is new if it was not there."""
        found = self.find(index, uuid)
        if found is None:
            found = _Gpu(index)
        else:
            self.gpus.remove(found)
        found.index, found.uuid = index, uuid or found.uuid
        self.gpus.append(found)
        return found

    def settle(self) -> None:
        """Of several GPUs with one index those count that are reported now, else the newest: the others were
        exchanged. If several are, there are several machines of this name."""
        by_index: dict[str, list[_Gpu]] = {}
        for gpu in self.gpus:
            by_index.setdefault(gpu.index, []).append(gpu)
        kept = [[gpu for gpu in found if gpu.is_reported] or found[-1:] for found in by_index.values()]
        self.gpus = [gpu for found in kept for gpu in found]
        if self.state == "up" and not self.detail and any(len(found) > 1 for found in kept):
            self.detail = "several machines or containers report under this name"


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
    names = NodeNames(machines)
    nodes: dict[str, _Node] = {}
    former: dict[str, _Node] = {}
    holders: list[HolderJson] = []
    alerts: list[FleetAlertJson] = []
    parts = [(run, part) for run in runs for part in run.parts]
    # What was said last counts.
    parts.sort(key=lambda item: item[1].updated or 0.0)
    for run, part in parts:
        is_former = not run.is_live and (part.updated is None or part.updated < now - KNOWN_DAYS * DAY)
        name = names.find(part.host, run)
        node = (former if is_former else nodes).setdefault(name, _Node(name))
        _take_part(node, run, part, holders, now)
        if run.is_live:
            alerts += _list_alerts(node.name, run, part)
    for machine in machines:
        _take_machine(nodes, machine)
    idle = [node for name, node in former.items() if name not in nodes]
    for node in (*nodes.values(), *idle):
        node.settle()
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
        "idle": [_describe_idle(node) for node in sorted(idle, key=lambda node: -(node.seen or 0.0))[:MOST_NODES]],
        "holders": holders,
        "alerts": alerts[:MOST_ALERTS],
        "alerts_total": len(alerts),
        "capacity": _count(described),
        "simulated": any(gpu.simulated for node in (*shown, *idle) for gpu in node.gpus),
    }


class NodeNames:
    """What hosts are called by who asks: machines of `--host` may have other names here, or the same name there."""

    def __init__(self, machines: Sequence[MachineNow]) -> None:
        self._hosts = {machine.state.name: machine.state.host for machine in machines if machine.state.host}
        self._names = {host: name for name, host in reversed(self._hosts.items())}

    def find(self, host: str, run: FleetRun | None = None) -> str:
        """`run` is one that was there: if its machine calls itself so, it is that one."""
        if run is not None:
            name = machine_of(run.key, self._hosts)
            if name and self._hosts[name] == host:
                return name
        return self._names.get(host, host)


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
        gpu = node.gpu(use.number, use.uuid)
        gpu.name = use.name or gpu.name
        gpu.simulated = gpu.simulated or use.simulated
        if not run.is_live:
            continue
        gpu.is_reported = True
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
        gpu = node.gpu(read.index, read.uuid)
        gpu.name, gpu.simulated = read.name or gpu.name, gpu.simulated or read.simulated
        gpu.is_reported = True
        if machine.is_current:
            gpu.measured = True
            gpu.values = {name: value for name, value in read.values.items() if name in METRICS} or gpu.values
            gpu.problem = read.problem


def _add_days(
    nodes: Mapping[str, _Node],
    names: NodeNames,
    parts: Sequence[tuple[FleetRun, HostPart]],
    window: str,
    now: float,
) -> None:
    first, last = find_dates(window, now)
    for run, part in parts:
        node = nodes.get(names.find(part.host, run))
        if node is None:
            continue
        for use in part.gpus:
            found = use.days.between(first, last)
            # Of one that was exchanged nothing is shown any more.
            gpu = node.find(use.number, use.uuid) if found is not None else None
            if found is not None and gpu is not None:
                gpu.total = gpu.total or GpuDay()
                gpu.total.add(found)


def find_dates(period: str, until: float) -> tuple[str, str]:
    """The first and the last day (UTC) of the period that ends with the day of `until`."""
    return date_of(until - (PERIODS[period] - 1) * DAY), date_of(until)


def _describe_idle(node: _Node) -> IdleNodeJson:
    return {
        "name": node.name,
        "rack": node.rack,
        "model": _list_models(node.gpus),
        "gpus": sum(":" not in gpu.index for gpu in node.gpus),
        "seen": node.seen,
        "simulated": any(gpu.simulated for gpu in node.gpus),
    }


def _list_models(gpus: Iterable[_Gpu]) -> str:
    return ", ".join(dict.fromkeys(gpu.name for gpu in gpus if gpu.name))


def _describe(node: _Node, window: str, idle_percent: float) -> FleetNodeJson:
    gpus = sorted(node.gpus, key=lambda gpu: (natural_key(gpu.index), gpu.uuid))
    return {
        "name": node.name,
        "rack": node.rack,
        "state": node.state,
        "detail": node.detail,
        "seen": node.seen,
        "model": _list_models(gpus),
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
