"""Which nodes fail or slow others down, over weeks: by alerts that speak of the machine and by deaths of runs, each
with its evidence. Tested in tests/views/data/test_fleet.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainvitals.conditions import Conditions
from trainvitals.journal.contracts import AlertTally
from trainvitals.journal.documents import cause as causes
from trainvitals.journal.documents.rows import SEVERITIES
from trainvitals.journal.documents.run import BAD_ENDS
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import Participant, gpu_number
from trainvitals.safe_text import one_line
from trainvitals.views.data.fleet import NodeNames
from trainvitals.views.data.fleet_runs import FleetRun
from trainvitals.views.data.machines import MachineNow
from trainvitals.views.data.shapes import FaultJson, FaultyNodeJson, FleetFaultsJson

POINTS = {"info": 1, "warning": 2, "critical": 5}
"""For each day on which an alert of this severity fired."""
DEATH_POINTS = 5
MOST_NODES = 200
MOST_DEATHS = 20
"""Of one node that are shown."""
OF_PROGRAM_OR_PERSON = frozenset(
    {
        *(causes.EXCEPTION, causes.EXIT_CODE, causes.INTERRUPTED, causes.CUT_OFF, causes.OTHER),
        *(causes.TIME_LIMIT, causes.PREEMPTED, causes.CANCELLED, causes.REQUEUED, causes.CPU_LIMIT),
    }
)
"""Why a run may end badly through no fault of its node."""


@dataclass(slots=True)
class _Fault:
    severity: str
    title: str
    days: int = 0
    times: int = 0
    gpus: dict[str, None] = field(default_factory=dict)
    last: float = 0.0
    message: str = ""
    key: str = ""
    name: str = ""


@dataclass(slots=True)
class _Node:
    name: str
    rack: str = ""
    faults: dict[str, _Fault] = field(default_factory=dict)
    deaths: list[tuple[float, FleetRun, str]] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(POINTS[fault.severity] * fault.days for fault in self.faults.values()) + DEATH_POINTS * len(
            self.deaths
        )


def list_rules(conditions: Conditions) -> dict[str, str]:
    """Those that speak of a machine, with their titles."""
    return {row.id: row.title for row in conditions if row.speaks_of_node}


def describe_faults(
    runs: Sequence[FleetRun],
    tallies: Iterable[AlertTally],
    conditions: Conditions,
    machines: Sequence[MachineNow] = (),
    *,
    days: int = 28,
    now: float | None = None,
) -> FleetFaultsJson:
    """`tallies` are of the rules of `list_rules` in these days. The worst node comes first."""
    now = time.time() if now is None else now
    names, titles = NodeNames(machines), list_rules(conditions)
    by_key = {run.key: run for run in runs}
    nodes: dict[str, _Node] = {}

    def find(host: str, run: FleetRun) -> _Node:
        name = names.find(host, run)
        return nodes.setdefault(name, _Node(name))

    for tally in tallies:
        run = by_key.get(tally.key)
        host = _host_of(tally, run)
        if run is not None and host:
            _take(find(host, run), tally, run, titles)
    for run in runs:
        for moment, host, why in _list_deaths(run, now - days * 86_400):
            find(host, run).deaths.append((moment, run, why))
        for part in run.parts:
            name = names.find(part.host, run)
            if name in nodes and part.rack:
                nodes[name].rack = part.rack
    seen = {names.find(host, run) for run in runs for host in run.hosts}
    ordered = sorted((node for node in nodes.values() if node.points), key=lambda node: (-node.points, node.name))
    return {
        "days": days,
        "since": now - days * 86_400,
        "nodes": [_describe(node) for node in ordered[:MOST_NODES]],
        "left_out": max(len(ordered) - MOST_NODES, 0),
        "without": len(seen - {node.name for node in ordered}),
        "simulated": any(run.info.simulated for run in runs),
    }


def _host_of(tally: AlertTally, run: FleetRun | None) -> str:
    """Where it happened: an alert about a rank is of the rank's host, whoever noticed it."""
    labels = tally.newest.labels
    if run is not None and "rank" in labels:
        host = run.host_of(Participant.of(labels))
        if host is not None:
            return host
    return one_line(tally.newest.host or (run.info.file.host_name if run is not None else ""))[:200]


def _take(node: _Node, tally: AlertTally, run: FleetRun, titles: Mapping[str, str]) -> None:
    row = tally.newest
    severity = row.severity if row.severity in SEVERITIES else "warning"
    fault = node.faults.setdefault(row.rule, _Fault(severity, titles.get(row.rule, row.rule)))
    fault.severity = max(fault.severity, severity, key=SEVERITIES.index)
    fault.times += tally.count
    # Several GPUs or runs may share a day; it cannot have had more than the most of them.
    fault.days = max(fault.days, tally.days)
    if "gpu_index" in row.labels:
        fault.gpus[gpu_number(row.labels)] = None
    if row.seconds >= fault.last:
        fault.last, fault.message = row.seconds, one_line(row.message)[:500]
        fault.key, fault.name = run.key, run.info.name


def _list_deaths(run: FleetRun, since: float) -> Iterable[tuple[float, str, str]]:
    for attempt in run.info.file.attempts:
        ended, cause = parse_time(attempt.ended), attempt.cause
        if attempt.status not in BAD_ENDS or ended is None or ended < since:
            continue
        if cause is None or cause.kind in OF_PROGRAM_OR_PERSON or cause.is_interruption or cause.signal == "SIGTERM":
            continue
        host = run.host_of(cause.participant) if cause.rank is not None else None
        host = host or attempt.host or run.info.file.host_name
        if host:
            yield ended, host, one_line(str(cause))[:300]


def _describe(node: _Node) -> FaultyNodeJson:
    faults = sorted(
        node.faults.items(),
        key=lambda item: (-SEVERITIES.index(item[1].severity), -item[1].days, -item[1].times, item[0]),
    )
    deaths = sorted(node.deaths, key=lambda item: -item[0])
    moments = [fault.last for fault in node.faults.values()] + [moment for moment, _, _ in deaths]
    return {
        "name": node.name,
        "rack": node.rack,
        "points": node.points,
        "last": max(moments),
        "faults": [_describe_fault(rule, fault) for rule, fault in faults],
        "deaths": len(deaths),
        "died": [
            {"key": run.key, "name": run.info.name, "time": moment, "cause": why}
            for moment, run, why in deaths[:MOST_DEATHS]
        ],
    }


def _describe_fault(rule: str, fault: _Fault) -> FaultJson:
    return {
        "rule": rule,
        "title": fault.title,
        "severity": fault.severity,
        "days": fault.days,
        "times": fault.times,
        "gpus": list(fault.gpus),
        "last": fault.last,
        "message": fault.message,
        "key": fault.key,
        "name": fault.name,
    }
