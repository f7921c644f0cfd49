"""Conditions bound to numbers: a tree becomes nested functions over the series of one GPU, rank, host or process.

Unknown is None and spreads: a metric that was never measured, a window with too little in it, a division by zero. A
condition that is unknown is neither true nor false. Tested in tests/alerts/test_engine.py.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from trainvitals import catalog
from trainvitals.alerts import windows
from trainvitals.alerts.language import (
    SHARED,
    WHOLE,
    Call,
    MetricReference,
    Node,
    Number,
    Operation,
    Text,
    Window,
    key,
    metrics,
)
from trainvitals.journal.identity import Participant, gpu_key, gpu_number

Value = float | bool | str | None
Read = Callable[[], Any]


class RuleSeries:
    """The newest value of one metric of one subject."""

    __slots__ = ("count", "time", "value")

    def __init__(self) -> None:
        self.value: float | str | None = None
        self.time: float | None = None
        self.count = 0


class Watcher:
    """A function that looks back: takes a value whenever its argument may have changed."""

    __slots__ = ("argument", "memory", "subject")

    def __init__(self, subject: Subject, memory: windows.Memory, argument: Read) -> None:
        self.subject = subject
        self.memory = memory
        self.argument = _answer_unknown(argument)

    def advance(self) -> None:
        value = self.argument()
        if isinstance(value, (int, float)):
            subject = self.subject
            self.memory.add(float(value), subject.count, subject.step, subject.clock.now)


class SubjectClock(Protocol):
    """Where a subject learns the time and its siblings."""

    now: float

    def subjects(self, table: str) -> Iterable[Subject]:
        """Everything that table speaks of."""

    def baseline(self, metric: str, step: float) -> float | None:
        """The value of another run at that step, None without one."""

    def trouble(self, text: str) -> None:
        """Something went wrong in a rule; warned about once."""


class Subject:
    """One GPU, rank, host or process: its series and what looks back over them."""

    __slots__ = (
        "clock",
        "count",
        "first_time",
        "labels",
        "last_time",
        "order",
        "series",
        "step",
        "table",
        "watchers",
    )

    def __init__(self, table: str, labels: Mapping[str, Any], clock: SubjectClock) -> None:
        self.table = table
        self.labels = dict(labels)
        self.clock = clock
        self.series: dict[str, RuleSeries] = {}
        self.watchers: dict[tuple[object, ...], tuple[Watcher, frozenset[str]]] = {}
        self.order: list[tuple[Watcher, frozenset[str]]] = []
        """Inner functions before those that look at them."""
        self.count = 0
        self.step: float = 0
        self.first_time: float | None = None
        self.last_time = 0.0

    def is_selected(self, selector: tuple[str, ...] | None) -> bool:
        if selector is None:
            return True
        if self.table == "event":
            return str(self.labels.get("event")) in selector
        if self.table == "openmetrics":  # whose labels are whatever the page has: by value, or by name and value
            found = {str(value) for value in self.labels.values()} | {f"{k}={v}" for k, v in self.labels.items()}
            return not found.isdisjoint(selector)
        if "rank" in self.labels:  # a participant: `0` is a trainer, `rollout` are all of that role
            participant = Participant.of(self.labels)
            return str(participant) in selector or participant.role in selector
        if self.table != "gpu":
            return False
        # `0` is also each slice of GPU 0, `0:2` the one of these.
        names = (str(self.labels.get("gpu_index")), gpu_number(self.labels), gpu_key(self.labels))
        return any(name in selector for name in names)

    def is_peer(self, other: Subject) -> bool:
        """Whether both may be compared: trainers are not slow because rollouts are faster."""
        roles = (self.labels.get("role"), other.labels.get("role"))
        return roles[0] == roles[1] or any("rank" not in item.labels for item in (self, other))

    def find(self, name: str) -> RuleSeries:
        """The series of that name, made if it is not there yet."""
        found = self.series.get(name)
        if found is None:
            found = self.series[name] = RuleSeries()
        return found


def names_of(metric: MetricReference) -> tuple[str, ...]:
    """Under which names the metric may be logged: its own first, then the catalog's other spellings."""
    row = catalog.find(metric.table, metric.name)
    if row is None:
        return (metric.name,)
    return tuple(dict.fromkeys((metric.name, row.name, *row.aliases)))


def company_of(metric: MetricReference) -> tuple[str, ...]:
    """Names of which one has to be logged too before an alias of the metric counts; empty if none has to."""
    row = catalog.find(metric.table, metric.name)
    return names_of(replace(metric, name=row.beside)) if row is not None and row.beside else ()


def compile_whole(node: Node, subject: Subject) -> Read:
    """The same for something that a rule asks as a whole. A program may log a text, or a list, under the name of a
    number: then the answer is unknown."""
    return _answer_unknown(compile_node(node, subject))


def _answer_unknown(read: Read) -> Read:
    def answer() -> Any:
        try:
            return read()
        except (TypeError, ValueError, OverflowError):
            return None

    return answer


def compile_node(node: Node, subject: Subject) -> Read:
    """A function that gives the node's value for this subject, now."""
    if isinstance(node, (Number, Text)):
        constant = node.value
        return lambda: constant
    if isinstance(node, MetricReference):
        return _compile_metric(node, subject)
    if isinstance(node, Operation):
        return _compile_operation(node, subject)
    return _compile_call(node, subject)


def _home(metric: MetricReference, subject: Subject) -> Callable[[], Subject | None]:
    """Where the metric lives: here, or with a thing of another table (the first of them, such as the lowest rank)."""
    if metric.table == subject.table and subject.is_selected(metric.selector):
        return lambda: subject
    found: list[Subject] = []

    def look() -> Subject | None:
        if not found:
            others = (item for item in subject.clock.subjects(metric.table) if item.is_selected(metric.selector))
            first = min(others, key=lambda item: Participant.of(item.labels), default=None)
            if first is None:
                return None
            found.append(first)
        return found[0]

    return look


def _compile_metric(metric: MetricReference, subject: Subject) -> Read:
    names = names_of(metric)
    home = _home(metric, subject)
    if metric.table == "training" and metric.name == "step":

        def read_step() -> float | None:
            place = home()
            return place.step if place is not None and place.count else None

        return read_step
    company = company_of(metric)
    chosen: list[RuleSeries] = []

    def read() -> float | str | None:
        if chosen:
            return chosen[0].value
        place = home()
        if place is None:
            return None
        own, *aliases = (place.find(name) for name in names)
        nearby = [place.find(name) for name in company]
        for series in (own, *aliases) if not nearby or any(other.count for other in nearby) else (own,):
            if series.count:
                chosen.append(series)
                return series.value
        return None

    read()  # so that the subject knows which names are wanted
    return read


# -- operators


def _compile_operation(node: Operation, subject: Subject) -> Read:
    sign = node.operator
    first = compile_node(node.operands[0], subject)
    if sign == "not":

        def negate() -> bool | None:
            value = first()
            return None if value is None else not value

        return negate
    if sign == "negative":

        def negative() -> float | None:
            value = first()
            return None if value is None else -value

        return negative
    second = compile_node(node.operands[1], subject)
    if sign == "and":

        def both() -> bool | None:
            a = first()
            if a is False:
                return False
            b = second()
            return False if b is False else None if a is None or b is None else True

        return both
    if sign == "or":

        def either() -> bool | None:
            a = first()
            if a is True:
                return True
            b = second()
            return True if b is True else None if a is None or b is None else False

        return either
    if sign == "/":

        def divide() -> float | None:
            a, b = first(), second()
            if a is None or b is None:
                return None
            if b == 0:
                subject.clock.trouble("division by zero")
                return None
            quotient: float = a / b
            return quotient

        return divide
    function = _TWO[sign]
    right = node.operands[1]
    if isinstance(right, (Number, Text)):
        constant = right.value

        def apply_constant() -> Any:
            a = first()
            return None if a is None else function(a, constant)

        return apply_constant

    def apply() -> Any:
        a = first()
        if a is None:
            return None
        b = second()
        return None if b is None else function(a, b)

    return apply


_TWO: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

# -- functions

_ONE: Mapping[str, Callable[[Any], Any]] = {
    "abs": abs,
    "isnan": math.isnan,
    "isinf": math.isinf,
    "isfinite": math.isfinite,
}
_PAIRS: Mapping[str, Callable[[Any, Any], Any]] = {
    "at_least": max,
    "at_most": min,
    "contains": lambda text, part: part in text,
}
_ACROSS: Mapping[str, Callable[[list[float]], float | None]] = {
    "mean": lambda values: sum(values) / len(values) if values else None,
    "median": lambda values: statistics.median(values) if values else None,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else None,
    "count": lambda values: float(len(values)),
    # Half of the odd one of two would be in their median.
    "usual": lambda values: (statistics.median(values) if len(values) > 2 else min(values)) if values else None,
}


def _compile_call(node: Call, subject: Subject) -> Read:
    if node.across:
        return _compile_across(node, subject)
    if node.window is not None or node.name in WHOLE:
        return _compile_window(node, subject)
    if node.name == "stale":
        return _compile_stale(node, subject)
    arguments = [compile_node(argument, subject) for argument in node.arguments]
    if node.name in _ONE:
        function, argument = _ONE[node.name], arguments[0]

        def apply() -> Any:
            value = argument()
            return None if value is None else function(value)

        return apply
    two = _PAIRS[node.name]
    first, second = arguments

    def apply_two() -> Any:
        a, b = first(), second()
        return None if a is None or b is None else two(a, b)

    return apply_two


def _compile_stale(node: Call, subject: Subject) -> Read:
    metric = node.arguments[0]
    assert isinstance(metric, MetricReference)
    home, names = _home(metric, subject), names_of(metric)
    compile_node(metric, subject)

    def stale() -> float | None:
        place = home()
        if place is None:
            return None
        if metric.name == "step":
            return subject.clock.now - place.last_time if place.count else None
        times = [place.find(name).time for name in names]
        newest = max((time for time in times if time is not None), default=None)
        return None if newest is None else subject.clock.now - newest

    return stale


def _compile_window(node: Call, subject: Subject) -> Read:
    metric = next(metrics(node))
    home = _home(metric, subject)
    share = _share(node)
    clock = subject.clock
    bound: list[Callable[[float], float | None]] = []

    def read() -> float | None:
        if not bound:
            place = home()
            if place is None:
                return None
            bound.append(windows.question(node.name, watch(node, place).memory, share))
        return bound[0](clock.now)

    read()
    if node.name != "baseline":
        return read

    def read_baseline() -> float | None:
        other = clock.baseline(metric.name, subject.step)
        return other if other is not None else read()

    return read_baseline


def _share(node: Call) -> float:
    second = node.arguments[1] if len(node.arguments) > 1 else None
    return second.value if isinstance(second, Number) else 0.5


def watch(node: Call, subject: Subject) -> Watcher:
    """What this function keeps of this subject, shared by all rules and functions that keep the same."""
    family = windows.family(node.name)
    share = _share(node) if node.name in SHARED else None
    wanted = (family, node.window, share, key(node.arguments[0]))
    if wanted not in subject.watchers:
        has_steps = subject.table == "training"
        memory = windows.create(node.name, node.window or Window(), _share(node), has_steps=has_steps)
        argument = compile_node(node.arguments[0], subject)  # makes the inner watchers first
        names = frozenset(name for metric in metrics(node) for name in names_of(metric))
        watcher = Watcher(subject, memory, argument)
        subject.watchers[wanted] = (watcher, names)
        subject.order.append((watcher, names))
    return subject.watchers[wanted][0]


def _compile_across(node: Call, subject: Subject) -> Read:
    function = _ACROSS[node.name]
    metric = next(metrics(node))
    argument = node.arguments[0]
    reads: dict[int, Read] = {}

    def across() -> float | None:
        values = []
        for other in list(subject.clock.subjects(metric.table)):
            if not subject.is_peer(other):
                continue
            read = reads.get(id(other))
            if read is None:
                read = reads[id(other)] = compile_node(argument, other)
            value = read()
            if value is not None and value - value == 0.0:
                values.append(value)
        return function(values)

    return across
