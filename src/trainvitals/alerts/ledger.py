"""Who is notified, and when: grouping, cooldown, repetition, escalation, silence, acknowledgement.

The ledger is a fold over the lines of alerts_*.jsonl. Living, it writes a line and then applies it; after a restart it
applies the lines that are there. So a killed agent continues where its lines end: what was sent is not sent
again, what was to be sent is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainvitals.alerts import messages
from trainvitals.alerts.cases import FIRING, RESOLVED
from trainvitals.alerts.engine import Change
from trainvitals.alerts.records import from_change
from trainvitals.alerts.rules import Rule
from trainvitals.journal.documents.rows import SEVERITIES, AlertKey, AlertRow, new_alert_row
from trainvitals.journal.encoding import format_time, parse_time

PENDING_LINE_SECONDS = 60.0
"""A condition that flickers is written as pending at most this often per alert."""

ANSWERS = {"silence": "silenced", "ack": "acknowledged"}
"""What becomes of an alert on request, by control."""

CLOCK_SECONDS = 2.0
"""A time further ahead than this is of a clock that was set back."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings the ledger goes by."""

    channels: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()
    """Those of the channels that keep an alert until its end is sent, or may do so."""
    min_severity: str = "warning"
    group_wait: float = 1.0
    cooldown: float = 300.0
    repeat: float | None = None
    escalate_after: float | None = None
    escalate_notify: tuple[str, ...] = ()


@dataclass(slots=True)
class Group:
    """All alerts of one rule: they share messages."""

    rule: str
    firing: dict[AlertKey, AlertRow] = field(default_factory=dict)
    fresh: dict[AlertKey, AlertRow] = field(default_factory=dict)
    """Fired (and perhaps resolved again) since the last message."""
    due: float | None = None
    notified_at: float | None = None
    first_notified: float | None = None
    """When the first message of this episode was sent; None if there was none."""
    notified: dict[AlertKey, AlertRow] = field(default_factory=dict)
    """The alerts that were sent in this episode, as they are now."""
    escalated: bool = False
    acknowledged: bool = False
    silenced_until: float = 0.0
    resolved_due: float | None = None
    last: AlertRow = field(default_factory=AlertRow)


class Ledger:
    """The alerts of one run on one host."""

    def __init__(
        self,
        policy: Policy,
        rules: Mapping[str, Rule],
        about: Mapping[str, Any],
        write: Callable[[AlertRow], None],
        claim: Callable[[str], bool] | None = None,
    ) -> None:
        """`write` appends a line; `claim` returns whether this host may speak for a rule of the whole run."""
        self.policy = policy
        self.about = dict(about)
        self.groups: dict[str, Group] = {}
        self.undelivered: dict[str, tuple[AlertRow, set[str]]] = {}
        """Messages by id, and the channels that have not got them."""
        self._rules = rules
        self._write = write
        self._claim = claim
        self._pending_lines: dict[AlertKey, float] = {}
        self._all_silenced_until = 0.0

    # -- input

    def take(self, change: Change) -> AlertRow | None:
        """An alert changed. The line that was written, None for one that was not worth it."""
        row = from_change(change, host=self.about.get("host"))
        if change.state not in (FIRING, RESOLVED):
            key = change.key
            if change.time - self._pending_lines.get(key, -1e18) < PENDING_LINE_SECONDS:
                return None
            self._pending_lines[key] = change.time
        elif change.state == FIRING and self._silence_of(self._group(change.rule.name)) > change.time:
            row = replace(row, silenced=True)
        self._record(row)
        return row

    def take_row(self, row: AlertRow) -> None:
        """A line of another writer: a rank's Python rule, or a user's request."""
        if row.state in (FIRING, RESOLVED):
            self.apply(row)
        elif row.control in ANSWERS:
            state = ANSWERS[row.control]
            self._record(new_alert_row(state=state, rule=row.rule, by=row.by, asked=row.timestamp, until=row.until))

    def _record(self, row: AlertRow) -> None:
        self._write(row)
        self.apply(row)

    def close(self, reason: str, now: float) -> list[AlertRow]:
        """Resolve what still fires, of whoever: the run is over. Returns messages for those who keep alerts; nobody
        else needs a message."""
        sent = []
        for group in list(self.groups.values()):
            for row in list(group.firing.values()):
                self._record(
                    new_alert_row(
                        state=RESOLVED,
                        reason=reason,
                        rule=row.rule,
                        severity=row.severity,
                        labels=row.labels,
                        message=row.message,
                        since=row.since,
                    )
                )
            due = group.resolved_due is not None and self._silence_of(group) <= now
            keepers = tuple(name for name in self._notified_channels(group) if name in self.policy.keepers)
            if keepers and group.first_notified is not None and not due:
                row = replace(self._message("resolved", group, self._over(group), keepers, now), quiet=True)
                self._record(row)
                sent.append(row)
        return sent

    # -- the fold

    def apply(self, row: AlertRow) -> None:
        """What a line means."""
        if row.state == FIRING:
            self._apply_firing(row)
        elif row.state == RESOLVED:
            self._apply_resolved(row)
        elif row.state == "silenced":
            until = parse_time(row.until) or 0.0
            if row.rule == "all":
                self._all_silenced_until = until
            else:
                self._group(row.rule).silenced_until = until
        elif row.state == "acknowledged":
            for group in self._named(row):
                group.acknowledged = True
        elif row.outgoing is not None:
            self._apply_outgoing(row, row.outgoing)
        elif row.delivery is not None:
            self._apply_delivery(row, row.delivery)

    def _apply_firing(self, row: AlertRow) -> None:
        group, key = self._group(row.rule), row.key
        if not group.firing and group.resolved_due is None:
            group.notified.clear()
            group.first_notified, group.escalated, group.acknowledged = None, False, False
        group.firing[key] = row
        group.fresh[key] = row
        group.last = row
        group.resolved_due = None
        self._schedule(group, row.seconds)

    def _apply_resolved(self, row: AlertRow) -> None:
        group, key = self._group(row.rule), row.key
        group.firing.pop(key, None)
        if key in group.fresh:
            fresh = group.fresh[key]
            group.fresh[key] = replace(fresh, reason=row.reason) if row.reason else replace(fresh, state=RESOLVED)
        if key in group.notified:
            group.notified[key] = _update(group.notified[key], row)
        group.last = _update(group.last, row)
        if not group.firing:
            in_cooldown = group.notified_at is not None and group.due is not None and not self._is_soon(group)
            if in_cooldown or self._silence_of(group) > row.seconds:
                group.due = None  # came and went inside the cooldown or a silence: recorded, not sent
                group.fresh.clear()
            if group.first_notified is not None and not row.reason:
                group.resolved_due = row.seconds + self.policy.group_wait

    def _apply_outgoing(self, row: AlertRow, message_id: str) -> None:
        group = self._group(row.rule)
        when = row.seconds
        self.undelivered[message_id] = (row, set(row.channels))
        if row.kind == "resolved":
            group.resolved_due, group.first_notified = None, None
            group.notified.clear()
        elif row.kind == "escalation":
            group.escalated = True
        else:
            group.notified_at = when
            group.first_notified = group.first_notified if group.first_notified is not None else when
            group.notified.update(group.firing)
            group.fresh.clear()
            group.due = None
            if not group.firing:
                group.resolved_due = None

    def _apply_delivery(self, row: AlertRow, message_id: str) -> None:
        waiting = self.undelivered.get(message_id)
        if waiting is not None and row.result in ("delivered", "given up", "not needed"):
            waiting[1].discard(row.channel or "")
            if not waiting[1]:
                del self.undelivered[message_id]

    # -- the clock

    def tick(self, now: float, ahead: float = 0.0) -> list[AlertRow]:
        """Messages that are due now, already written; also those due within `ahead` seconds, at the end of a run."""
        sent = []
        for group in list(self.groups.values()):
            row = self._next_message(group, now, now + ahead)
            if row is not None:
                self._record(row)
                sent.append(row)
        return sent

    def _next_message(self, group: Group, now: float, until: float) -> AlertRow | None:
        self._forgive_clock(group, now)
        if self._silence_of(group) > now:
            return None
        rule = self._rules.get(group.rule)
        if group.due is not None and group.due <= until:
            if not (self._should_notify(group) and self._may_speak(group)):
                group.due = None
                group.fresh.clear()
                return None
            alerts = list({**group.firing, **group.fresh}.values())
            return self._message("firing", group, alerts, self._channels(rule), now)
        if group.resolved_due is not None and group.resolved_due <= until:
            if not group.first_notified or group.firing:
                group.resolved_due = None
                return None
            return self._message("resolved", group, self._over(group), self._notified_channels(group), now)
        if not group.firing or group.first_notified is None or group.acknowledged or group.notified_at is None:
            return None
        after = rule.escalate_after if rule and rule.escalate_after else self.policy.escalate_after
        escalate = self._escalation(rule)
        if after and escalate and not group.escalated and now - group.first_notified >= after:
            return self._message("escalation", group, list(group.firing.values()), escalate, now)
        repeat = rule.repeat if rule and rule.repeat else self.policy.repeat
        if repeat and now - group.notified_at >= repeat:
            return self._message("repeat", group, list(group.firing.values()), self._channels(rule), now)
        return None

    def _message(
        self, kind: str, group: Group, alerts: list[AlertRow], channels: tuple[str, ...], now: float
    ) -> AlertRow:
        # Twelve random bytes: a receiver can distinguish a duplicate from two messages.
        message_id = secrets.token_hex(12)
        body = messages.build(kind, group.rule, alerts, self.about, message_id, format_time(now))
        return new_alert_row(now, outgoing=message_id, kind=kind, rule=group.rule, channels=channels, body=body)

    # -- parts

    def _group(self, rule: str) -> Group:
        if rule not in self.groups:
            self.groups[rule] = Group(rule)
        return self.groups[rule]

    def _named(self, row: AlertRow) -> list[Group]:
        return list(self.groups.values()) if row.rule == "all" else [self._group(row.rule)]

    def _silence_of(self, group: Group) -> float:
        return max(group.silenced_until, self._all_silenced_until)

    def _forgive_clock(self, group: Group, now: float) -> None:
        """A message sent in the future was sent before the clock was set back: nothing waits for that time again."""
        if group.notified_at is not None and group.notified_at > now + CLOCK_SECONDS:
            group.notified_at = now
            group.first_notified = now if group.first_notified is not None else None
        longest = max(self.policy.group_wait, self._cooldown(group)) + CLOCK_SECONDS
        if group.due is not None and group.due > now + longest:
            group.due = now + longest
        if group.resolved_due is not None and group.resolved_due > now + longest:
            group.resolved_due = now + self.policy.group_wait

    def _schedule(self, group: Group, now: float) -> None:
        due = now + self.policy.group_wait
        if group.notified_at is not None:
            due = max(due, group.notified_at + self._cooldown(group))
        group.due = due if group.due is None else min(group.due, due)

    def _is_soon(self, group: Group) -> bool:
        """Whether what is due waits only for more of the same, not for the end of a cooldown."""
        if group.due is None or group.notified_at is None:
            return True
        return group.due > group.notified_at + self._cooldown(group)

    def _cooldown(self, group: Group) -> float:
        rule = self._rules.get(group.rule)
        if rule is not None and rule.cooldown is not None:
            return rule.cooldown
        given = group.last.cooldown  # a condition of the training's own brings it along
        return given if given is not None else self.policy.cooldown

    def _should_notify(self, group: Group) -> bool:
        alerts = [*group.firing.values(), *group.fresh.values()]
        worst = max((row.weight for row in alerts), default=-1)
        return worst >= SEVERITIES.index(self.policy.min_severity)

    def _may_speak(self, group: Group) -> bool:
        return self._claim is None or group.first_notified is not None or self._claim(group.rule)

    def _channels(self, rule: Rule | None) -> tuple[str, ...]:
        if rule is not None and rule.notify is not None:
            return rule.notify
        held_back = self.policy.escalate_notify
        return tuple(name for name in self.policy.channels if name not in held_back)

    def _escalation(self, rule: Rule | None) -> tuple[str, ...]:
        return rule.escalate_notify if rule and rule.escalate_notify else self.policy.escalate_notify

    def _notified_channels(self, group: Group) -> tuple[str, ...]:
        """Who was notified, and gets the end as well."""
        rule = self._rules.get(group.rule)
        more = self._escalation(rule) if group.escalated else ()
        return tuple(dict.fromkeys((*self._channels(rule), *more)))

    def _over(self, group: Group) -> list[AlertRow]:
        """Everything that was sent, as resolved."""
        return [replace(row, state=RESOLVED) for row in group.notified.values() or (group.last,)]


def _update(older: AlertRow, newer: AlertRow) -> AlertRow:
    """What is known of an alert after another line about it, which may have fewer fields."""
    return AlertRow.parse({**older.as_json(), **newer.as_json()})
