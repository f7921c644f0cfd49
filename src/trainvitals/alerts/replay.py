"""Today's rules over a recorded run: what would have fired, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainvitals.alerts import builtin
from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.rules import Rule
from trainvitals.journal.encoding import TimeParser

TICK_SECONDS = 1.0
TABLES = ("gpu", "system", "process", "training", "openmetrics")
_LABELS = {"gpu": ("gpu_index", "gpu_uuid"), "process": ("rank",)}


def replay(
    rules: Iterable[Rule],
    rows: Callable[[str], Iterable[Mapping[str, Any]]],
    events: Iterable[Mapping[str, Any]],
    context: Mapping[str, Any],
) -> Iterator[Change]:
    """Changes in order of time, pending ones left out. `rows(table)` gives the lines of a table."""
    engine = Engine(rules, context=context, enrich=builtin.enrich)
    streams = [_in_order(_points(table, rows(table))) for table in TABLES]
    streams.append(_in_order(_event_points(events)))
    next_tick: float | None = None
    last: Point | None = None
    for point in heapq.merge(*streams, key=lambda item: item.time):
        while next_tick is not None and next_tick < point.time:
            yield from _told(engine.tick(next_tick))
            # Over a long silence a tick a second would take longer than the silence is worth.
            next_tick = max(next_tick + TICK_SECONDS, min(point.time - 600.0, next_tick + 3600.0))
        if next_tick is None:
            next_tick = point.time + TICK_SECONDS
        yield from _told(engine.feed(point))
        last = point
    if last is not None:
        yield from _told(engine.tick(last.time + TICK_SECONDS))


def _told(changes: list[Change]) -> Iterator[Change]:
    return (change for change in changes if change.state != "pending")


def _in_order(points: Iterable[Point]) -> list[Point]:
    """Several ranks or hosts write files of their own, so a table as a whole is not in order."""
    return sorted(points, key=lambda point: point.time)


def _points(table: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    times = TimeParser()
    for row in rows:
        micros = times.parse(str(row.get("timestamp")))
        if micros is None:
            continue
        step = row.get("step")
        if table == "training":
            labels: Mapping[str, Any] = {"rank": row.get("rank", 0)}
        else:
            labels = {key: row[key] for key in _LABELS.get(table, ()) if key in row}
        yield Point(table, labels, row, micros / 1e6, step if isinstance(step, int) else None)


def _event_points(rows: Iterable[Mapping[str, Any]]) -> Iterator[Point]:
    """Events, and what they say about the ranks' lives."""
    times = TimeParser()
    seen: dict[str, tuple[int, float]] = {}
    states = {"stalled": "stalled", "hung": "hung", "recovered": "running", "rank_started": "running"}
    for row in rows:
        micros = times.parse(str(row.get("timestamp")))
        if micros is None:
            continue
        name, when = str(row.get("event")), micros / 1e6
        count, before = seen.get(name, (0, 0.0))
        seen[name] = (count + 1, when)
        values: dict[str, Any] = {
            "total": float(count + 1),
            "message": str(row.get("message") or ""),
            "severity": str(row.get("severity") or "info"),
        }
        if count:
            values["interval"] = when - before
        yield Point("event", {"event": name}, values, when)
        data = row.get("data") or {}
        state = "killed" if name == "rank_lost" else states.get(name)
        if state is not None and isinstance(data, Mapping):
            yield Point(
                "run",
                {"rank": row.get("rank", 0)},
                {
                    "state": state,
                    "cause": str(row.get("message") or ""),
                    "seconds_since_step": float(data.get("silent_seconds") or 0.0),
                    "world_size": 1.0,
                },
                when,
            )
