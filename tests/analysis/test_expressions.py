"""Curves computed from others."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.analysis.expressions import (
    MAX_DEPTH,
    ExpressionError,
    StepCurve,
    as_curve,
    evaluate,
    names_in,
    parse_expression,
)

STEPS = np.arange(5.0)
CURVES = {
    "train/loss": StepCurve(STEPS, np.array([5.0, 4.0, 3.0, 2.0, 1.0])),
    "val/loss": StepCurve(np.array([1.0, 3.0]), np.array([4.5, 3.5])),
    "a": StepCurve(STEPS, np.array([0.0, 1.0, -2.0, math.nan, 4.0])),
    "b": StepCurve(STEPS, np.array([0.0, 0.0, 2.0, 1.0, math.inf])),
    "top-1 (%)": StepCurve(STEPS, STEPS),
}


def values_of(text: str) -> dict[float, float]:
    found = evaluate(parse_expression(text), CURVES)
    return dict(zip(found.x.tolist(), found.y.tolist(), strict=True))


def test_only_steps_that_all_have_are_computed() -> None:
    assert values_of("train/loss - val/loss") == {1.0: -0.5, 3.0: -1.5}


def test_an_average_runs_over_every_step_of_its_own_curve() -> None:
    assert values_of("ema(train/loss, 0.5) - val/loss") == {1.0: 0.0, 3.0: 2.875 - 3.5}


def test_an_average_leaves_nan_in_place_and_goes_on_after_it() -> None:
    found = values_of("ema(a, 0.5)")
    assert math.isnan(found.pop(3.0)) and found == {0.0: 0.0, 1.0: 0.5, 2.0: -0.75, 4.0: 1.625}


def test_division_by_zero_is_infinity_or_nan_at_its_step() -> None:
    found = values_of("a / b")
    assert math.isnan(found[0.0]) and found[1.0] == math.inf and found[2.0] == -1 and math.isnan(found[3.0])
    assert found[4.0] == 0
    assert math.isnan(values_of("sqrt(a)")[2.0]) and values_of("log(b)")[0.0] == -math.inf


@pytest.mark.parametrize(
    ("text", "at_two"),
    [
        ("2 + 3 * train/loss", 11),
        ("(2 + 3) * train/loss", 15),
        ("-train/loss ** 2", -9),
        ("2 ** -a", 4),
        ("2 ** 3 ** 0 * b", 4),
        ("10 - b - 3", 5),
        ("12 / b / 3", 2),
        ("(b)/2", 1),
        ('"top-1 (%)"/4', 0.5),
        ("`top-1 (%)` * 1e1", 20),
        ("max(a, b, 0.5)", 2),
        ("min(a, b) + abs(a) + sqrt(4) + exp(0) + log(1)", 3),
        (" +b ", 2),
    ],
)
def test_it_means_what_it_means_in_python(text: str, at_two: float) -> None:
    assert values_of(text)[2.0] == pytest.approx(at_two)


def test_of_a_step_that_was_logged_twice_the_last_counts() -> None:
    found = as_curve(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 20.0, 3.0]))
    assert (found.x.tolist(), found.y.tolist()) == ([1, 2, 3], [1, 20, 3])
    assert len(as_curve(np.zeros(0), np.zeros(0)).x) == 0


def test_a_slash_inside_a_word_belongs_to_the_name() -> None:
    assert names_in(parse_expression("train/loss/a - tokens / time + ndcg@10 * train/loss/a")) == [
        "train/loss/a",
        "tokens",
        "time",
        "ndcg@10",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a metric or a number at character 1, not the end"),
        ("a -", "expected a metric or a number at character 4, not the end"),
        ("a b", "expected an operator at character 3, not 'b'"),
        ("(a", "expected ')' at character 3, not the end"),
        ("a - % b", "'%' is not understood at character 5"),
        ('a - "b', "a quote that is not closed at character 5"),
        ("1 + 2", "'1 + 2' names no metric"),
        ("a + maxx(b, 2)", "no function 'maxx' at character 5, did you mean 'max'?"),
        ("abs(a, b)", "abs() takes one value, not 2 at character 1"),
        ("min(a)", "min() takes two or more values, not 1 at character 1"),
        ("ema(a, 1)", "the weight of ema() is a number from 0 to less than 1 at character 1"),
        ("ema(a, b)", "the weight of ema() is a number from 0 to less than 1 at character 1"),
        ("__import__('os')", "no function '__import__' at character 1"),
    ],
)
def test_an_error_names_its_place(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text)
    assert caught.value.message == message


@pytest.mark.parametrize("text", ["(" * 9999 + "a", "-" * 9999 + "a", "2 ** " * 9999 + "a", "abs(" * 9999 + "a"])
def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="nested too deeply"):
        parse_expression(text)
    assert parse_expression("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)


# -- against numpy

leaves = st.sampled_from(["a", "b", "c"]) | st.floats(0, 1e3).map(repr)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda text: f"-{text}"),
        st.tuples(st.sampled_from(["abs", "sqrt", "log"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=8,
)
numbers = st.lists(st.floats(), min_size=6, max_size=6).map(np.array)
NUMPY: dict[str, Any] = {"abs": np.abs, "sqrt": np.sqrt, "log": np.log, "min": np.minimum, "max": np.maximum}


@given(expressions, numbers, numbers, numbers)
def test_values_are_those_of_numpy(text: str, a: Any, b: Any, c: Any) -> None:
    text = f"{text} + a"
    x = np.arange(6.0)
    found = evaluate(parse_expression(text), {name: StepCurve(x, y) for name, y in zip("abc", (a, b, c), strict=True)})
    scope = {**NUMPY, "a": a, "b": b, "c": c, "zero": np.zeros(6)}
    # Python's own arithmetic of plain numbers raises where floats have infinity.
    spelled = re.sub(r"(?<![\w.])(\d[\d.]*(?:e[+-]?\d+)?)", r"(zero + \1)", text)
    with np.errstate(all="ignore"):
        expected = eval(spelled, {"__builtins__": {}}, scope)
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.y, np.broadcast_to(expected, 6))


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        assert names_in(parse_expression(text))
    except ExpressionError as error:
        assert error.message
