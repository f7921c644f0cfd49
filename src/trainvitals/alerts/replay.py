"""Today's rules over a recorded run: what would have fired, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from trainvitals.alerts import builtin
from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.points import EventPoints, life_point
from trainvitals.alerts.rules import Rule
from trainvitals.journal.documents.cause import STALLED, Cause
from trainvitals.journal.documents.events import ProcessEnd, ProcessEvent, Stall
from trainvitals.journal.documents.rows import EventRow
from trainvitals.journal.documents.run import BAD_ENDS, TRAINING
from trainvitals.journal.encoding import TimeParser
from trainvitals.journal.identity import Participant, gpu_key, subject_of
from trainvitals.prices import NO_PRICES, Prices

TICK_SECONDS = 1.0
TABLES = ("gpu", "system", "process", "training", "openmetrics")
_STATES = {
    "stalled": "stalled",
    "hung": "hung",
    "recovered": "running",
    "rank_started": "running",
    "rank_ended": "finished",
    "rank_lost": "killed",
}
"""The state of a participant by an event."""


def replay(
    rules: Iterable[Rule],
    rows: Callable[[str], Iterable[Mapping[str, Any]]],
    events: Iterable[EventRow],
    context: Mapping[str, Any],
    *,
    baseline: Callable[[str, float], float | None] | None = None,
    world_size: int = 1,
    held_gpus: Collection[str] | None = None,
    prices: Prices = NO_PRICES,
) -> Iterator[Change]:
    """Changes in order of time, pending ones left out. `rows(table)` gives the lines of a table; `baseline` another
    run's value at a step; `held_gpus` are the UUIDs of the GPUs that the run held, None if that is not known."""
    engine = Engine(rules, context=context, enrich=partial(builtin.enrich, prices=prices), baseline=baseline)
    events = list(events)
    world_size = max(world_size, _count_participants(events))
    streams = [_in_order(_points(table, rows(table), held_gpus)) for table in TABLES]
    streams += [_in_order(_event_points(events)), _in_order(_life_points(events, world_size))]
    next_tick: float | None = None
    last: Point | None = None
    for point in heapq.merge(*streams, key=lambda item: item.time):
        while next_tick is not None and next_tick < point.time:
            yield from _without_pending(engine.tick(next_tick))
            # Over a long silence a tick a second would take longer than the silence is worth.
            next_tick = max(next_tick + TICK_SECONDS, min(point.time - 600.0, next_tick + 3600.0))
        if next_tick is None:
            next_tick = point.time + TICK_SECONDS
        yield from _without_pending(engine.feed(point))
        last = point
    if last is not None:
        yield from _without_pending(engine.tick(last.time + TICK_SECONDS))


def _count_participants(events: Iterable[EventRow]) -> int:
    started = (row for row in events if row.event == "rank_started" and row.details(ProcessEvent).kind == TRAINING)
    return len({row.participant for row in started})


def _without_pending(changes: list[Change]) -> Iterator[Change]:
    return (change for change in changes if change.state != "pending")


def _in_order(points: Iterable[Point]) -> list[Point]:
    """Several participants or hosts write separate files, so a table as a whole is not in order."""
    return sorted(points, key=lambda point: point.time)


def _points(table: str, rows: Iterable[Mapping[str, Any]], held_gpus: Collection[str] | None) -> Iterator[Point]:
    times = TimeParser()
    for row in rows:
        micros = times.parse(str(row.get("timestamp")))
        if micros is None:
            continue
        step = row.get("step")
        labels = subject_of(table, row)
        if table == "gpu" and (held_gpus is not None or row.get("simulated")):
            held = row.get("simulated") or gpu_key(row) in (held_gpus or ())
            row = {**row, "held_by_run": float(bool(held))}
        yield Point(table, labels, row, micros / 1e6, step if isinstance(step, int) else None)


def _event_points(rows: Iterable[EventRow]) -> Iterator[Point]:
    points = EventPoints()
    return (points.take(row, row.seconds) for row in rows if row.seconds is not None)


class _Stall(NamedTuple):
    """A participant that has stopped stepping."""

    state: str
    cause: Cause
    noticed: float
    silence: float
    """How long it had been silent when it was noticed."""


def _life_points(events: Iterable[EventRow], world_size: int) -> Iterator[Point]:
    """The states of the participants from the events, as the agent saw them then: a stall for as long as it lasted."""
    stalls: dict[Participant, _Stall] = {}
    for row in events:
        when, participant = row.seconds, row.participant or Participant()
        state = _STATES.get(row.event)
        if row.event == "run_ended" and world_size == 1 and (end := row.details(ProcessEnd).status) in BAD_ENDS:
            state = end
        if when is None or state is None:
            continue
        began = stalls.pop(participant, None)
        if began is not None:
            yield from _last(participant, began, world_size, when)
        cause = row.cause or Cause(detail=row.message)  # an event of an older version has a sentence only
        if row.event == "hung" and row.cause is None:
            cause = began.cause if began is not None else Cause(kind=STALLED)
        silence = row.details(Stall).silent_seconds or 0.0
        yield life_point(participant, state, cause, silence, world_size, when)
        if state in ("stalled", "hung"):
            stalls[participant] = _Stall(state, cause, when, silence)


def _last(participant: Participant, stall: _Stall, world_size: int, until: float) -> Iterator[Point]:
    """A stall continues: once a second for a minute, and then less often."""
    when = stall.noticed + 1.0
    while when < until:
        silence = stall.silence + when - stall.noticed
        yield life_point(participant, stall.state, stall.cause, silence, world_size, when)
        when += 1.0 if when < stall.noticed + 60.0 else 30.0
