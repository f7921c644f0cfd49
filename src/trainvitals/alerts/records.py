"""The lines of `alerts_*.jsonl`: what they are called and how they are read back.

    {"timestamp": ..., "state": "firing", "rule": ..., "labels": {...}, ...}    an alert changed
    {"timestamp": ..., "outgoing": "...", "kind": "firing", "channels": [...]}  a message is to be sent
    {"timestamp": ..., "delivery": "...", "channel": ..., "result": ...}        what became of it
    {"timestamp": ..., "control": "silence", "rule": ..., "until": ...}         somebody asked for something
    {"timestamp": ..., "action": "stop", "rule": ..., "result": ...}            an action was taken

One writer per file: the agent of each host, every rank that has conditions of its own, every command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.alerts.engine import Change
from trainvitals.alerts.language import metrics
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import TimeParser, encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

STATES = ("pending", "firing", "resolved", "silenced", "acknowledged")

Row = dict[str, Any]


def from_change(change: Change, **more: Any) -> Row:
    """The line for a change."""
    rule = change.rule
    row: Row = {
        "timestamp": format_time(change.time),
        "state": change.state,
        "rule": rule.name,
        "severity": rule.severity,
        "labels": dict(change.labels),
        "message": change.message,
        "advice": change.advice,
        "when": rule.when,
        "value": change.value,
        "threshold": change.threshold,
        "values": dict(change.values),
        "step": change.step,
        "since": format_time(change.since),
        "reason": change.reason,
        "metric": _main_metric(change),
        **more,
    }
    return {key: value for key, value in row.items() if value is not None and value != "" and value != {}}


def _main_metric(change: Change) -> str | None:
    """The metric the rule is about, as `table.name`: what a picture of it shows."""
    first = next(iter(metrics(change.rule.condition)), None)
    return None if first is None or first.table in ("run", "event") else f"{first.table}.{first.name}"


def key_of(row: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Which alert the line is about."""
    labels = row.get("labels") or {}
    return str(row.get("rule")), tuple(sorted((str(name), str(value)) for name, value in labels.items()))


_parser = TimeParser()


def seconds(row: Mapping[str, Any], field: str = "timestamp") -> float:
    """A time in the line, as seconds since 1970; 0 if there is none."""
    text = row.get(field)
    micros = _parser.parse(text) if isinstance(text, str) else None
    return micros / 1e6 if micros is not None else 0.0


def is_silenced(row: Mapping[str, Any], now: float) -> bool:
    """Whether somebody asked not to hear of this alert (of `current`), `now` in seconds since 1970."""
    until = row.get("silenced")
    return until is True or (bool(until) and seconds(row, "silenced") > now)


def read_rows(folder: Path, wanted: Callable[[FileName], bool] = lambda name: True) -> list[Row]:
    """Every line of the run's alerts in order of time, from the files that are wanted."""
    rows: list[Row] = []
    for name, suffix, path in layout.list_files(folder):
        if name.table == "alerts" and suffix == ".jsonl" and wanted(name):
            rows.extend(Cursor(path).read())
    rows.sort(key=lambda row: str(row["timestamp"]))
    return rows


def ask(folder: Path, control: str, rule: str, by: str, until: float | None = None) -> Row:
    """Leave a wish in the run folder, in a file of this process's own; the agent follows it. Returns the line."""
    row: Row = {"timestamp": format_time(), "control": control, "rule": rule, "by": by}
    if until is not None:
        row["until"] = format_time(until)
    host = layout.host_token(runtime.host_name())
    writer = LineWriter(folder, FileName("alerts", 1, "", pid=os.getpid(), host=host))
    writer.append(encode_line(row))
    writer.close()
    return row


def changes(rows: Iterable[Row]) -> list[Row]:
    """Only those in which an alert changed."""
    return [row for row in rows if row.get("state") in STATES]


def current(rows: Iterable[Row]) -> list[Row]:
    """What fires now, by severity and time: the newest line of every alert that has not been resolved, with
    `silenced` and `acknowledged` where somebody asked for it."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Row] = {}
    for row in rows:
        state = row.get("state")
        if state == "firing":
            found[key_of(row)] = row
        elif state == "resolved":
            found.pop(key_of(row), None)
        elif state in ("silenced", "acknowledged"):
            for key, alert in found.items():
                if key[0] == row.get("rule"):
                    found[key] = {**alert, state: row.get("until", True)}
    order = {"critical": 0, "warning": 1, "info": 2}
    return sorted(found.values(), key=lambda row: (order.get(str(row.get("severity")), 3), str(row["timestamp"])))
