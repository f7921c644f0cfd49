"""The search for runs, against the table of cases that the page's tests read too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainvitals.views.data.run_search import (
    MAX_COMPARED,
    SearchError,
    find_compared,
    find_unknown,
    is_search,
    parse_search,
    search_rows,
)

TABLE = json.loads((Path(__file__).parents[2] / "data" / "run_search.json").read_text())
WORDS = {"NaN": math.nan, "Infinity": math.inf}
# A row of a server has numbers where its JSON has words.
ROWS: list[Any] = [
    {**row, "summary": {name: WORDS.get(value, value) for name, value in row["summary"].items()}}
    for row in TABLE["rows"]
]


@pytest.mark.parametrize(("text", "keys"), TABLE["cases"])
def test_a_search_finds(text: str, keys: list[str]) -> None:
    assert [row["key"] for row in search_rows(ROWS, parse_search(text))] == keys


@pytest.mark.parametrize(("text", "message", "hint"), TABLE["errors"])
def test_an_error_names_the_part_that_is_wrong_and_what_to_type(text: str, message: str, hint: str) -> None:
    with pytest.raises(SearchError) as caught:
        parse_search(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(("text", "message"), TABLE["unknown"])
def test_a_name_that_no_run_has_is_told(text: str, message: str) -> None:
    assert find_unknown(ROWS, parse_search(text)).partition(",")[0] == message


def test_a_name_nearby_is_suggested() -> None:
    assert find_unknown(ROWS, parse_search("val_acc>0.9")) == "no run has 'val_acc', did you mean 'val/acc'?"


def test_an_expression_that_would_backtrack_forever_does_not() -> None:
    row = {**ROWS[0], "name": "a" * 400 + "!"}
    assert search_rows([row], parse_search("name~^(a+)+$")) == []


def test_half_a_character_in_a_name_is_no_problem() -> None:
    row = {**ROWS[0], "name": "odd \udcff name"}
    assert search_rows([row], parse_search("name~^odd")) == [row]


def test_runs_to_compare_are_those_that_the_search_finds() -> None:
    found = find_compared(ROWS, "project:sweep")
    assert [row["key"] for row in found] == ["small", "large"]


def test_a_comparison_of_none_or_of_too_many_says_so() -> None:
    with pytest.raises(SearchError) as caught:
        find_compared(ROWS, "val_acc>0.9")
    assert caught.value.message == "no run matches 'val_acc>0.9': no run has 'val_acc', did you mean 'val/acc'?"
    assert caught.value.hint == "list them: trainvitals runs"
    many = [{**ROWS[0], "key": f"k{number}", "name": "same"} for number in range(1000)]
    assert len(find_compared(many[:MAX_COMPARED], "name:same")) == MAX_COMPARED
    with pytest.raises(SearchError) as caught:
        find_compared(many, "name:same")
    assert caught.value.message == f"'name:same' matches 1,000 runs, cannot compare more than {MAX_COMPARED}"
    assert caught.value.hint == "narrow the search"


@pytest.mark.parametrize("text", ["lr>0.01", "-old", "name:a", "/^res/", "two words lr=1"])
def test_conditions_expressions_and_what_must_not_be_are_a_search(text: str) -> None:
    assert is_search(text)


@pytest.mark.parametrize("text", ["", "baseline", "two words", "20261115-223601-baseline-k3f9", '"in quotes"'])
def test_words_may_be_a_name(text: str) -> None:
    assert not is_search(text)
