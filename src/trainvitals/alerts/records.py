"""The lines of `alerts_*.jsonl`: what they are called and how they are read back.

    {"timestamp": ..., "state": "firing", "rule": ..., "labels": {...}, ...}    an alert changed
    {"timestamp": ..., "outgoing": "...", "kind": "firing", "channels": [...]}  a message is to be sent
    {"timestamp": ..., "delivery": "...", "channel": ..., "result": ...}        what became of it
    {"timestamp": ..., "control": "silence", "rule": ..., "until": ...}         somebody asked for something
    {"timestamp": ..., "action": "stop", "rule": ..., "result": ...}            an action was taken

One writer per file: the agent of each host, every rank with Python rules, every command.
Tested in tests/alerts/test_records.py and test_session.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal import layout
from trainvitals.journal.documents.findings import Counts
from trainvitals.journal.documents.rows import SEVERITIES, AlertKey, AlertRow, new_alert_row
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import read_table
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

if TYPE_CHECKING:  # lists of runs read lines and need no engine
    from trainvitals.alerts.engine import Change

STATES = ("pending", "firing", "resolved", "silenced", "acknowledged")


def from_change(change: Change, host: str | None = None) -> AlertRow:
    """The line for a change."""
    rule = change.rule
    return new_alert_row(
        change.time,
        state=change.state,
        rule=rule.name,
        severity=rule.severity,
        labels=dict(change.labels),
        message=change.message,
        advice=change.advice,
        when=rule.when or None,
        value=change.value,
        threshold=change.threshold,
        values=dict(change.values),
        step=change.step,
        since=format_time(change.since),
        reason=change.reason,
        metric=_main_metric(change),
        host=host,
    )


def _main_metric(change: Change) -> str | None:
    """The metric the rule is about, as `table.name`: what a picture of it shows."""
    from trainvitals.alerts.language import metrics

    first = next(iter(metrics(change.rule.condition)), None)
    return None if first is None or first.table in ("run", "event") else f"{first.table}.{first.name}"


def read_rows(folder: Path) -> list[AlertRow]:
    """Every line of the run's alerts in order of time."""
    return [AlertRow.parse(line) for _, line in read_table(folder, "alerts")]


def ask(folder: Path, control: str, rule: str, by: str, until: float | None = None) -> AlertRow:
    """Leave a request in the run folder, in a file of this process's own; the agent follows it. Returns the line."""
    row = new_alert_row(control=control, rule=rule, by=by, until=format_time(until) if until is not None else None)
    host = layout.host_token(runtime.host_name())
    writer = LineWriter(folder, FileName("alerts", 1, "", pid=os.getpid(), host=host))
    writer.append(encode_line(row.as_json()))
    writer.close()
    return row


def changes(rows: Iterable[AlertRow]) -> list[AlertRow]:
    """Only those in which an alert changed."""
    return [row for row in rows if row.state in STATES]


def current(rows: Iterable[AlertRow]) -> list[AlertRow]:
    """What fires now, by severity and time: the newest line of every alert that has not been resolved, with
    `silenced` and `acknowledged` where somebody asked for it."""
    found: dict[AlertKey, AlertRow] = {}
    for row in rows:
        if row.state == "firing":
            found[row.key] = row
        elif row.state == "resolved":
            found.pop(row.key, None)
        elif row.state in ("silenced", "acknowledged"):
            asked: dict[str, Any] = {row.state: row.until or True}
            for key, alert in found.items():
                if key[0] == row.rule:
                    found[key] = replace(alert, **asked)
    return sorted(found.values(), key=lambda row: (-row.weight, row.timestamp))


class Fired(NamedTuple):
    """How many alerts fired in a run; one that fired again counts once."""

    ever: Counts = Counts()
    to_the_end: Counts = Counts()
    """Of these, the ones of the newest attempt that its end resolved, or that nothing resolved."""


NOTHING_FIRED = Fired()


def count_fired(rows: Iterable[AlertRow], started: float | None) -> Fired:
    """What fired in a run whose newest attempt `started` then (seconds since 1970), by the severity it had last."""
    fired: dict[AlertKey, AlertRow] = {}
    over: set[AlertKey] = set()
    for row in rows:
        if row.state == "firing":
            fired[row.key] = row
            over.discard(row.key)
        elif row.state == "resolved" and not row.ended_with_run:
            over.add(row.key)
    lasting = (row for key, row in fired.items() if key not in over and row.seconds >= (started or 0.0))
    return Fired(_count(fired.values()), _count(lasting))


def _count(rows: Iterable[AlertRow]) -> Counts:
    severities: list[str] = [SEVERITIES[row.weight] for row in rows]
    return Counts(*(severities.count(severity) for severity in Counts._fields))
