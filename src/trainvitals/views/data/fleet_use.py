"""Who used the GPUs: hours, how busy, idle, energy and cost over some days, by user, project, run or node.
Tested in tests/views/data/test_fleet.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from trainvitals.analysis.gpu_days import DAY, GpuDay
from trainvitals.journal.encoding import parse_time
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.views.data.cost import find_co2, find_cost
from trainvitals.views.data.fleet import PERIODS, NodeNames, find_dates
from trainvitals.views.data.fleet_runs import FleetRun, HostPart
from trainvitals.views.data.machines import MachineNow
from trainvitals.views.data.shapes import FleetUseJson, UseBy, UseRowJson

GROUPINGS: tuple[UseBy, ...] = get_args(UseBy)
MOST_ROWS = 1_000


@dataclass(slots=True)
class _Account:
    title: str
    key: str = ""
    total: GpuDay = field(default_factory=GpuDay)
    runs: set[str] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)
    cost: dict[str, float] = field(default_factory=dict)
    """By currency."""
    idle_cost: dict[str, float] = field(default_factory=dict)
    unpriced: bool = False

    def add(self, run: str, gpu: str, name: str, day: GpuDay, prices: Prices) -> None:
        self.runs.add(run)
        self.gpus.add(gpu)
        self.total.add(day)
        cost = find_cost(prices, [name], day.seconds, day.joules)
        if cost is None:
            self.unpriced = True
            return
        _add(self.cost, cost["currency"], cost["amount"])
        idle = find_cost(prices, [name], day.idle_seconds, day.idle_joules)
        if idle is not None:
            _add(self.idle_cost, idle["currency"], idle["amount"])

    def describe(self, prices: Prices) -> UseRowJson:
        total = self.total
        currency = next(iter(self.cost)) if len(self.cost) == 1 and not self.unpriced else None
        return {
            "title": self.title,
            "key": self.key,
            "runs": len(self.runs),
            "gpus": len(self.gpus),
            "gpu_seconds": total.seconds,
            "use_percent": total.use_percent,
            "idle_seconds": total.idle_seconds,
            "joules": total.joules,
            "idle_joules": total.idle_joules,
            "co2_kg": find_co2(prices, total.joules),
            "cost": self.cost[currency] if currency is not None else None,
            "idle_cost": self.idle_cost.get(currency) if currency is not None else None,
            "currency": currency or "",
        }


def describe_use(
    runs: Iterable[FleetRun],
    machines: Sequence[MachineNow] = (),
    *,
    period: str = "week",
    by: UseBy = "user",
    until: float | None = None,
    prices: Prices = NO_PRICES,
) -> FleetUseJson:
    """Of the GPUs that runs held, on the days that end with that of `until`; who used most comes first."""
    until = time.time() if until is None else until
    first, last = find_dates(period, until)
    names = NodeNames(machines)
    accounts: dict[str, _Account] = {}
    everything = _Account("")
    unmeasured = 0
    for run in runs:
        if not _overlaps(run, until, PERIODS[period]):
            continue
        found = False
        for part in run.parts:
            for use in part.gpus:
                day = use.days.between(first, last) if part.holds(use) else None
                if day is None:
                    continue
                found = True
                name, key = _name_account(run, part, by, names)
                account = accounts.setdefault(f"{name}\0{key}", _Account(name, key))
                for item in (account, everything):
                    item.add(run.key, f"{use.host}/{use.key}", use.name, day, prices)
        unmeasured += not found and any(part.holds(use) for part in run.parts for use in part.gpus)
    rows = sorted(accounts.values(), key=lambda account: (-account.total.seconds, account.title, account.key))
    return {
        "period": period,
        "by": by,
        "first": first,
        "last": last,
        "rows": [account.describe(prices) for account in rows[:MOST_ROWS]],
        "left_out": max(len(rows) - MOST_ROWS, 0),
        "total": everything.describe(prices),
        "unmeasured": unmeasured,
        "simulated": any(run.info.simulated for run in runs) if isinstance(runs, Sequence) else False,
    }


def _overlaps(run: FleetRun, until: float, days: int) -> bool:
    """Whether it may have lived in these days."""
    started, ended = parse_time(run.info.started), parse_time(run.info.ended)
    begin = (until // DAY - days + 1) * DAY
    if not run.is_live and ended is not None and ended < begin:
        return False
    return started is None or started < (until // DAY + 1) * DAY


def _name_account(run: FleetRun, part: HostPart, by: UseBy, names: NodeNames) -> tuple[str, str]:
    """A title, and the key of the run if it is one."""
    if by == "run":
        return run.info.name, run.key
    if by == "node":
        return names.find(part.host, run), ""
    return (run.user if by == "user" else run.info.project), ""


def _add(sums: dict[str, float], currency: str, amount: float) -> None:
    sums[currency] = sums.get(currency, 0.0) + amount
