"""Which metrics a list shows first, against the table of cases that the page's tests read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainvitals.views.data.key_metrics import order_metrics, rank_metric

TABLE = json.loads((Path(__file__).parents[2] / "data" / "key_metrics.json").read_text())


@pytest.mark.parametrize(("name", "rank"), TABLE["ranks"])
def test_the_loss_comes_first_then_what_was_validated(name: str, rank: int) -> None:
    assert rank_metric(name) == rank


@pytest.mark.parametrize(("summaries", "names"), TABLE["cases"])
def test_what_most_runs_have_comes_before_what_few_have(summaries: list[Any], names: list[str]) -> None:
    assert order_metrics(summaries) == names
