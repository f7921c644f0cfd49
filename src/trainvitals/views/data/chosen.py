"""What a panel of the user draws: names, patterns of names and expressions, as texts.

`loss` is a logged name; `val/*` all names that fit; `/block_[12]/` all in which the regular expression matches;
everything else is an expression (`trainvitals.analysis.expressions`). A name always comes first. A text with `*` or `?`
and neither spaces nor parentheses is a pattern: a product is written `a * b`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.expressions import (
    Expression,
    ExpressionError,
    LoggedMetric,
    StepCurve,
    as_curve,
    evaluate,
    names_in,
    parse_expression,
)
from trainvitals.errors import nearest
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.downsample import pick
from trainvitals.journal.identity import Participant
from trainvitals.journal.points import Axis, Floats
from trainvitals.views.data.clock import read_clock
from trainvitals.views.data.run_search import is_expression, match_texts

MAX_CHOSEN = 100
"""Names that one pattern may stand for."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What texts stand for in one run, in their order: a logged name, or an expression under its text."""

    items: tuple[tuple[str, Expression], ...]
    problems: tuple[str, ...]
    """Why something is not drawn, in sentences."""


def choose(texts: Iterable[str], logged: Sequence[str]) -> Chosen:
    """Names and expressions that can be drawn of a run; raises ExpressionError for what no run could draw."""
    known = set(logged)
    items: dict[str, Expression] = {}
    problems: list[str] = []
    for text in texts:
        text = text.strip()
        if text in known:
            items[text] = LoggedMetric(text)
        elif (pattern := _find(text, logged)) is not None:
            if not pattern:
                problems.append(f"no metric matches {text}")
            items.update((name, LoggedMetric(name)) for name in pattern[:MAX_CHOSEN])
            if len(pattern) > MAX_CHOSEN:
                problems.append(f"{text} matches {len(pattern)} metrics: only the first {MAX_CHOSEN} are shown")
        else:
            expression = _parse(text)
            missing = [name for name in names_in(expression) if name not in known]
            problems += [_explain_missing(name, known) for name in missing]
            if not missing:
                items[expression.name if isinstance(expression, LoggedMetric) else text] = expression
    return Chosen(tuple(items.items()), tuple(dict.fromkeys(problems)))


def _parse(text: str) -> Expression:
    try:
        return parse_expression(text)
    except ExpressionError as error:  # one of several
        raise ExpressionError(f"{text}: {error.message}", hint=error.hint) from error


def _find(text: str, logged: Sequence[str]) -> list[str] | None:
    """The names that a pattern stands for; None if it is no pattern."""
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        if not is_expression(text[1:-1]):
            raise ExpressionError(f"{text} is not a regular expression")
        found = match_texts(text[1:-1], set(logged))
        return [name for name in logged if name in found]
    is_pattern = ("*" in text or "?" in text) and not any(c in " ()\"'`," or c.isspace() for c in text)
    if not is_pattern or text[0].isdigit():
        return None
    return [name for name in logged if fnmatch.fnmatchcase(name, text)]


def _explain_missing(name: str, known: set[str]) -> str:
    head, slash, rest = name.rpartition("/")
    if slash and head in known and (rest in known or rest.isdigit()):
        return f"no metric '{name}'; to divide, put spaces around the slash: {head} / {rest}"
    return f"no metric '{name}'{nearest(name, known)}"


def compute_series(
    reader: Reader,
    chosen: Chosen,
    *,
    x: Axis = "step",
    start: float | None = None,
    end: float | None = None,
    points: int | None = None,
    participants: Sequence[Participant] | None = None,
) -> tuple[list[Series], list[str]]:
    """The curves of all that was chosen, and why some are not there. An expression is computed from every logged value
    of the newest attempts, for each participant that has all of its metrics, before points are left out."""
    series: list[Series] = []
    problems: list[str] = []
    for text, expression in chosen.items:
        if isinstance(expression, LoggedMetric):
            series += reader.series(
                [expression.name], x=x, start=start, end=end, max_points=points, participants=participants
            )
            continue
        found = _compute(reader, text, expression, participants)
        if not any(len(item.x) for item in found):
            problems.append(f"{text}: no step has all of {', '.join(names_in(expression))}")
        series += [_cut(_over(reader, item, expression, x), start, end, points) for item in found if len(item.x)]
    return series, problems


def _compute(
    reader: Reader, text: str, expression: Expression, participants: Sequence[Participant] | None
) -> list[Series]:
    names = names_in(expression)
    by_participant: dict[Participant, dict[str, Series]] = {}
    for item in reader.series(names, participants=participants):
        by_participant.setdefault(item.participant, {})[item.name] = item
    computed = []
    for parts in by_participant.values():
        if len(parts) == len(names):
            curves: dict[str, StepCurve] = {name: as_curve(item.x, item.y) for name, item in parts.items()}
            x, y = evaluate(expression, curves)
            first = parts[names[0]]
            computed.append(Series(text, first.labels, first.rank, x, y, len(x), int((~np.isfinite(y)).sum())))
    return computed


def _over(reader: Reader, series: Series, expression: Expression, x: Axis) -> Series:
    """By the time at which its steps were logged."""
    if x == "step":
        return series
    clock = read_clock(reader, names_in(expression), x=x, participants=[series.participant])
    if clock is None:
        return _at(series, np.zeros(len(series.x), dtype=bool), series.x)
    known = series.x >= clock.steps[0]
    return _at(series, known, np.interp(series.x, clock.steps, clock.times))


def _cut(series: Series, start: float | None, end: float | None, points: int | None) -> Series:
    inside = np.ones(len(series.x), dtype=bool)
    if start is not None:
        inside &= series.x >= start
    if end is not None:
        inside &= series.x <= end
    series = series if inside.all() else _at(series, inside, series.x)
    if points is None or len(series.y) <= points:
        return series
    kept = pick(series.y, points)
    return replace(series, x=series.x[kept], y=series.y[kept])


def _at(series: Series, keep: NDArray[np.bool_], x: Floats) -> Series:
    y = series.y[keep]
    return replace(series, x=x[keep], y=y, total=len(y), nonfinite=int((~np.isfinite(y)).sum()))
