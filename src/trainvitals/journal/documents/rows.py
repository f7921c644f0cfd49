"""Lines of events_*.jsonl and alerts_*.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.events import ProcessEnd
from trainvitals.journal.documents.fields import (
    D,
    Document,
    entry,
    finite,
    flag,
    list_of,
    mapping,
    scalar,
    text,
    texts,
    whole,
)
from trainvitals.journal.encoding import format_time, parse_time
from trainvitals.journal.identity import TRAINER, Participant

SEVERITIES: tuple[Literal["info", "warning", "critical"], ...] = ("info", "warning", "critical")

FAILED = "failed"
"""The event that a process writes when an exception ends it; its data has the traceback."""

AlertKey = tuple[str, tuple[tuple[str, str], ...]]
"""A rule and the labels of what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow(Document):
    """Something happened."""

    timestamp: str = entry(text, "", always=True)
    event: str = entry(text, "")
    severity: str = entry(text, "info")
    message: str = entry(text, "")
    correlation_id: str | None = entry(text, None)
    host: str | None = entry(text, None)
    role: str = entry(text, TRAINER, implied=True)
    rank: int | None = entry(whole, None)
    step: int | None = entry(whole, None)
    data: Mapping[str, Any] | None = entry(mapping, None)

    @property
    def seconds(self) -> float | None:
        """When, since 1970."""
        return parse_time(self.timestamp)

    @property
    def participant(self) -> Participant | None:
        """Whom it is about; None for the whole run or its host."""
        return Participant(self.role, self.rank) if self.rank is not None else None

    def details(self, kind: type[D]) -> D:
        """Its `data`, as events of that kind have it (`documents.events`)."""
        return kind.parse(self.data)

    @property
    def cause(self) -> Cause | None:
        """Why, where the event is an end or a stall."""
        return self.details(ProcessEnd).reason


def new_event(
    event: str,
    message: str,
    *,
    when: float | None = None,
    data: Document | Mapping[str, Any] | None = None,
    **more: Any,
) -> EventRow:
    """An event that happens now, or at `when` (seconds since 1970); `more` are other fields."""
    plain = data.as_json() if isinstance(data, Document) else data
    return EventRow(timestamp=format_time(when), event=event, message=message, data=plain or None, **more)


def _silence(value: object) -> bool | str | None:
    return value if isinstance(value, (bool, str)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow(Document):
    """A line of alerts_*.jsonl; which fields it has depends on what it is about.

    `state`: an alert changed. `outgoing`: a message is to be sent. `delivery`: what became of it. `control`: somebody
    asked for something. `action`: an action was taken.
    """

    timestamp: str = entry(text, "", always=True)
    rule: str = entry(text, "")

    state: str | None = entry(text, None)
    """pending, firing, resolved; silenced or acknowledged, in answer to a control"""
    severity: str | None = entry(text, None)
    labels: Mapping[str, Any] = entry(mapping, {})
    message: str = entry(text, "")
    advice: str = entry(text, "")
    when: str | None = entry(text, None)
    """The condition."""
    value: float | str | None = entry(scalar, None)
    threshold: float | str | None = entry(scalar, None)
    values: Mapping[str, Any] = entry(mapping, {})
    step: int | None = entry(whole, None)
    since: str | None = entry(text, None)
    reason: str = entry(text, "")
    """Why it was resolved, where the condition did not end by itself; why a delivery failed."""
    metric: str | None = entry(text, None)
    """The metric it is about, as `table.name`."""
    host: str | None = entry(text, None)
    cooldown: float | None = entry(finite, None)
    silenced: bool | str | None = entry(_silence, None)
    """Until when somebody asked not to hear of it; true: it fired during a silence."""
    acknowledged: bool | str | None = entry(_silence, None)

    outgoing: str | None = entry(text, None)
    kind: str | None = entry(text, None)
    """firing, resolved, repeat, escalation"""
    channels: tuple[str, ...] = entry(texts, ())
    body: Mapping[str, Any] | None = entry(mapping, None)
    quiet: bool = entry(flag, False)
    """Only for channels that keep an alert until its end is sent."""

    delivery: str | None = entry(text, None)
    channel: str | None = entry(text, None)
    result: str | None = entry(text, None)
    attempts: int | None = entry(whole, None)
    late_seconds: float | None = entry(finite, None)

    control: str | None = entry(text, None)
    """silence, ack"""
    by: str | None = entry(text, None)
    until: str | None = entry(text, None)
    asked: str | None = entry(text, None)

    action: str | None = entry(text, None)
    pids: tuple[int, ...] | None = entry(list_of(whole), None)

    @property
    def seconds(self) -> float:
        """When, since 1970; 0 if that cannot be read."""
        return parse_time(self.timestamp) or 0.0

    @property
    def weight(self) -> int:
        """Higher is graver."""
        return SEVERITIES.index(self.severity) if self.severity in SEVERITIES else SEVERITIES.index("warning")

    @property
    def key(self) -> AlertKey:
        """Which alert it is about."""
        return self.rule, tuple(sorted((str(name), str(value)) for name, value in self.labels.items()))

    @property
    def ended_with_run(self) -> bool:
        """Whether it fired until the run was over: its condition was never seen to end."""
        return self.state == "resolved" and bool(self.reason)

    @property
    def state_text(self) -> str:
        """Its state, for people."""
        return "ended with the run" if self.ended_with_run else self.state or ""

    def is_silenced(self, now: float) -> bool:
        """Whether somebody asked not to hear of it, `now` in seconds since 1970."""
        if isinstance(self.silenced, str):
            return (parse_time(self.silenced) or 0.0) > now
        return bool(self.silenced)


def new_alert_row(now: float | None = None, **fields: Any) -> AlertRow:
    """A line of this moment, or of the time `now` (seconds since 1970)."""
    return AlertRow(timestamp=format_time(now), **fields)
