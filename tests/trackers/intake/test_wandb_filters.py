"""Filters of `wandb.Api().runs(filters=…)`. That a real client gets the runs it asks for is in test_wandb.py."""

from __future__ import annotations

from typing import Any

import pytest

from trainvitals.trackers.intake.wandb_filters import BadFilter, find_value, holds

RUN = {
    "displayName": "resnet-50 seed 1",
    "state": "finished",
    "tags": ["baseline", "gpu"],
    "config": '{"lr": {"value": 0.01}, "model": {"value": {"depth": 50}}}',
    "summaryMetrics": '{"loss": 0.25, "val/acc": 0.9}',
}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, True),
        ({"state": "finished"}, True),
        ({"state": {"$ne": "finished"}}, False),
        ({"tags": "gpu"}, True),
        ({"tags": {"$in": ["other", "baseline"]}}, True),
        ({"tags": {"$nin": ["gpu"]}}, False),
        ({"config.lr": 0.01}, True),
        ({"config.lr.value": {"$gte": 0.01, "$lt": 0.1}}, True),
        ({"config.model.depth": {"$gt": 50}}, False),
        ({"summary_metrics.val/acc": {"$lte": 0.9}}, True),
        ({"summary_metrics.nothing": {"$gt": 0}}, False),
        ({"summary_metrics.nothing": {"$exists": False}}, True),
        ({"summary_metrics.loss": {"$gt": "text"}}, False),
        ({"display_name": {"$regex": "seed"}}, True),
        ({"display_name": {"$regex": "^resnet.*1$"}}, True),
        ({"display_name": {"$regex": "^res.et.*d.1$"}}, True),
        ({"display_name": {"$regex": "^.esnet"}}, True),
        ({"display_name": {"$regex": "res..et"}}, False),
        ({"display_name": {"$regex": ".resnet"}}, False),
        ({"display_name": {"$regex": "^.*.$"}}, True),
        ({"display_name": {"$regex": "^seed"}}, False),
        ({"display_name": {"$regex": "seed$"}}, False),
        ({"$or": [{"state": "running"}, {"tags": "gpu"}]}, True),
        ({"$and": [{"state": "running"}, {"tags": "gpu"}]}, False),
        ({"$nor": [{"state": "running"}]}, True),
    ],
)
def test_a_filter_holds_or_not(filters: dict[str, Any], expected: bool) -> None:
    assert holds(filters, RUN) is expected


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"$and": [made]}
    return made


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        ({"$where": "1"}, r"\$where is not supported"),
        ({"state": {"$near": 1}}, r"\$near is not supported"),
        ({"$or": {"state": "running"}}, "takes a list of filters"),
        ({"state": {"$regex": "(a+)+$"}}, r"only \^, \$, \. and \.\* are supported"),
        ({"state": {"$regex": "a" * 300}}, r"only \^, \$, \. and \.\* are supported"),
        (nested(400), "nested more than 20 deep"),
    ],
    ids=["word", "comparison", "no list", "pattern", "long pattern", "nested"],
)
def test_a_filter_that_is_not_understood_is_refused_with_the_reason(filters: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadFilter, match=reason):
        holds(filters, RUN)


def test_values_are_found_by_their_dotted_names() -> None:
    assert find_value(RUN, "config.model.depth") == 50
    for depth in (101, 900, 100_000):
        damaged = {**RUN, "summaryMetrics": '{"loss":' + "[" * depth + "]" * depth + "}"}
        assert find_value(damaged, "summary_metrics.loss") is None
    assert find_value(RUN, "summary_metrics.val/acc") == 0.9
    assert find_value({"config": "{"}, "config.lr") is None
    assert find_value(RUN, "config.lr.value.more") is None
