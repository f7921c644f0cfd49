"""What rules judge besides measurements: the lives of the participants, and events. The same live and in a replay.
Tested in tests/alerts/test_replay.py."""

from __future__ import annotations

from typing import Any

from trainvitals.alerts.engine import Point
from trainvitals.journal.documents.cause import INTERRUPTED, STALLED, Cause
from trainvitals.journal.documents.rows import EventRow
from trainvitals.journal.identity import Participant


def life_point(
    participant: Participant, state: str, cause: Cause | None, silence: float, world_size: int, when: float
) -> Point:
    """A participant is running, stalled, hung, finished, failed, killed or crashed, and why."""
    cause = cause or Cause(kind="")
    values = {
        "state": state,
        # The message of the rule has the rest about a stall.
        "cause": cause.detail if cause.kind == STALLED else str(cause),
        "cause_kind": INTERRUPTED if cause.is_interruption else cause.kind,
        "seconds_since_step": silence,
        "world_size": float(world_size),
    }
    return Point("run", participant.labels, values, when)


class EventPoints:
    """Events, with how many there were of each name and how long ago the one before was."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def take(self, row: EventRow, when: float) -> Point:
        count, before = self._seen.get(row.event, (0, 0.0))
        self._seen[row.event] = (count + 1, when)
        values: dict[str, Any] = {"total": float(count + 1), "message": row.message, "severity": row.severity}
        if count:
            values["interval"] = when - before
        return Point("event", {"event": row.event}, values, when)
