"""One rule for one subject: whether it is pending or fires, and with which numbers.
Tested in tests/alerts/test_engine.py."""

from __future__ import annotations

from typing import NamedTuple

from trainvitals.alerts import template
from trainvitals.alerts.evaluation import Subject, Value, compile_whole, names_of
from trainvitals.alerts.language import COMPARISONS, Node, Operation, metrics, type_of, walk
from trainvitals.alerts.rules import Rule, Wait

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"


class Candidate(NamedTuple):
    """A rule, before anything was seen of what it looks at."""

    place: int
    """Among all rules."""
    rule: Rule
    lead: tuple[str, tuple[str, ...] | None] | None
    timed: bool
    """Whether it can change without a new point of its subject."""
    names: frozenset[str]
    """What the lines of its subjects may call what it looks at."""

    @classmethod
    def of(cls, place: int, rule: Rule) -> Candidate:
        lead = rule.lead
        found = (metric for node in rule.nodes for metric in metrics(node) if lead and metric.table == lead[0])
        names = frozenset(name for metric in found for name in names_of(metric))
        return cls(place, rule, lead, rule.looks_at_time, names)


class Case:
    """One rule for one subject."""

    __slots__ = (
        "clear",
        "clear_count",
        "condition",
        "fields",
        "lets",
        "message",
        "names",
        "place",
        "rule",
        "sides",
        "since",
        "since_clear",
        "state",
        "subject",
        "true_count",
        "warm",
    )

    def __init__(self, candidate: Candidate, subject: Subject) -> None:
        self.rule = rule = candidate.rule
        self.names = candidate.names
        self.place = candidate.place
        self.subject = subject
        self.condition = compile_whole(rule.condition, subject)
        self.clear = compile_whole(rule.clear_condition, subject) if rule.clear_condition is not None else None
        self.lets = [(name, compile_whole(node, subject)) for name, node in rule.lets]
        self.fields = [
            (metric.name, compile_whole(metric, subject))
            for metric in {m.name: m for node in rule.nodes for m in metrics(node, across=False)}.values()
        ]
        self.sides = [
            (compile_whole(node, subject), *(compile_whole(side, subject) for side in node.operands))
            for node in _comparisons(rule.condition)
            if type_of(node.operands[0]) == "number"
        ]
        self.state: str | None = None
        self.message = ""
        """The message when it fired: the all-clear repeats it."""
        self.since = 0.0
        self.since_clear: float | None = None
        self.true_count = 0
        self.clear_count = 0
        self.warm = False
        """Whether its warm-up is over; that does not come back."""

    def restore(self, since: float) -> None:
        """An earlier engine found that it fires, since then."""
        self.since, self.state = since, FIRING

    def judge(self, now: float, *, by_point: bool) -> str | None:
        """The state that it has come to, if that is another: because of a new point of its subject, or of the time."""
        if self.state == FIRING:
            return self._judge_firing(now, by_point)
        if not self.warm:
            if not _is_warm(self.rule.warmup, self.subject, now):
                return None
            self.warm = True
        holds = self.condition()
        if holds is None:
            return None
        if not holds:
            if self.state == PENDING:
                self.state = None
            self.true_count = 0
            return None
        if self.state is None:
            self.since = now
            self.true_count = 0
        if by_point:
            self.true_count += 1
        if _has_passed(self.rule.wait, self.true_count, now - self.since):
            self.since_clear = None
            self.clear_count = 0
            self.state = FIRING
            return FIRING
        if self.state is None:
            self.state = PENDING
            return PENDING
        return None

    def _judge_firing(self, now: float, by_point: bool) -> str | None:
        if self.clear is not None:
            over = self.clear()
        else:
            holds = self.condition()
            over = None if holds is None else not holds
        if over is None:
            return None
        if not over:
            self.since_clear = None
            self.clear_count = 0
            return None
        if self.since_clear is None:
            self.since_clear = now
        if by_point:
            self.clear_count += 1
        if not _has_passed(self.rule.clear_wait, self.clear_count, now - self.since_clear):
            return None
        self.state = None
        self.true_count = 0
        return RESOLVED

    def read_values(self) -> dict[str, Value]:
        """What its condition and its texts look at, as far as it is known."""
        values: dict[str, Value] = {}
        for name, read in (*self.fields, *self.lets):
            value = read()
            if value is not None:
                values[name] = value
        for name in template.check(self.rule.message + self.rule.advice) - values.keys():
            series = self.subject.series.get(name)
            if series is not None and series.value is not None:
                values[name] = series.value
        return values

    def read_sides(self) -> tuple[Value, Value]:
        """The two sides of the comparison that decided: the first that is true."""
        fallback: tuple[Value, Value] = (None, None)
        for holds, left, right in self.sides:
            pair = (left(), right())
            if holds():
                return pair
            if fallback == (None, None):
                fallback = pair
        return fallback


def _comparisons(node: Node) -> list[Operation]:
    return [item for item in walk(node) if isinstance(item, Operation) and item.operator in COMPARISONS]


def _is_warm(wait: Wait, subject: Subject, now: float) -> bool:
    if wait.steps is not None:
        return subject.count > wait.steps
    if wait.seconds is not None:
        return subject.first_time is not None and now - subject.first_time >= wait.seconds
    return True


def _has_passed(wait: Wait, count: int, seconds: float) -> bool:
    if wait.steps is not None:
        return count >= wait.steps
    return wait.seconds is None or seconds >= wait.seconds
