"""Points of a run of MLflow: read from requests, written as rows, the newest of each metric.
Tested in tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from trainvitals.journal.encoding import number, parse_time, spell
from trainvitals.trackers.intake.mlflow_documents import Given, invalid
from trainvitals.trackers.intake.recent_points import RecentPoints
from trainvitals.trackers.intake.runs import IntakeRun


class LoggedPoint(NamedTuple):
    """One value of a metric."""

    name: str
    value: float
    milliseconds: int
    step: int


def read_point(item: Given) -> LoggedPoint:
    """Raises RequestRefused."""
    value, moment, step = number(item.get("value")), number(item.get("timestamp")), number(item.get("step", 0))
    if not isinstance(item.get("key"), str) or value is None:
        raise invalid("a metric needs a key and a value that is a number")
    if moment is None or not 0 <= moment < 1e14:
        raise invalid("a metric needs a timestamp in milliseconds since 1970")
    if step is None or math.isnan(step) or abs(step) >= 2**53:
        raise invalid("the step of a metric is a whole number")
    return LoggedPoint(item["key"], value, int(moment), int(step))


def append_points(run: IntakeRun, points: Iterable[LoggedPoint]) -> None:
    """Those that did not come before, as rows: values of one step and moment are one."""
    recent, latest = _recent(run), read_latest(run)
    rows: dict[tuple[int, int], dict[str, float]] = {}
    for name, value, moment, step in points:
        if not recent.add(run.writer.name_of(name), value, moment * 1000, step):
            continue  # sent again: its answer was lost
        row = rows.setdefault((step, moment), {})
        if name in row:  # two values of one moment are two rows
            run.writer.append(row, step=step, time=moment / 1000)
            row.clear()
        row[name] = value
        _note_latest(latest, name, value, moment, step)
    for (step, moment), row in rows.items():
        run.writer.append(row, step=step, time=moment / 1000)


def _recent(run: IntakeRun) -> RecentPoints:
    known: RecentPoints | None = run.tables.get("recent")
    if known is None:
        known = run.tables["recent"] = RecentPoints(run.folder)
    return known


def read_latest(run: IntakeRun) -> dict[str, Any]:
    """By metric: value, time and step of its newest point, which is the one with the highest step."""
    known: dict[str, Any] | None = run.tables.get("latest")
    if known is None:
        from trainvitals.journal.reader import RunReader

        known = run.tables["latest"] = {}
        ours = {mine: theirs for theirs, mine in run.writer.origin.renamed.items()}
        for row in RunReader(run.folder).rows("training"):
            moment = round((parse_time(row.get("timestamp")) or 0.0) * 1000)
            for name, item in row.items():
                if name not in ("timestamp", "step", "rank", "role", "attempt") and (value := number(item)) is not None:
                    _note_latest(known, ours.get(name, name), value, moment, row.get("step", 0))
    return known


def _note_latest(latest: dict[str, Any], name: str, value: float, moment: int, step: int) -> None:
    known = latest.get(name)
    if known is None or (step, moment) >= (known[2], known[1]):
        latest[name] = [spell(value), moment, step]
