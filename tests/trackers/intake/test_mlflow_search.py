"""MLflow's filters and orders."""

from __future__ import annotations

from typing import Any

import pytest

from trainvitals.trackers.intake.mlflow_search import BadFilter, parse_filter, sort_runs

RUN: dict[str, dict[str, Any]] = {
    "metrics": {"loss": 0.5, "val/acc 1": 0.9},
    "params": {"model": "tiny", "n": "3"},
    "tags": {"mlflow.user": "me", "a b": "x_y"},
    "attributes": {"status": "FINISHED", "start_time": 1000, "run_name": "first"},
    "datasets": {"name": ["mnist", "cifar"], "digest": ["d1", "d2"], "context": ["training"]},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("metrics.loss < 1", True),
        ("metrics.loss >= 0.5 and metrics.loss <= 5e-1", True),
        ("metrics.loss > 0.5", False),
        ("metrics.`val/acc 1` = 0.9", True),
        ('metrics."val/acc 1" != 0.9', False),
        ("params.model = 'tiny' AND params.n = '3'", True),
        ("params.model LIKE 't%'", True),
        ("params.model ILIKE 'T_NY'", True),
        ("params.model NOT LIKE 't%'", False),
        ("params.model LIKE 'tiny'", True),
        ("params.model LIKE 'tin'", False),
        ("params.model LIKE '%'", True),
        ("params.model LIKE '%i%n%'", True),
        ("params.model LIKE '%n%i%'", False),
        ("params.model LIKE '%y%y'", False),
        ("tags.`a b` LIKE 'x%_y'", True),
        ("tags.`a b` LIKE '%x_y%'", True),
        ("params.model IN ('a', 'tiny')", True),
        ("params.model NOT IN ('a', 'tiny')", False),
        ("tags.mlflow.user = 'me'", True),
        ("tags.`a b` = 'x_y'", True),
        ("params.missing = 'x'", False),
        ("params.missing IS NULL", True),
        ("params.model IS NOT NULL", True),
        ("status = 'FINISHED'", True),
        ("attributes.start_time > 999", True),
        ("attribute.`run name` = 'first'", True),
        ("dataset.name = 'cifar' and datasets.digest = 'd1'", True),
        ("dataset.name LIKE 'imagenet%'", False),
        ("dataset.context IN ('training')", True),
    ],
)
def test_a_filter_holds_or_does_not(text: str, holds: bool) -> None:
    assert all(condition.holds(RUN) for condition in parse_filter(text)) is holds


@pytest.mark.promise("a filter of an MLflow client that takes for ever: LIKE '%a%a%a...'", "it is answered at once")
def test_a_filter_with_very_many_parts_does_not_take_for_ever() -> None:
    run = {**RUN, "tags": {"long": "a" * 5000}}
    for text, holds in ((f"tags.long LIKE '{'%a' * 50}b'", False), (f"tags.long LIKE '{'%a' * 50}%'", True)):
        (condition,) = parse_filter(text)
        assert condition.holds(run) is holds


@pytest.mark.parametrize(
    "text", ["metrics.loss", "metrics.loss <", "loss < x", "a = 1 or b = 2", "';--", "= 1", "dataset.size = '1'"]
)
def test_a_text_that_is_not_a_filter_is_refused(text: str) -> None:
    with pytest.raises(BadFilter):
        parse_filter(text)


def test_runs_without_the_value_come_last_in_either_order() -> None:
    runs = [{"metrics": {"a": 2.0}}, {"metrics": {}}, {"metrics": {"a": 3.0}}, {"metrics": {"a": float("nan")}}]
    for order, expected in (("metrics.a ASC", [2.0, 3.0]), ("metrics.a DESC", [3.0, 2.0]), ("metrics.a", [2.0, 3.0])):
        assert [run["metrics"].get("a") for run in sort_runs(runs, [order], lambda run: run)][:2] == expected
