"""Who is told, and when: grouping, cooldown, repetition, escalation, silence, acknowledgement.

The ledger is a fold over the lines of alerts_*.jsonl. Living, it writes a line and then applies it; after a restart it
applies the lines that are there. So an agent that was killed goes on where its lines end: what was told is not told
again, what was to be sent is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainvitals.alerts import messages
from trainvitals.alerts.engine import FIRING, RESOLVED, Change
from trainvitals.alerts.records import Row, from_change, key_of, seconds
from trainvitals.alerts.rules import SEVERITIES, Rule
from trainvitals.journal.encoding import format_time

PENDING_LINE_SECONDS = 60.0
"""A condition that flickers is written as pending at most this often per alert."""

CLOCK_SECONDS = 2.0
"""A time further ahead than this is of a clock that was set back."""

_KEPT: tuple[str, ...] = ("rule", "severity", "labels", "message", "since")

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings the ledger goes by."""

    channels: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()
    """Those of the channels that keep an alert until its end is told, or may do so."""
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
    firing: dict[Key, Row] = field(default_factory=dict)
    fresh: dict[Key, Row] = field(default_factory=dict)
    """Fired (and perhaps resolved again) since the last message."""
    due: float | None = None
    told_at: float | None = None
    first_told: float | None = None
    """When this episode was told first; None if it was not."""
    told: dict[Key, Row] = field(default_factory=dict)
    """What was told in this episode, as it is now."""
    escalated: bool = False
    acknowledged: bool = False
    silenced_until: float = 0.0
    resolved_due: float | None = None
    last: Row = field(default_factory=dict)


class Ledger:
    """The alerts of one run on one host."""

    def __init__(
        self,
        policy: Policy,
        rules: Mapping[str, Rule],
        about: Mapping[str, Any],
        write: Callable[[Row], None],
        claim: Callable[[str], bool] | None = None,
    ) -> None:
        """`write` appends a line; `claim` says whether this host may speak for a rule of the whole run."""
        self.policy = policy
        self.about = dict(about)
        self.groups: dict[str, Group] = {}
        self.undelivered: dict[str, tuple[Row, set[str]]] = {}
        """Messages by id, and the channels that have not got them."""
        self._rules = rules
        self._write = write
        self._claim = claim
        self._pending_lines: dict[Key, float] = {}
        self._all_silenced_until = 0.0

    # -- input

    def take(self, change: Change) -> Row | None:
        """An alert changed. The line that was written, None for one that was not worth it."""
        row = from_change(change, host=self.about.get("host"))
        if change.state not in (FIRING, RESOLVED):
            key = change.key
            if change.time - self._pending_lines.get(key, -1e18) < PENDING_LINE_SECONDS:
                return None
            self._pending_lines[key] = change.time
        elif change.state == FIRING and self._silence_of(self._group(change.rule.name)) > change.time:
            row["silenced"] = True
        self._record(row)
        return row

    def take_row(self, row: Row) -> None:
        """A line that somebody else wrote: a rank's own condition, or what a person asked for."""
        control = row.get("control")
        if row.get("state") in (FIRING, RESOLVED):
            self.apply(row)
        elif control in ("silence", "ack"):
            answer: Row = {
                "timestamp": format_time(),
                "state": "silenced" if control == "silence" else "acknowledged",
                "rule": row.get("rule"),
                "by": row.get("by"),
                "asked": row.get("timestamp"),
            }
            if "until" in row:
                answer["until"] = row["until"]
            self._record(answer)

    def _record(self, row: Row) -> None:
        self._write(row)
        self.apply(row)

    def close(self, reason: str, now: float) -> list[Row]:
        """Resolve what still fires, of whoever: the run is over. Returns messages for those who keep alerts; nobody
        else needs to be told."""
        sent = []
        for group in list(self.groups.values()):
            for row in list(group.firing.values()):
                over: Row = {"timestamp": format_time(), "state": RESOLVED, "reason": reason}
                over.update((key, row[key]) for key in _KEPT if key in row)
                self._record(over)
            due = group.resolved_due is not None and self._silence_of(group) <= now
            keepers = tuple(name for name in self._told_channels(group) if name in self.policy.keepers)
            if keepers and group.first_told is not None and not due:
                row = {**self._message("resolved", group, self._over(group), keepers, now), "quiet": True}
                self._record(row)
                sent.append(row)
        return sent

    # -- the fold

    def apply(self, row: Row) -> None:
        """What a line means."""
        state = row.get("state")
        if state == FIRING:
            self._apply_firing(row)
        elif state == RESOLVED:
            self._apply_resolved(row)
        elif state == "silenced":
            if row.get("rule") == "all":
                self._all_silenced_until = seconds(row, "until")
            else:
                self._group(str(row.get("rule"))).silenced_until = seconds(row, "until")
        elif state == "acknowledged":
            for group in self._named(row):
                group.acknowledged = True
        elif "outgoing" in row:
            self._apply_outgoing(row)
        elif "delivery" in row:
            self._apply_delivery(row)

    def _apply_firing(self, row: Row) -> None:
        group, key = self._group(str(row.get("rule"))), key_of(row)
        if not group.firing and group.resolved_due is None:
            group.told.clear()
            group.first_told, group.escalated, group.acknowledged = None, False, False
        group.firing[key] = row
        group.fresh[key] = row
        group.last = row
        group.resolved_due = None
        self._schedule(group, seconds(row))

    def _apply_resolved(self, row: Row) -> None:
        group, key = self._group(str(row.get("rule"))), key_of(row)
        group.firing.pop(key, None)
        if key in group.fresh:
            end = {"reason": row["reason"]} if row.get("reason") else {"state": RESOLVED}
            group.fresh[key] = {**group.fresh[key], **end}
        if key in group.told:
            group.told[key] = {**group.told[key], **row}
        group.last = {**group.last, **row}
        if not group.firing:
            in_cooldown = group.told_at is not None and group.due is not None and not self._is_soon(group)
            if in_cooldown or self._silence_of(group) > seconds(row):
                group.due = None  # came and went inside the cooldown or a silence: recorded, not told
                group.fresh.clear()
            if group.first_told is not None and not row.get("reason"):
                group.resolved_due = seconds(row) + self.policy.group_wait

    def _apply_outgoing(self, row: Row) -> None:
        group = self._group(str(row.get("rule")))
        when = seconds(row)
        self.undelivered[str(row["outgoing"])] = (row, set(row.get("channels") or ()))
        kind = row.get("kind")
        if kind == "resolved":
            group.resolved_due, group.first_told = None, None
            group.told.clear()
        elif kind == "escalation":
            group.escalated = True
        else:
            group.told_at = when
            group.first_told = group.first_told if group.first_told is not None else when
            group.told.update(group.firing)
            group.fresh.clear()
            group.due = None
            if not group.firing:
                group.resolved_due = None

    def _apply_delivery(self, row: Row) -> None:
        waiting = self.undelivered.get(str(row["delivery"]))
        if waiting is not None and row.get("result") in ("delivered", "given up", "not needed"):
            waiting[1].discard(str(row.get("channel")))
            if not waiting[1]:
                del self.undelivered[str(row["delivery"])]

    # -- the clock

    def tick(self, now: float, ahead: float = 0.0) -> list[Row]:
        """Messages that are due now, already written; also those due within `ahead` seconds, at the end of a run."""
        sent = []
        for group in list(self.groups.values()):
            row = self._next_message(group, now, now + ahead)
            if row is not None:
                self._record(row)
                sent.append(row)
        return sent

    def _next_message(self, group: Group, now: float, until: float) -> Row | None:
        self._forgive_clock(group, now)
        if self._silence_of(group) > now:
            return None
        rule = self._rules.get(group.rule)
        if group.due is not None and group.due <= until:
            if not (self._is_worth_telling(group) and self._may_speak(group)):
                group.due = None
                group.fresh.clear()
                return None
            alerts = list({**group.firing, **group.fresh}.values())
            return self._message("firing", group, alerts, self._channels(rule), now)
        if group.resolved_due is not None and group.resolved_due <= until:
            if not group.first_told or group.firing:
                group.resolved_due = None
                return None
            return self._message("resolved", group, self._over(group), self._told_channels(group), now)
        if not group.firing or group.first_told is None or group.acknowledged or group.told_at is None:
            return None
        after = rule.escalate_after if rule and rule.escalate_after else self.policy.escalate_after
        escalate = self._escalation(rule)
        if after and escalate and not group.escalated and now - group.first_told >= after:
            return self._message("escalation", group, list(group.firing.values()), escalate, now)
        repeat = rule.repeat if rule and rule.repeat else self.policy.repeat
        if repeat and now - group.told_at >= repeat:
            return self._message("repeat", group, list(group.firing.values()), self._channels(rule), now)
        return None

    def _message(self, kind: str, group: Group, alerts: list[Row], channels: tuple[str, ...], now: float) -> Row:
        # Twelve random bytes: a receiver can tell a message that came twice from two messages.
        message_id = secrets.token_hex(12)
        stamp = format_time(now)
        body = messages.build(kind, group.rule, alerts, self.about, message_id, stamp)
        return {
            "timestamp": stamp,
            "outgoing": message_id,
            "kind": kind,
            "rule": group.rule,
            "channels": list(channels),
            "body": body,
        }

    # -- parts

    def _group(self, rule: str) -> Group:
        if rule not in self.groups:
            self.groups[rule] = Group(rule)
        return self.groups[rule]

    def _named(self, row: Row) -> list[Group]:
        rule = str(row.get("rule"))
        return list(self.groups.values()) if rule == "all" else [self._group(rule)]

    def _silence_of(self, group: Group) -> float:
        return max(group.silenced_until, self._all_silenced_until)

    def _forgive_clock(self, group: Group, now: float) -> None:
        """What was told in the future was told before the clock was set back: nothing waits for that time again."""
        if group.told_at is not None and group.told_at > now + CLOCK_SECONDS:
            group.told_at = now
            group.first_told = now if group.first_told is not None else None
        longest = max(self.policy.group_wait, self._cooldown(group)) + CLOCK_SECONDS
        if group.due is not None and group.due > now + longest:
            group.due = now + longest
        if group.resolved_due is not None and group.resolved_due > now + longest:
            group.resolved_due = now + self.policy.group_wait

    def _schedule(self, group: Group, now: float) -> None:
        due = now + self.policy.group_wait
        if group.told_at is not None:
            due = max(due, group.told_at + self._cooldown(group))
        group.due = due if group.due is None else min(group.due, due)

    def _is_soon(self, group: Group) -> bool:
        """Whether what is due waits only for more of the same, not for the end of a cooldown."""
        if group.due is None or group.told_at is None:
            return True
        return group.due > group.told_at + self._cooldown(group)

    def _cooldown(self, group: Group) -> float:
        rule = self._rules.get(group.rule)
        if rule is not None and rule.cooldown is not None:
            return rule.cooldown
        given = group.last.get("cooldown")  # a condition of the training's own brings it along
        return float(given) if isinstance(given, (int, float)) else self.policy.cooldown

    def _is_worth_telling(self, group: Group) -> bool:
        alerts = [*group.firing.values(), *group.fresh.values()]
        worst = max((SEVERITIES.index(str(row.get("severity", "warning"))) for row in alerts), default=-1)
        return worst >= SEVERITIES.index(self.policy.min_severity)

    def _may_speak(self, group: Group) -> bool:
        return self._claim is None or group.first_told is not None or self._claim(group.rule)

    def _channels(self, rule: Rule | None) -> tuple[str, ...]:
        if rule is not None and rule.notify is not None:
            return rule.notify
        held_back = self.policy.escalate_notify
        return tuple(name for name in self.policy.channels if name not in held_back)

    def _escalation(self, rule: Rule | None) -> tuple[str, ...]:
        return rule.escalate_notify if rule and rule.escalate_notify else self.policy.escalate_notify

    def _told_channels(self, group: Group) -> tuple[str, ...]:
        """Who was told of it, and is to be told its end."""
        rule = self._rules.get(group.rule)
        more = self._escalation(rule) if group.escalated else ()
        return tuple(dict.fromkeys((*self._channels(rule), *more)))

    def _over(self, group: Group) -> list[Row]:
        """Everything that was told, as what is over now."""
        return [{**row, "state": RESOLVED} for row in group.told.values()] or [{**group.last, "state": RESOLVED}]
