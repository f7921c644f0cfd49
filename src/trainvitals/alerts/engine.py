"""Judging: points go in, changes of alerts come out. Knows nothing of files, channels or processes.

engine = Engine(rules)
for change in engine.feed(Point("training", {"rank": 0}, {"loss": 0.3}, time, step=7)):
    ...
engine.tick(time.time(), time.monotonic())     # about once a second: what changes because nothing arrives
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainvitals.alerts import template
from trainvitals.alerts.evaluation import Subject, Value, company_of, compile_whole, names_of
from trainvitals.alerts.language import COMPARISONS, Node, Operation, metrics, slashed, type_of, walk
from trainvitals.alerts.rules import Rule, Wait
from trainvitals.catalog import match_alias

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"
MAX_SUBJECTS = 4096


class Point(NamedTuple):
    """One line of measurements: of what, the values by name, when (seconds since 1970), at which step."""

    table: str
    labels: Mapping[str, Any]
    values: Mapping[str, Any]
    time: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """An alert that changed its state, with the numbers that caused it."""

    rule: Rule
    state: str
    labels: Mapping[str, Any]
    time: float
    step: int | None
    since: float
    """When the condition became true, in this episode."""
    value: Value = None
    threshold: Value = None
    values: Mapping[str, Value] = field(default_factory=dict)
    message: str = ""
    advice: str = ""
    reason: str = ""
    """Why it was resolved, if not because the condition ended."""

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Which alert: the rule and of what."""
        return self.rule.name, tuple(sorted((name, str(value)) for name, value in self.labels.items()))


class _Candidate(NamedTuple):
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
    def of(cls, place: int, rule: Rule) -> _Candidate:
        lead = rule.lead
        found = (metric for node in rule.nodes for metric in metrics(node) if lead and metric.table == lead[0])
        names = frozenset(name for metric in found for name in names_of(metric))
        return cls(place, rule, lead, rule.looks_at_time, names)


class _Case:
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

    def __init__(self, candidate: _Candidate, subject: Subject) -> None:
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


def _comparisons(node: Node) -> list[Operation]:
    return [item for item in walk(node) if isinstance(item, Operation) and item.operator in COMPARISONS]


class Engine:
    """All rules of one run, judged over all its subjects."""

    def __init__(
        self,
        rules: Iterable[Rule],
        *,
        context: Mapping[str, Any] | None = None,
        baseline: Callable[[str, float], float | None] | None = None,
        enrich: Callable[[Rule, dict[str, Any]], None] | None = None,
    ) -> None:
        """`context` are fields for every message (run, host); `baseline` gives another run's value at a step;
        `enrich` adds fields that a rule's text needs and no measurement carries."""
        self.rules = list(rules)
        self.now = 0.0
        self.problems: list[str] = []
        """Warnings about the rules themselves, each once; taken with `take_problems`."""
        self._context = dict(context or {})
        self._baseline = baseline
        self._enrich = enrich
        self._offset = 0.0
        self._last_wall: float | None = None
        self._last_steady: float | None = None
        self._stream_times: dict[tuple[object, ...], float] = {}
        self._subjects: dict[tuple[object, ...], Subject] = {}
        self._by_table: dict[str, list[Subject]] = {}
        self._cases: dict[int, list[_Case]] = {}
        self._timed: list[_Case] = []
        self._restored: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._plans: dict[tuple[int, int, tuple[str, ...]], _Plan] = {}
        self._warned: set[str] = set()
        self._judging: str = ""
        self._candidates = [_Candidate.of(place, rule) for place, rule in enumerate(self.rules)]
        self._asleep: dict[int, list[_Candidate]] = {}
        """Of each subject, the rules of which its lines have had nothing yet."""
        self._waiting_for: dict[tuple[str, str], list[str]] = {}
        for rule in self.rules:
            for metric in {m for node in rule.nodes for m in metrics(node)}:
                self._waiting_for.setdefault((metric.table, metric.name), []).append(rule.name)
        self._names_of = {
            (metric.table, metric.name): names_of(metric)
            for rule in self.rules
            for node in rule.nodes
            for metric in metrics(node)
        }
        self._names: dict[str, set[str]] = {}
        for metric in {metric for rule in self.rules for node in rule.nodes for metric in metrics(node)}:
            self._names.setdefault(metric.table, set()).update(names_of(metric), company_of(metric))
        for rule, lead in ((item.rule, item.lead) for item in self._candidates):  # what only its texts speak of
            if lead is not None:
                self._names.setdefault(lead[0], set()).update(template.check(rule.message + rule.advice))
        self._whole = Subject("whole", {}, self)
        for candidate in self._candidates:
            if candidate.lead is None:
                self._timed.append(self._make_case(candidate, self._whole))

    # -- what conditions ask for (evaluation.Clock)

    def subjects(self, table: str) -> list[Subject]:
        return self._by_table.get(table, [])

    def baseline(self, metric: str, step: float) -> float | None:
        return self._baseline(metric, step) if self._baseline is not None else None

    def trouble(self, text: str) -> None:
        self._warn_once(f"rule '{self._judging}': {text} in its condition; skipped until that changes")

    # -- input

    def feed(self, point: Point, *, judge: bool = True) -> list[Change]:
        """Take in one line. With `judge` False it only fills the windows: history that was judged before."""
        self._advance(point)
        subject = self._subject(point)
        if subject is None:
            return []
        plan = self._plan(subject, point.values)
        now = self.now
        subject.count += 1
        subject.last_time = now
        if subject.first_time is None:
            subject.first_time = now
        step = point.step
        subject.step = step if step is not None else subject.count
        values = point.values
        for name, series in plan.series:
            value = values[name]
            if value.__class__ is str:
                value = _NONFINITE.get(value, value)
            series.value = value
            series.time = now
            series.count += 1
        for watcher in plan.watchers:
            watcher.advance()
        if not judge:
            return []
        changes: list[Change] = []
        for case in plan.cases:
            self._judge(case, changes, by_point=True)
        return changes

    def tick(self, wall: float, monotonic: float | None = None) -> list[Change]:
        """Time has passed. With `monotonic`, a step of the wall clock is noticed and does not count as time."""
        if monotonic is not None and self._last_wall is not None and self._last_steady is not None:
            jump = (wall - self._last_wall) - (monotonic - self._last_steady)
            if abs(jump) > 2.0:
                self._offset -= jump
                self._warn(f"the clock jumped by {jump:+.0f} s; alerts use the time that really passed")
        self._last_wall, self._last_steady = wall, monotonic
        self.now = max(self.now, wall + self._offset)
        changes: list[Change] = []
        for case in self._timed:
            self._judge(case, changes, by_point=False)
        return changes

    def end(self, reason: str) -> list[Change]:
        """Resolve everything: the run is over."""
        changes = []
        for case in self._all_cases():
            if case.state == FIRING:
                changes.append(self._change(case, RESOLVED, reason))
            case.state = None
        return changes

    def take_problems(self) -> list[str]:
        taken, self.problems = self.problems, []
        return taken

    # -- restoring

    def restore(self, firing: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]) -> None:
        """Go on where an earlier engine ended: these alerts (by `Change.key`) have been firing since then."""
        self._restored = dict(firing)
        for subject in self._subjects.values():
            self._wake(subject, frozenset())
        for case in self._all_cases():
            self._restore_case(case)

    def firing(self) -> list[tuple[Rule, Mapping[str, Any], float]]:
        """What fires now: rule, labels, since when."""
        return [(case.rule, case.subject.labels, case.since) for case in self._all_cases() if case.state == FIRING]

    def report_unknown(self) -> None:
        """Tell which metrics that rules ask for have not been seen and are in no table: a typing error, or to come."""
        from trainvitals import catalog
        from trainvitals.errors import nearest

        for (table, name), rules in self._waiting_for.items():
            if table not in ("training", "openmetrics") or catalog.find(table, name) is not None:
                continue
            own = [rule for rule in self.rules if rule.name in rules and not rule.built_in]
            if own and not self._is_seen(table, name):
                known = [row.name for row in catalog.TRAINING] + [
                    key for subject in self.subjects(table) for key, series in subject.series.items() if series.count
                ]
                one = next((found for rule in own if (found := slashed(f"{rule.when} {rule.clear}", name))), None)
                hint = f"; if {one} is a single name, write it in backquotes: `{one}`" if one else ""
                self._warn_once(
                    f"rule '{own[0].name}': no metric '{name}' yet{nearest(name, known)}; the rule starts once it is "
                    f"logged{hint}",
                    (table, name),
                )

    def _is_seen(self, table: str, name: str) -> bool:
        names = self._names_of[(table, name)]
        return any(
            (series := subject.series.get(other)) is not None and series.count
            for subject in self.subjects(table)
            for other in names
        )

    # -- time

    def _advance(self, point: Point) -> None:
        time = point.time + self._offset
        if self._last_steady is None:
            # No monotonic clock (a recorded run): a clock that goes back is seen in the lines themselves.
            stream = (point.table, *point.labels.values())
            last = self._stream_times.get(stream)
            if last is not None and time < last - 2.0:
                self._offset += last - time
                time = last
            self._stream_times[stream] = time
        # A line from the future (another host's clock) must not push everybody's time far beyond that of the ticks.
        future = self._last_wall is not None and time > self._last_wall + self._offset + 5.0
        if time > self.now and (self._last_steady is None or not future):
            self.now = time

    # -- subjects and cases

    def _subject(self, point: Point) -> Subject | None:
        labels = point.labels
        # gpu="0" and rank="0" of a scraped page are different series.
        parts = labels.items() if point.table == "openmetrics" else labels.values()
        key: tuple[object, ...] = (point.table, *parts)
        subject = self._subjects.get(key)
        if subject is None:
            if len(self._subjects) >= MAX_SUBJECTS:
                self._warn_once(f"more than {MAX_SUBJECTS} different devices, ranks and series; rules ignore the rest")
                return None
            subject = Subject(point.table, labels, self)
            for name in self._names.get(point.table, ()):
                subject.find(name)
            self._subjects[key] = subject
            self._by_table.setdefault(point.table, []).append(subject)
            self._cases[id(subject)] = []
            self._asleep[id(subject)] = [
                candidate
                for candidate in self._candidates
                if candidate.lead is not None
                and candidate.lead[0] == point.table
                and subject.is_selected(candidate.lead[1])
            ]
        return subject

    def _wake(self, subject: Subject, names: AbstractSet[str]) -> None:
        """Make the cases of the rules that look at one of these. Most rules are about what most trainings never log,
        and with many ranks their windows would be most of the engine."""
        asleep = self._asleep[id(subject)]
        restored = {name for name, _ in self._restored}
        woken = [
            item
            for item in asleep
            if item.timed or not item.names.isdisjoint(names) or item.names == {"step"} or item.rule.name in restored
        ]
        if not woken:
            return
        self._asleep[id(subject)] = [item for item in asleep if item not in woken]
        cases = self._cases[id(subject)]
        for candidate in woken:
            case = self._make_case(candidate, subject)
            cases.append(case)
            if candidate.timed and candidate.rule.wait.steps is None:
                self._timed.append(case)
        cases.sort(key=lambda case: case.place)

    def _make_case(self, candidate: _Candidate, subject: Subject) -> _Case:
        self._judging = candidate.rule.name
        case = _Case(candidate, subject)
        self._restore_case(case)
        return case

    def _restore_case(self, case: _Case) -> None:
        key = (case.rule.name, tuple(sorted((k, str(v)) for k, v in case.subject.labels.items())))
        since = self._restored.pop(key, None)
        if since is not None:
            case.since, case.state = since, FIRING

    def _all_cases(self) -> list[_Case]:
        whole = [case for case in self._timed if case.subject is self._whole]
        return whole + [case for cases in self._cases.values() for case in cases]

    def _plan(self, subject: Subject, values: Mapping[str, Any]) -> _Plan:
        key = (id(subject), len(subject.order), tuple(values))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(subject, values)
            if len(self._plans) > 4 * MAX_SUBJECTS:
                self._plans.clear()
            if len(values) < 1000:
                self._plans[(id(subject), len(subject.order), key[2])] = plan
        return plan

    def _make_plan(self, subject: Subject, values: Mapping[str, Any]) -> _Plan:
        # Reading every rule once binds what could not be bound before: metrics of other tables, functions over them.
        names = {name: name for name in values if name in subject.series}
        for name in values:
            alias = match_alias(name) if name not in names else None
            if alias is not None and alias in subject.series:
                names[alias] = min(name, names.get(alias, name))  # of several the one that the views show
        for name in names:
            self._greet(subject, name)
        present = names.keys() | {"step"}
        touched = names.keys() or {"step"}
        self._wake(subject, touched)
        cases = [
            case for case in self._cases[id(subject)] if not case.names.isdisjoint(touched) or case.names == {"step"}
        ]
        return _Plan(
            [(name, subject.series[key]) for key, name in names.items()],
            [watcher for watcher, needs in subject.order if needs & present],
            cases,
        )

    def _greet(self, subject: Subject, name: str) -> None:
        topic = ("unknown", subject.table, name)
        if subject.series[name].count == 0 and repr(topic) in self._warned:
            rules = self._waiting_for.get((subject.table, name), [])
            self._warn_once(f"rule '{rules[0] if rules else '?'}': metric '{name}' is now logged; the rule is active")

    # -- judging

    def _judge(self, case: _Case, changes: list[Change], *, by_point: bool) -> None:
        rule = case.rule
        self._judging = rule.name
        if case.state == FIRING:
            self._judge_firing(case, changes, by_point)
            return
        if not case.warm:
            if not _is_warm(rule.warmup, case.subject, self.now):
                return
            case.warm = True
        holds = case.condition()
        if holds is None:
            return
        if not holds:
            if case.state == PENDING:
                case.state = None
            case.true_count = 0
            return
        if case.state is None:
            case.since = self.now
            case.true_count = 0
        if by_point:
            case.true_count += 1
        if _has_passed(rule.wait, case.true_count, self.now - case.since):
            case.state = FIRING
            case.since_clear = None
            case.clear_count = 0
            changes.append(self._change(case, FIRING))
        elif case.state is None:
            case.state = PENDING
            changes.append(self._change(case, PENDING))

    def _judge_firing(self, case: _Case, changes: list[Change], by_point: bool) -> None:
        if case.clear is not None:
            over = case.clear()
        else:
            holds = case.condition()
            over = None if holds is None else not holds
        if over is None:
            return
        if not over:
            case.since_clear = None
            case.clear_count = 0
            return
        if case.since_clear is None:
            case.since_clear = self.now
        if by_point:
            case.clear_count += 1
        if _has_passed(case.rule.clear_wait, case.clear_count, self.now - case.since_clear):
            changes.append(self._change(case, RESOLVED))
            case.state = None
            case.true_count = 0

    def _change(self, case: _Case, state: str, reason: str = "") -> Change:
        rule, subject = case.rule, case.subject
        values: dict[str, Value] = {}
        for name, read in (*case.fields, *case.lets):
            value = read()
            if value is not None:
                values[name] = value
        for name in template.check(rule.message + rule.advice) - values.keys():
            series = subject.series.get(name)
            if series is not None and series.value is not None:
                values[name] = series.value
        value, threshold = _sides(case.sides)
        step = int(subject.step) if subject.table == "training" and subject.count else self._run_step()
        fields: dict[str, Any] = {**self._context, **subject.labels, **values}
        more = {"step": step, "value": value, "threshold": threshold}
        fields.update({name: item for name, item in more.items() if item is not None})
        if self._enrich is not None:
            self._enrich(rule, fields)
        message, missing = template.fill(rule.message or _default_message(rule), fields)
        advice, absent = template.fill(rule.advice, fields)
        if state == RESOLVED:
            message = case.message or message
        case.message = message
        for name in (*missing, *absent):
            self._warn_once(f"rule '{rule.name}': its message uses {{{name}}}, which has no value")
        return Change(
            rule, state, subject.labels, self.now - self._offset, step, case.since - self._offset,
            value, threshold, values, message, advice, reason,
        )  # fmt: skip

    def _run_step(self) -> int | None:
        ranks = self._by_table.get("training")
        return int(max(subject.step for subject in ranks)) if ranks else None

    # -- warnings

    def _warn_once(self, text: str, topic: tuple[str, str] | None = None) -> None:
        if topic is not None:
            self._warned.add(repr(("unknown", *topic)))
        if text not in self._warned:
            self._warned.add(text)
            self.problems.append(text)

    def _warn(self, text: str) -> None:
        self.problems.append(text)


class _Plan(NamedTuple):
    """What a line with these names touches."""

    series: list[tuple[str, Any]]
    watchers: list[Any]
    cases: list[_Case]


_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


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


def _sides(sides: list[Any]) -> tuple[Value, Value]:
    """The two sides of the comparison that decided: the first that is true."""
    fallback: tuple[Value, Value] = (None, None)
    for holds, left, right in sides:
        pair = (left(), right())
        if holds():
            return pair
        if fallback == (None, None):
            fallback = pair
    return fallback


def _default_message(rule: Rule) -> str:
    text = rule.when.replace("{", "{{").replace("}", "}}")
    return f"{rule.name}: {text}"
