"""What the API says of a run, as plain values: made from the folder alone, so that a report says the same.

Every function takes a `RunReader` (or several) and gives a dict that `wire.encode` makes JSON of.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainvitals import catalog
from trainvitals.alerts import records
from trainvitals.analysis.comparison import flatten
from trainvitals.analysis.health import judge_health
from trainvitals.analysis.metric_sense import better
from trainvitals.analysis.progress import PACE_STEPS, find_pace, find_progress, find_step_time
from trainvitals.journal import folder as run_folder
from trainvitals.journal.console import list_consoles
from trainvitals.journal.encoding import TimeParser, number
from trainvitals.journal.reader import RunInfo, RunReader
from trainvitals.journal.summaries import MetricSummary
from trainvitals.views import panels
from trainvitals.views.data.series import layer_measures, list_histograms
from trainvitals.views.data.texts import stack_files
from trainvitals.views.data.wire import Answer

MAX_NAMES = 20_000
MAX_SUMMARY = 200


# -- what is known without a run


def describe_panels() -> Answer:
    """The dashboard's panels, their groups, and every metric of the catalog."""
    return {
        "groups": [{"id": name, "title": title} for name, title in panels.GROUPS],
        "panels": [_describe_panel(panel) for panel in panels.PANELS],
        "metrics": {
            table: [
                {"name": m.name, "unit": m.unit, "help": m.help, "kind": m.kind, "aliases": list(m.aliases)}
                for m in rows
            ]
            for table, rows in catalog.TABLES.items()
        },
        "thresholds": [
            {"table": table, "metric": name, "severity": t.severity, "value": t.value, "below": t.below}
            for (table, name), found in panels.THRESHOLDS.items()
            for t in found
        ],
    }


def _describe_panel(panel: panels.Panel) -> Answer:
    return {
        "id": panel.id,
        "title": panel.title,
        "group": panel.group,
        "table": panel.table,
        "metrics": list(panel.metrics),
        "importance": panel.importance,
        "chart": panel.chart,
        "by": list(panel.by),
        "limit": panel.limit,
        "low": panel.low,
        "high": panel.high,
        "log": panel.log_scale,
        "smooth": panel.smooth,
        "unit": panel.unit,
        "rate": panel.is_rate,
        "thresholds": [{"severity": t.severity, "value": t.value, "below": t.below} for t in panel.thresholds],
    }


# -- one run


def describe_row(info: RunInfo, key: str, statuses: Sequence[Mapping[str, Any]]) -> Answer:
    """A run on one line of the table of runs: run.json and what the agents said, nothing else is read."""
    run = info.details
    said = newest_status(info, statuses)
    values: dict[str, Any] = {}
    summary = said.get("summary")
    if isinstance(summary, Mapping):
        for name, item in list(summary.items())[:MAX_SUMMARY]:
            if isinstance(item, Mapping) and number(item.get("last")) is not None:
                values[str(name)] = item["last"]
    config = run.get("config")
    return {
        "key": key,
        "id": info.id,
        "name": info.name,
        "project": info.project,
        "status": info.status,
        "live": info.is_live,
        "cause": info.cause,
        "kind": str(run.get("kind") or ""),
        "started": info.started,
        "ended": info.ended,
        "seconds": _seconds(info),
        "step": _last_step(run, said),
        "attempt": info.attempt,
        "simulated": info.simulated,
        "tags": [str(tag) for tag in run.get("tags") or []],
        "host": str((run.get("host") or {}).get("name") or "") if isinstance(run.get("host"), Mapping) else "",
        "config": flatten(config) if isinstance(config, Mapping) else {},
        "summary": values,
        "energy_joules": _energy(statuses),
    }


def newest_status(info: RunInfo, statuses: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the agents said of the newest attempt; of several hosts, the one that follows the lowest rank."""
    current = [said for said in statuses if said.get("attempt") in (None, info.attempt)]

    def lowest(said: Mapping[str, Any]) -> int:
        ranks = said.get("ranks")
        numbers = [int(rank) for rank in ranks if str(rank).isdecimal()] if isinstance(ranks, Mapping) else []
        return min(numbers, default=1 << 30)

    return min(current, key=lowest, default={})


def describe_run(reader: RunReader, key: str, prices: Mapping[str, Any] | None = None) -> Answer:
    """Everything about a run but its series."""
    info = reader.info
    statuses = run_folder.read_statuses(reader.folder)
    summary = reader.summary()
    alerts = reader.alerts()
    firing = [row for row in records.current(alerts) if not records.is_silenced(row, time.time())]
    latest = {name: item.last for name, item in summary.items()}
    row = describe_row(info, key, statuses)
    if row["step"] is None:
        row["step"] = max((item.last_step for item in summary.values() if item.last_step is not None), default=None)
    row["summary"] = dict(list(latest.items())[:MAX_SUMMARY])
    ranks = _ranks(statuses)
    pace = _pace(ranks, reader, info)
    progress = find_progress(info.details.get("config") or {}, row["step"], latest.get("epoch"), pace, info.is_live)
    damage = reader.damage()
    gpu_seconds = _gpu_seconds(reader, info)
    return {
        **row,
        "health": judge_health(info.status, info.cause, firing, latest)._asdict(),
        "progress": progress._asdict(),
        "step_seconds": find_step_time(latest, pace),
        "cost": find_cost(prices or {}, gpu_seconds, row["energy_joules"]),
        "gpu_seconds": gpu_seconds,
        "metrics": describe_metrics(summary),
        "tables": {table: _describe_table(reader, table) for table in reader.tables()},
        "layers": layer_measures(reader.names()),
        "histograms": list_histograms(reader.folder),
        "ranks": ranks,
        "firing": firing,
        "damage": asdict(damage),
        "details": _details(info),
        "stacks": [path.name for path in stack_files(reader.folder)],
        "consoles": [path.name for path in list_consoles(reader.folder)],
    }


def describe_metrics(summary: Mapping[str, MetricSummary]) -> list[Answer]:
    """Every training metric with its last, lowest and highest value."""
    return [
        {"name": name, **asdict(item), "better": better(name), **unit_of("training", name)}
        for name, item in list(summary.items())[:MAX_NAMES]
    ]


def unit_of(table: str, name: str) -> Answer:
    metric = catalog.find(table, name)
    return {"unit": metric.unit if metric else "", "help": metric.help if metric else ""}


def _describe_table(reader: RunReader, table: str) -> Answer:
    names = reader.names(table)
    return {"names": names[:MAX_NAMES], "left_out": max(len(names) - MAX_NAMES, 0), "labels": reader.labels(table)}


def _details(info: RunInfo) -> Answer:
    hidden = ("config", "tags", "status", "cause")
    return {
        **{key: value for key, value in info.details.items() if key not in hidden},
        "config": info.details.get("config") or {},
        "folder": str(info.folder),
    }


def _last_step(run: Mapping[str, Any], said: Mapping[str, Any]) -> int | None:
    steps = [run.get("last_step")]
    ranks = said.get("ranks")
    if isinstance(ranks, Mapping):
        steps += [rank.get("step") for rank in ranks.values() if isinstance(rank, Mapping)]
    return max((step for step in steps if isinstance(step, int) and not isinstance(step, bool)), default=None)


def _seconds(info: RunInfo) -> float | None:
    started, ended = parse_time(info.started), parse_time(info.ended)
    if started is None or (ended is None and not info.is_live):
        return None
    return max((ended if ended is not None else time.time()) - started, 0.0)


def parse_time(text: object) -> float | None:
    """Seconds since 1970, or None."""
    micros = TimeParser().parse(text) if isinstance(text, str) else None
    return micros / 1e6 if micros is not None else None


def _ranks(statuses: Iterable[Mapping[str, Any]]) -> list[Answer]:
    found = []
    for said in statuses:
        ranks = said.get("ranks")
        for name, rank in ranks.items() if isinstance(ranks, Mapping) else ():
            if isinstance(rank, Mapping) and str(name).isdecimal():  # `command0` is the program around rank 0
                wanted = ("pid", "state", "alive", "step", "step_seconds", "last_log", "lines", "exit_code", "cause")
                found.append({"rank": str(name), "host": said.get("host"), **{k: rank[k] for k in wanted if k in rank}})
    return sorted(found, key=lambda rank: (len(rank["rank"]), rank["rank"]))


def _pace(ranks: Sequence[Mapping[str, Any]], reader: RunReader, info: RunInfo) -> float | None:
    """Seconds per step of one rank by the clock: of a live run from its newest steps, else what the agent measured of
    the slowest rank, else from the newest steps that are not sealed, else from the beginning and end of the run."""
    known = [rank["step_seconds"] for rank in ranks if isinstance(rank.get("step_seconds"), (int, float))]
    if known and not info.is_live:
        return float(max(known))
    pace = find_pace(reader.newest_steps(PACE_STEPS))
    if pace is not None or known:
        return pace if pace is not None else float(max(known))
    started, ended = parse_time(info.started), parse_time(info.ended)
    step = info.details.get("last_step")
    if started is not None and ended is not None and isinstance(step, int) and step > 0:
        return (ended - started) / step
    return None


def _energy(statuses: Iterable[Mapping[str, Any]]) -> float | None:
    """Joules of all GPUs, as the agents added it up; None if no card told."""
    found = [
        float(gpu["energy_used_joules"])
        for said in statuses
        if isinstance(said.get("gpu_summary"), Mapping)
        for gpu in said["gpu_summary"].values()
        if isinstance(gpu, Mapping) and isinstance(gpu.get("energy_used_joules"), (int, float))
    ]
    return sum(found) if found else None


def _gpu_seconds(reader: RunReader, info: RunInfo) -> float | None:
    """GPUs times the time of the run; None without GPUs or a known end."""
    seconds = _seconds(info)
    count = len(reader.labels("gpu"))
    return seconds * count if seconds is not None and count else None


def find_cost(prices: Mapping[str, Any], gpu_seconds: float | None, energy_joules: float | None) -> Answer | None:
    """What the run cost so far, where a price is set: GPU hours, else energy."""
    hour, kwh, currency = prices.get("gpu_hour"), prices.get("kwh"), prices.get("currency") or ""
    if hour is not None and gpu_seconds is not None:
        return {"amount": gpu_seconds / 3600 * hour, "currency": currency, "of": "GPU hours"}
    if kwh is not None and energy_joules is not None:
        return {"amount": energy_joules / 3.6e6 * kwh, "currency": currency, "of": "energy"}
    return None


# -- lines


def describe_events(reader: RunReader, limit: int = 1000, text: str = "") -> Answer:
    """The newest events, newest first, and how many there are."""
    rows = reader.events()
    if text:
        wanted = text.lower()
        rows = [row for row in rows if any(wanted in str(value).lower() for value in row.values())]
    return {"total": len(rows), "events": rows[::-1][:limit]}


def describe_alerts(reader: RunReader, limit: int = 1000) -> Answer:
    """What fires now, and every change and delivery, newest first."""
    rows = reader.alerts()
    changes = records.changes(rows)
    deliveries = [row for row in rows if "delivery" in row or "action" in row]
    return {
        "firing": records.current(rows),
        "total": len(changes),
        "history": changes[::-1][:limit],
        "deliveries": deliveries[::-1][:limit],
    }
