"""Curves computed from others: `train/loss - val/loss`, `tokens / batch_time`, `ema(loss, 0.9)`.

A value is computed at each step that all curves of an operation have: nothing is interpolated or carried forward, and
of a step that was logged twice the last value counts. `ema` runs over all steps of its own curve, before that curve
meets another. Arithmetic is that of floats: 1 / 0 is infinity and 0 / 0 is NaN, at their step, like logged ones.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.errors import TrainvitalsError, nearest

Floats = NDArray[np.float64]
MAX_DEPTH = 40
"""Parentheses, functions and signs inside each other."""
TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<quoted>"[^"]*"|'[^']*'|`[^`]*`)
      | (?P<name>[^\W\d](?:[\w.@:]|/(?=[\w.@:]))*)
      | (?P<sign>\*\*|[-+*/(),])
      | (?P<end>$)
    )""",
    re.VERBOSE,
)


class ExpressionError(TrainvitalsError):
    """A text that is no expression; the message says where."""


class StepCurve(NamedTuple):
    """Values by ascending step, each step once."""

    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class Constant:
    """Such as 0.9."""

    value: float


@dataclass(frozen=True, slots=True)
class LoggedMetric:
    """A logged name."""

    name: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A function or an operator of values."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Constant | LoggedMetric | Applied
Value = StepCurve | float


def names_in(expression: Expression) -> list[str]:
    """The metrics it is computed from, each once."""
    if isinstance(expression, LoggedMetric):
        return [expression.name]
    inner = expression.arguments if isinstance(expression, Applied) else ()
    return list(dict.fromkeys(name for argument in inner for name in names_in(argument)))


# -- reading


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_expression(text: str) -> Expression:
    """What `text` says; raises ExpressionError. A slash between two letters or digits belongs to a name, as in
    `train/loss`; a division has a space beside it, or stands after a number, a quote or a parenthesis."""
    found = _Parser(text).parse()
    if not names_in(found):
        raise ExpressionError(f"'{text.strip()}' names no metric")
    return found


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while True:
        match = TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            problem = "a quote that is not closed" if text[at] in "\"'`" else f"'{text[at]}' is not understood"
            raise ExpressionError(f"{problem} {_place(at)}", hint="names with other characters are written in quotes")
        kind = str(match.lastgroup)
        yield _Token(kind, match[kind], match.start(kind))
        at = match.end()
        if kind == "end":
            return


def _place(at: int) -> str:
    return f"at character {at + 1}"


class _Parser:
    """Sums of products of signed powers."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def parse(self) -> Expression:
        found = self._sum()
        self._expect("end", "")
        return found

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += token.kind != "end"
        return token

    def _expect(self, kind: str, text: str) -> None:
        token = self._take()
        if (token.kind, token.text) != (kind, text):
            wanted = f"'{text}'" if text else "an operator"
            raise ExpressionError(f"expected {wanted} {_place(token.at)}, not {_spell(token)}")

    def _sum(self) -> Expression:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Expression:
        return self._chain(self._signed, "*", "/")

    def _chain(self, part: Callable[[], Expression], *signs: str) -> Expression:
        found = part()
        while self._peek().kind == "sign" and self._peek().text in signs:
            found = Applied(self._take().text, (found, part()))
        return found

    def _signed(self) -> Expression:
        token = self._peek()
        if token.kind == "sign" and token.text in "+-":
            self._take()
            inner = self._inside(self._signed, token)
            return Applied("negative", (inner,)) if token.text == "-" else inner
        base = self._value()
        if self._peek().text == "**":
            return Applied("**", (base, self._inside(self._signed, self._take())))
        return base

    def _inside(self, part: Callable[[], Expression], token: _Token) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested too deeply {_place(token.at)}")
        found = part()
        self._depth -= 1
        return found

    def _value(self) -> Expression:
        token = self._take()
        if token.kind == "number":
            return Constant(float(token.text))
        if token.kind == "quoted":
            return LoggedMetric(token.text[1:-1])
        if token.kind == "name":
            return self._call(token) if self._peek().text == "(" else LoggedMetric(token.text)
        if token.text == "(":
            found = self._inside(self._sum, token)
            self._expect("sign", ")")
            return found
        raise ExpressionError(f"expected a metric or a number {_place(token.at)}, not {_spell(token)}")

    def _call(self, name: _Token) -> Expression:
        function = FUNCTIONS.get(name.text)
        if function is None:
            raise ExpressionError(
                f"no function '{name.text}' {_place(name.at)}{nearest(name.text, FUNCTIONS)}",
                hint=f"there are {', '.join(sorted(FUNCTIONS))}",
            )
        self._expect("sign", "(")
        arguments = [self._inside(self._sum, name)]
        while self._peek().text == ",":
            self._take()
            arguments.append(self._inside(self._sum, name))
        self._expect("sign", ")")
        if not function.least <= len(arguments) <= function.most:
            raise ExpressionError(f"{name.text}() takes {function.takes}, not {len(arguments)} {_place(name.at)}")
        if name.text == "ema":
            weight = arguments[1]
            if not isinstance(weight, Constant) or not 0 <= weight.value < 1:
                raise ExpressionError(f"the weight of ema() is a number from 0 to less than 1 {_place(name.at)}")
        return Applied(name.text, tuple(arguments))


def _spell(token: _Token) -> str:
    return "the end" if token.kind == "end" else f"'{token.text}'"


# -- computing


def evaluate(expression: Expression, curves: Mapping[str, StepCurve]) -> StepCurve:
    """The curve that it describes; `curves` has every name in it."""
    with np.errstate(all="ignore"):
        found = _evaluate(expression, curves)
    assert isinstance(found, StepCurve)  # it names a metric
    return found


def as_curve(x: Floats, y: Floats) -> StepCurve:
    """Of points by ascending step: of several at one step the last."""
    last = np.append(x[1:] != x[:-1], True) if len(x) else np.zeros(0, dtype=bool)
    return StepCurve(x[last], y[last])


def _evaluate(expression: Expression, curves: Mapping[str, StepCurve]) -> Value:
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, LoggedMetric):
        return curves[expression.name]
    values = [_evaluate(argument, curves) for argument in expression.arguments]
    if expression.function == "ema" and isinstance(values[0], StepCurve):
        return StepCurve(values[0].x, _average(values[0].y, float(values[1])))  # type: ignore[arg-type] # checked above
    compute = OPERATORS.get(expression.function) or FUNCTIONS[expression.function].compute
    steps = [value.x for value in values if isinstance(value, StepCurve)]
    if not steps:
        return float(compute(*(np.float64(value) for value in values if not isinstance(value, StepCurve))))
    x = functools.reduce(lambda a, b: np.intersect1d(a, b, assume_unique=True), steps)
    operands = [value.y[np.searchsorted(value.x, x)] if isinstance(value, StepCurve) else value for value in values]
    return StepCurve(x, np.asarray(compute(*operands), dtype=np.float64))


def _average(values: Floats, weight: float) -> Floats:
    """Begins with the first value. NaN and infinity stay where they are, and do not reach the values after them."""
    found = values.copy()
    known: float | None = None
    for at, value in enumerate(values.tolist()):
        if math.isfinite(value):
            known = value if known is None else weight * known + (1 - weight) * value
            found[at] = known
    return found


class _Function(NamedTuple):
    compute: Callable[..., Any]
    least: int
    most: float
    takes: str


def _over_all(compute: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *values: functools.reduce(compute, values)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
    "negative": np.negative,
}
FUNCTIONS: Mapping[str, _Function] = {
    "abs": _Function(np.abs, 1, 1, "one value"),
    "ema": _Function(lambda value, _: value, 2, 2, "a value and a weight"),
    "exp": _Function(np.exp, 1, 1, "one value"),
    "log": _Function(np.log, 1, 1, "one value"),
    "max": _Function(_over_all(np.maximum), 2, math.inf, "two or more values"),
    "min": _Function(_over_all(np.minimum), 2, math.inf, "two or more values"),
    "sqrt": _Function(np.sqrt, 1, 1, "one value"),
}
