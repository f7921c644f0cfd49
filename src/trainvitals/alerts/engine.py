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
from trainvitals.alerts.cases import FIRING, RESOLVED, Candidate, Case
from trainvitals.alerts.evaluation import Subject, Value, company_of, names_of
from trainvitals.alerts.language import metrics
from trainvitals.alerts.rule_clock import RuleClock
from trainvitals.alerts.rule_problems import RuleProblems
from trainvitals.alerts.rules import Rule
from trainvitals.catalog import match_alias

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
        self._context = dict(context or {})
        self._baseline = baseline
        self._enrich = enrich
        self._time = RuleClock()
        self._problems = RuleProblems(self.rules)
        self._subjects: dict[tuple[object, ...], Subject] = {}
        self._by_table: dict[str, list[Subject]] = {}
        self._cases: dict[int, list[Case]] = {}
        self._timed: list[Case] = []
        self._restored: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._plans: dict[tuple[int, int, tuple[str, ...]], _Plan] = {}
        self._judging: str = ""
        self._candidates = [Candidate.of(place, rule) for place, rule in enumerate(self.rules)]
        self._asleep: dict[int, list[Candidate]] = {}
        """Of each subject, the rules of which its lines have had nothing yet."""
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
        self._problems.add_once(f"rule '{self._judging}': {text} in its condition; skipped until that changes")

    # -- input

    def feed(self, point: Point, *, judge: bool = True) -> list[Change]:
        """Take in one line. With `judge` False it only fills the windows: history that was judged before."""
        self._time.see(point.time, (point.table, *point.labels.values()))
        self.now = self._time.now
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
        jump = self._time.tick(wall, monotonic)
        self.now = self._time.now
        if jump is not None:
            self._problems.add(f"the clock jumped by {jump:+.0f} s; alerts use the time that really passed")
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
        """Warnings about the rules themselves, each once."""
        return self._problems.take()

    def report_unknown(self) -> None:
        """Tell which metrics that rules ask for have not been seen and are in no table: a typing error, or to come."""
        for table in ("training", "openmetrics"):
            self._problems.report_unknown(table, self.subjects(table))

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

    # -- subjects and cases

    def _subject(self, point: Point) -> Subject | None:
        labels = point.labels
        # gpu="0" and rank="0" of a scraped page are different series.
        parts = labels.items() if point.table == "openmetrics" else labels.values()
        key: tuple[object, ...] = (point.table, *parts)
        subject = self._subjects.get(key)
        if subject is None:
            if len(self._subjects) >= MAX_SUBJECTS:
                self._problems.add_once(
                    f"more than {MAX_SUBJECTS} different devices, ranks and series; rules ignore the rest"
                )
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

    def _make_case(self, candidate: Candidate, subject: Subject) -> Case:
        self._judging = candidate.rule.name
        case = Case(candidate, subject)
        self._restore_case(case)
        return case

    def _restore_case(self, case: Case) -> None:
        key = (case.rule.name, tuple(sorted((k, str(v)) for k, v in case.subject.labels.items())))
        since = self._restored.pop(key, None)
        if since is not None:
            case.restore(since)

    def _all_cases(self) -> list[Case]:
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
            if subject.series[name].count == 0:
                self._problems.greet(subject.table, name)
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

    # -- judging

    def _judge(self, case: Case, changes: list[Change], *, by_point: bool) -> None:
        self._judging = case.rule.name
        state = case.judge(self.now, by_point=by_point)
        if state is not None:
            changes.append(self._change(case, state))

    def _change(self, case: Case, state: str, reason: str = "") -> Change:
        rule, subject = case.rule, case.subject
        values = case.read_values()
        value, threshold = case.read_sides()
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
            self._problems.add_once(f"rule '{rule.name}': its message uses {{{name}}}, which has no value")
        return Change(
            rule, state, subject.labels, self.now - self._time.offset, step, case.since - self._time.offset,
            value, threshold, values, message, advice, reason,
        )  # fmt: skip

    def _run_step(self) -> int | None:
        ranks = self._by_table.get("training")
        return int(max(subject.step for subject in ranks)) if ranks else None


class _Plan(NamedTuple):
    """What a line with these names touches."""

    series: list[tuple[str, Any]]
    watchers: list[Any]
    cases: list[Case]


_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _default_message(rule: Rule) -> str:
    text = rule.when.replace("{", "{{").replace("}", "}}")
    return f"{rule.name}: {text}"
