"""What a panel of the user draws, asked of the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import trainvitals
from trainvitals.analysis.expressions import ExpressionError, LoggedMetric
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.chosen import MAX_CHOSEN, choose
from trainvitals.views.data.series import describe_series
from trainvitals.views.data.wire import encode

NAMES = ["a-b", "batch_time", "block_1/norm", "block_2/norm", "tokens", "train/loss", "val/acc", "val/loss"]
Row = dict[str, Any]


def chosen_names(*texts: str) -> list[str]:
    return [text for text, _ in choose(texts, NAMES).items]


def test_names_patterns_and_expressions_are_told_apart() -> None:
    assert chosen_names("train/loss", "val/*", "/block_[12]/") == [
        "train/loss", "val/acc", "val/loss", "block_1/norm", "block_2/norm",
    ]  # fmt: skip
    assert chosen_names("a-b", "tokens * batch_time", "2*tokens") == ["a-b", "tokens * batch_time", "2*tokens"]
    assert choose([' "val/loss" '], NAMES).items == (("val/loss", LoggedMetric("val/loss")),)
    assert chosen_names("val/loss", "val/*", "val/loss") == ["val/loss", "val/acc"], "each once"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("train/los - 1", "no metric 'train/los', did you mean 'train/loss'?"),
        ("tokens/tokens", "no metric 'tokens/tokens'; to divide, put spaces around the slash: tokens / tokens"),
        ("tokens/2 + 1", "no metric 'tokens/2'; to divide, put spaces around the slash: tokens / 2"),
        ("zz*", "no metric matches zz*"),
        ("/zz/", "no metric matches /zz/"),
    ],
)  # fmt: skip
def test_what_a_run_lacks_is_said(text: str, problem: str) -> None:
    found = choose([text, "tokens"], NAMES)
    assert found.problems == (problem,) and [name for name, _ in found.items] == ["tokens"]


def test_a_pattern_for_very_many_names_is_cut() -> None:
    found = choose(["m*"], [f"m{at}" for at in range(300)])
    assert len(found.items) == MAX_CHOSEN and "only the first 100" in found.problems[0]


def test_an_error_says_which_of_several_it_is_about() -> None:
    with pytest.raises(ExpressionError, match="a -: expected a metric or a number"):
        choose(["tokens", " a - "], NAMES)


def test_a_regular_expression_that_is_none_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="not a regular expression"):
        choose(["/(/"], NAMES)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., RunReader]:
    def make(*attempts: dict[int, Row]) -> RunReader:
        folder = None
        for rows in attempts:
            more: Row = {"resume": folder.name} if folder else {}
            run = trainvitals.init(project="p", name="run", dir=tmp_path, agent=False, **more)
            for step, row in rows.items():
                run.log(row, step=step)
            run.finish()
            folder = Path(run.folder)
        assert folder is not None
        return RunReader(folder)

    return make


def answer_of(reader: RunReader, *chosen: str, **more: Any) -> Any:
    return orjson.loads(encode(describe_series(reader, [], chosen=chosen, **more)))


def test_a_difference_is_at_the_steps_that_both_have(write: Callable[..., RunReader]) -> None:
    rows = {step: {"train/loss": 5.0 - step, **({"val/loss": 5.0} if step % 2 else {})} for step in range(5)}
    (series,) = answer_of(write(rows), "train/loss - val/loss")["series"]
    assert (series["name"], series["x"], series["y"], series["total"]) == ("train/loss - val/loss", [1, 3], [-1, -3], 2)


def test_a_division_by_zero_is_marked_like_a_logged_infinity(write: Callable[..., RunReader]) -> None:
    (series,) = answer_of(write({0: {"a": 1.0, "b": 2.0}, 1: {"a": 1.0, "b": 0.0}, 2: {"a": 0, "b": 0}}), "a / b")[
        "series"
    ]
    assert series["y"] == [0.5, None, None] and series["nonfinite"] == [[1, "Infinity"], [2, "NaN"]]
    assert series["nonfinite_total"] == 2


def test_a_resumed_run_is_computed_from_the_newest_attempt(write: Callable[..., RunReader]) -> None:
    first = {step: {"a": 1.0, "b": 1.0} for step in range(6)}
    second = {step: {"a": 10.0, "b": 1.0} for step in range(3, 8)}
    (series,) = answer_of(write(first, second), "a - b")["series"]
    assert series["x"] == list(range(8)) and series["y"] == [0] * 3 + [9] * 5


def test_every_axis_and_range_gives_the_same_values(write: Callable[..., RunReader]) -> None:
    reader = write({step: {"a": float(step), "b": 1.0, "tokens": 100.0 * step} for step in range(1, 50)})
    by_step, by_time, by_tokens = (
        answer_of(reader, "a - b", axis=axis)["series"][0] for axis in ("step", "time", "tokens")
    )
    assert by_step["y"] == by_time["y"] == by_tokens["y"] == [float(step) for step in range(49)]
    times = describe_series(reader, ["a"], axis="time")["series"][0]["x"]
    assert by_time["x"] == list(times) and by_tokens["x"] == [100.0 * step for step in range(1, 50)]
    assert answer_of(reader, "a - b", start=10, end=12)["series"][0]["x"] == [10, 11, 12]
    assert answer_of(reader, "a - b", "a", axis="tokens", start=1000, end=1200)["series"][0]["y"] == [9, 10, 11]


def test_peaks_are_kept_where_points_are_left_out(write: Callable[..., RunReader]) -> None:
    reader = write({step: {"a": 99.0 if step == 777 else 1.0, "b": 0.0} for step in range(2000)})
    for axis in ("step", "b"):
        (series,) = answer_of(reader, "a - b", axis=axis, points=50)["series"]
        assert len(series["y"]) <= 50 and max(series["y"]) == 99 and series["total"] == 2000


def test_metrics_without_a_common_step_are_said_to_have_none(write: Callable[..., RunReader]) -> None:
    answer = answer_of(write({0: {"a": 1.0}, 1: {"b": 1.0}}), "a - b", "a", "c + 1")
    assert [series["name"] for series in answer["series"]] == ["a"]
    assert answer["problems"] == ["no metric 'c'", "a - b: no step has all of a, b"]
