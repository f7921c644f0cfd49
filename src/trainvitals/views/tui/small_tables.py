"""Events and alerts of a run: tables small enough to be kept in memory.
Tested in tests/views/tui/test_shown_run.py."""

from __future__ import annotations

from typing import Any

from trainvitals.alerts import records
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.rows import AlertRow, EventRow


class SmallTables:
    """In order of time. Parsed again only when there are more lines."""

    def __init__(self, reader: Reader) -> None:
        self.events: tuple[EventRow, ...] = ()
        self.alert_changes: tuple[AlertRow, ...] = ()
        self.active_alerts: tuple[AlertRow, ...] = ()
        """The active alerts, worst first."""
        self._follower = reader.follow(("events", "alerts"))
        self._events: list[dict[str, Any]] = []
        self._alerts: list[dict[str, Any]] = []

    def poll(self) -> None:
        """Read what is new."""
        new = self._follower.poll()
        events = [row for file, row in new if file.table == "events"]
        alerts = [row for file, row in new if file.table == "alerts"]
        if events:
            self._events = _sort(self._events + events)
            self.events = tuple(map(EventRow.parse, self._events))
        if alerts:
            self._alerts = _sort(self._alerts + alerts)
            rows = list(map(AlertRow.parse, self._alerts))
            self.alert_changes, self.active_alerts = tuple(records.changes(rows)), tuple(records.current(rows))


def _sort(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["timestamp"]))
