"""Conditions are parsed, checked and never run as Python; what is wrong is pointed at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.alerts import language
from trainvitals.alerts.language import RuleError, parse, parse_condition


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("loss >", 6, "missing value"),
        ("loss > 2 * medain(loss, 200)", 11, "did you mean 'median'"),
        ("loss > 'a'", 5, "cannot compare a number with a text"),
        ("gpu[*].temprature_celsius > 3", 7, "did you mean 'temperature_celsius'"),
        ("mean(loss) > 3", 0, "needs a window"),
        ("loss = 3", 5, "use =="),
        ("1 < loss < 3", 9, "one comparison at a time"),
        ("median(loss, 20000) > 1", 13, "1 to 10,000"),
        ("median(loss, 0) > 1", 13, "1 to 10,000"),
        ("loss", 0, "not a condition"),
        ("memory_used_mb > 3", 0, "gpu[*].memory_used_mb"),
        ("quantile(loss, 2, 200) > 3", 15, "share from 0 to 1"),
        ("loss > 3 & loss < 4", 9, "use 'and'"),
        ("gpu.state == 3", 10, "cannot compare a text with a number"),
        ("(loss > 3", 9, "expected ')'"),
        ("loss > 3)", 8, "unexpected ')'"),
        ("loss.__class__ > 3", 4, "unexpected '.'"),
        ("__import__('os')", 0, "unknown function"),
        ("loss > 90%", 9, "percentages"),
        ("loss > $nothing", 7, "unknown threshold"),
        ("not loss", 4, "expected a condition"),
        ("loss + (loss > 1) > 2", 8, "needs a number"),
        ("loss > 3x", 7, "not a number"),
        ("gpu[.x > 1", 4, "expected an index"),
        ("mean(loss + gpu[0].power_draw_watts, 5) > 1", 0, "one table"),
        ("stale(loss + 1) > 3", 6, "takes a metric"),
        ("slope(loss, all) > 0", 12, "a bounded window"),
        ("first(loss, 5m) > 0", 12, "a number of values"),
        ("first(loss) > 0", 0, "needs a value"),
        ("usual(loss) > 0", 0, "needs [*]"),
        ('gpu.state > "lost"', 10, "only be compared with == and !="),
        ("", 0, "empty"),
    ],
)
def test_an_error_points_at_the_character(text: str, at: int, says: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_condition(text)
    assert says in caught.value.reason
    if text:
        assert caught.value.position == at, str(caught.value)
        shown = str(caught.value).splitlines()
        assert shown[-1].index("^") - 4 == at


@pytest.mark.parametrize(
    "text",
    [
        "loss > 2 * median(loss, 200)",
        "gpu[*].temperature_celsius > 80 and not (gpu[*].fan_speed_percent > 0)",
        "gpu[0].power_draw_watts - gpu[1].power_draw_watts > 50 or gpu[0,1].power_draw_watts > 300",
        "`val/loss` >= min(`val/loss`, all) * 1.1",
        "stale(loss) > 5m",
        "median(loss, 20 values) > 2 * first(loss, 10)",
        "mean(loss, 5m) < -1e-3",
        "quantile(batch_time, 0.99, 1000 steps) > 3 * median(batch_time, 1000)",
        'gpu.state == "lost" or contains(gpu[*].throttle_reasons, "thermal")',
        "median(rank[*].forward_time) > 1",
        "median(rank[*].data_time + rank[*].forward_time, 50) > 1.25 * usual(rank[*].forward_time)",
        "rank[3].loss > 1",
        "min(median(loss, 50), all) < 3",
        "isnan(loss) or isinf(loss) or not isfinite(loss)",
        "event[checkpoint].total > 0",
        "--loss > 3",
        "abs(change(loss, 10)) > at_least(1, loss / 2)",
    ],
)
def test_what_the_language_can_say(text: str) -> None:
    assert language.type_of(parse_condition(text)) == "condition"


def test_arithmetic_binds_as_in_mathematics() -> None:
    tree = parse("1 + 2 * 3 - 4 / 2")
    assert isinstance(tree, language.Operation)
    assert tree.operator == "-"
    first = tree.operands[0]
    assert isinstance(first, language.Operation)
    assert (first.operator, first.operands[1].operator) == ("+", "*")  # type: ignore[union-attr]


def test_and_binds_tighter_than_or_and_not_tighter_still() -> None:
    tree = parse("loss > 1 or loss > 2 and not loss > 3")
    assert isinstance(tree, language.Operation)
    assert tree.operator == "or"
    assert tree.operands[1].operator == "and"  # type: ignore[union-attr]


def test_a_duration_is_seconds() -> None:
    assert [parse(text).value for text in ("500ms", "3s", "2m", "1h", "1d")] == [0.5, 3, 120, 3600, 86400]  # type: ignore[union-attr]


def test_a_known_name_finds_its_table_and_an_unknown_one_is_the_trainings_own() -> None:
    tables = [next(language.metrics(parse(name))).table for name in ("loss", "cpu_usage_percent", "my_own")]
    assert tables == ["training", "system", "training"]


@pytest.mark.promise("an endlessly nested rule", "it is refused")
def test_nesting_without_end_is_refused_and_not_a_crash() -> None:
    with pytest.raises(RuleError, match="nested too deeply"):
        parse("(" * 500 + "1" + ")" * 500)
    with pytest.raises(RuleError, match="longer than"):
        parse("1 + " * 1000 + "1")
    assert language.type_of(parse("-" * 1500 + "1")) == "number"


@given(st.text(alphabet="lossgpu[*].()<>=!+-/,'\"`$ 0123456789eandornotmax", max_size=60))
def test_any_text_gives_a_tree_or_an_error_that_says_where(text: str) -> None:
    try:
        parse(text)
    except RuleError as error:
        assert error.position is not None
        assert 0 <= error.position <= len(text)
