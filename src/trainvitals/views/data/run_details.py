"""Everything about a run but its series, as plain values: the API and the report give the same.

Every function takes a `Reader` (or several) and gives a dict that `wire.encode` makes JSON of.
Tested in tests/views/web/test_app.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace

from trainvitals import catalog
from trainvitals.alerts import records
from trainvitals.analysis.findings import Curve
from trainvitals.analysis.metric_sense import better
from trainvitals.analysis.progress import PACE_STEPS, find_pace, find_progress, find_step_time
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.run import GitState
from trainvitals.journal.documents.status import RankStatus
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.summaries import MetricSummary
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.safe_text import one_line
from trainvitals.views.data.cost import add_details, find_co2, find_cost
from trainvitals.views.data.gpus import own_labels
from trainvitals.views.data.layers import layer_measures
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.patches import describe_patch
from trainvitals.views.data.run_rows import MAX_VALUES, ListedRun, describe_row, read_row_of
from trainvitals.views.data.shapes import (
    AlertsJson,
    AttemptJson,
    CostJson,
    EventsJson,
    Plain,
    RunJson,
    TableJson,
    UnitJson,
)

MAX_NAMES = 20_000
SUMMARY_PARTS = tuple(part.name for part in fields(MetricSummary))
COST_POINTS = 2000
"""Of the loss, to know what it costs to lower it."""


def describe_run(reader: Reader, key: str, prices: Prices = NO_PRICES) -> RunJson:
    """Everything about a run but its series."""
    info = reader.info
    statuses = reader.statuses()
    summary = reader.summary()
    latest = {name: item.last for name, item in summary.items()}
    row = read_row_of(reader, key)
    step = find_last_step(reader, row, summary)
    ranks = sorted(
        ((participant, item.host, rank) for item in statuses for participant, rank in item.participants().items()),
        key=lambda item: item[0],
    )
    lowest = [rank for participant, _, rank in ranks if participant.role == ranks[0][0].role]
    pace = _pace(lowest, reader, row)
    progress = find_progress(info.file.config or {}, step, latest.get("epoch"), pace, info.is_live)
    gpu_seconds = _gpu_seconds(reader, row)
    return {
        **describe_row(row),
        "step": step,
        "summary": dict(list(latest.items())[:MAX_VALUES]),
        "health": replace(row, last_values=latest).health._asdict(),
        "progress": progress._asdict(),
        "step_seconds": find_step_time(latest, pace),
        "cost": describe_cost(reader, row, prices, latest, progress.seconds_left),
        "co2_kg": find_co2(prices, row.energy_joules),
        "gpu_seconds": gpu_seconds,
        "metrics": describe_metrics(summary),
        "tables": {table: _describe_table(reader, table) for table in reader.tables()},
        "layers": layer_measures(reader.names()),
        "histograms": reader.histogram_names(),
        "ranks": [_describe_rank(*rank) for rank in ranks],
        "attempts": _describe_attempts(reader),
        "firing": [alert.as_json() for alert in row.firing],
        "damage": asdict(reader.damage()),
        "details": _details(info),
        "job_facts": info.file.placed.facts(),
        "stacks": [file.name for file in reader.texts("stack")],
        "consoles": [file.name for file in reader.texts("console")],
        "patch": describe_patch(reader),
        "benchmarks": reader.count_benchmarks(),
    }


def find_last_step(reader: Reader, row: ListedRun, summary: Mapping[str, MetricSummary]) -> int | None:
    """As the run noted it at its end, else of its newest line, which an agent may not have reported yet; where all is
    sealed, as the agents reported it."""
    newest = reader.newest_steps(1) if row.info.file.last_step is None else []
    if newest or row.last_step is not None:
        return newest[-1][0] if newest else row.last_step
    return max((item.last_step for item in summary.values() if item.last_step is not None), default=None)


def describe_metrics(summary: Mapping[str, MetricSummary]) -> list[Plain]:
    """Every training metric with its last, lowest and highest value."""
    return [
        {
            "name": name,
            **{part: getattr(item, part) for part in SUMMARY_PARTS},
            "better": better(name),
            **unit_of("training", name),
        }
        for name, item in list(summary.items())[:MAX_NAMES]
    ]


def unit_of(table: str, name: str) -> UnitJson:
    metric = catalog.find(table, name)
    return {"unit": metric.unit if metric else "", "help": metric.help if metric else ""}


def _describe_table(reader: Reader, table: str) -> TableJson:
    names = reader.names(table)
    return {"names": names[:MAX_NAMES], "left_out": max(len(names) - MAX_NAMES, 0), "labels": reader.labels(table)}


def _details(info: RunInfo) -> Plain:
    hidden = ("config", "tags", "status", "cause")
    return {
        **{key: value for key, value in info.file.as_json().items() if key not in hidden},
        "config": info.file.config or {},
        "folder": info.place,
    }


def _describe_rank(participant: Participant, host: str, rank: RankStatus) -> Plain:
    wanted = (
        *("pid", "state", "alive", "step", "step_seconds", "last_log", "lines", "exit_code", "cause"),
        *("phase", "phase_since"),
    )
    known = {key: value for key, value in rank.as_json().items() if key in wanted}
    return {**participant.labels, "rank": str(participant.rank), "host": host, **known}


def _describe_attempts(reader: Reader) -> list[AttemptJson]:
    attempts = reader.info.file.attempts
    first_steps = reader.first_steps() if attempts else {}
    return [
        {
            "number": attempt.number,
            "status": attempt.status,
            "started": attempt.started,
            "seconds": _seconds_between(attempt.started, attempt.ended),
            "first_step": first_steps.get(attempt.number or 0),
            "host": attempt.host,
            "cause": str(attempt.cause) if attempt.cause is not None else None,
        }
        for attempt in attempts
    ]


def _seconds_between(start: str | None, end: str | None) -> float | None:
    began, ended = parse_time(start), parse_time(end)
    return ended - began if began is not None and ended is not None else None


def _pace(ranks: Sequence[RankStatus], reader: Reader, row: ListedRun) -> float | None:
    """Seconds per step of one rank by the clock: of a live run from its newest steps, else what the agent measured of
    the slowest, else from the newest steps that are not sealed, else from the beginning and end of the run."""
    slowest = max((rank.step_seconds for rank in ranks if rank.step_seconds is not None), default=None)
    if slowest is not None and not row.info.is_live:
        return slowest
    pace = find_pace(reader.newest_steps(PACE_STEPS))
    if pace is not None or slowest is not None:
        return pace if pace is not None else slowest
    if row.started is not None and row.ended is not None and row.last_step:
        return (row.ended - row.started) / row.last_step
    return None


def describe_cost(
    reader: Reader, row: ListedRun, prices: Prices, latest: Mapping[str, float], seconds_left: float | None = None
) -> CostJson | None:
    """What the run cost so far and what follows from it; None without a price."""
    names = [str(labels.get("gpu_name") or "") for labels in own_labels(reader)]
    cost = find_cost(prices, names, row.seconds(), row.energy_joules)
    if cost is None:
        return None
    logged = catalog.find_spelling("training", "loss", latest)
    found = reader.series([logged], max_points=COST_POINTS, participants=lowest_of(reader)) if logged else []
    loss = Curve(found[0].x, found[0].y) if found else None
    return add_details(cost, row.seconds(), latest.get("epoch"), seconds_left, loss)


def _gpu_seconds(reader: Reader, row: ListedRun) -> float | None:
    """Its own GPUs times the time of the run; None without GPUs or a known end."""
    seconds = row.seconds()
    count = len(own_labels(reader))
    return seconds * count if seconds is not None and count else None


# -- lines


def describe_events(reader: Reader, limit: int = 1000, text: str = "") -> EventsJson:
    """The newest events, newest first, and how many there are."""
    rows = [row.as_json() for row in reader.events()]
    if text:
        wanted = text.lower()
        rows = [row for row in rows if any(wanted in str(value).lower() for value in row.values())]
    return {"total": len(rows), "events": rows[::-1][:limit]}


def describe_alerts(reader: Reader, limit: int = 1000) -> AlertsJson:
    """What fires now, and every change and delivery, newest first."""
    rows = reader.alerts()
    changes = records.changes(rows)
    deliveries = [row for row in rows if row.delivery is not None or row.action is not None]
    return {
        "firing": [row.as_json() for row in records.current(rows)],
        "total": len(changes),
        "history": [row.as_json() for row in changes[::-1][:limit]],
        "deliveries": [row.as_json() for row in deliveries[::-1][:limit]],
    }


def format_git(git: GitState) -> str:
    """Which code a run had: `1a2b3c4d5e6f on main, uncommitted changes`; empty outside of a repository."""
    if not git.commit:
        return ""
    branch = f" on {git.branch}" if git.branch else ""
    return one_line(f"{git.commit[:12]}{branch}{', uncommitted changes' if git.dirty else ''}")
