"""A comparison of many runs as one matrix: a row per run, a column per metric that was judged. The page draws the same.
Tested in tests/views/cli/test_compare.py and tests/views/report/test_document.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainvitals.analysis.comparison import STRETCH, SURE
from trainvitals.analysis.wording import percent
from trainvitals.views.data import quantities

FROM_RUNS = 3
"""Two are a list of verdicts, each with its confidence."""


class MatrixCell(NamedTuple):
    value: Any
    """At the end of the common steps where it was compared, else the last one; None where it was not logged."""
    verdict: Mapping[str, Any] | None
    baseline: float | None
    """What it was compared with, where that is not in the baseline's row: a shorter run has other steps in common."""
    is_best: bool
    """Of all runs, at any step."""

    @property
    def word(self) -> str:
        return self.verdict["word"] if self.verdict is not None else ""

    @property
    def change(self) -> str:
        change = self.verdict["change"] if self.verdict is not None else None
        return "" if change is None else quantities.format_change(change)

    @property
    def mark(self) -> str:
        """The verdict, `?` if the difference could be chance."""
        return "?" if self.word == "uncertain" else self.word

    @property
    def note(self) -> str:
        return "" if self.baseline is None else f"(baseline {quantities.format_value(self.baseline)})"


class Matrix(NamedTuple):
    metrics: list[str]
    rows: list[list[MatrixCell]]
    """One per run, in their order."""


def make_matrix(comparison: Mapping[str, Any]) -> Matrix:
    verdicts = {(item["run"], item["metric"]): item for item in comparison["verdicts"]}
    rows_of = {row["name"]: row for row in comparison["metrics"]}
    names = list(dict.fromkeys(item["metric"] for item in comparison["verdicts"]))
    bases = {name: _usual_baseline(comparison, name) for name in names}

    def make_cell(run: int, name: str) -> MatrixCell:
        row, verdict = rows_of.get(name), verdicts.get((run, name))
        last = row["values"][run] if row is not None else None
        is_best = row is not None and row["best"] == run
        value, base = bases[name] if run == 0 else None, None
        if verdict is not None and (value := verdict["value"]) is not None and verdict["baseline"] != bases[name]:
            base = verdict["baseline"]
        if value is None and last is not None:
            value = last["last"]
        return MatrixCell(value, verdict, base, is_best)

    return Matrix(names, [[make_cell(run, name) for name in names] for run in range(len(comparison["runs"]))])


def _usual_baseline(comparison: Mapping[str, Any], name: str) -> float | None:
    """What most of the others were compared with."""
    found: Counter[float | None] = Counter(
        item["baseline"] for item in comparison["verdicts"] if item["metric"] == name
    )
    return found.most_common(1)[0][0]


def explain_matrix(comparison: Mapping[str, Any], titles: Sequence[str]) -> list[str]:
    """What was compared and how sure it is, then the verdicts that stand on something else."""
    lines = [
        f"change against {titles[0]} over the last {percent(STRETCH)} of the common steps",
        f"better, worse and different are at least {percent(SURE)} sure; ? may be chance; * best value of all runs",
    ]
    special: dict[str, list[str]] = {}
    for item in comparison["verdicts"]:
        if None in (item["confidence"], item["value"], item["baseline"]):
            special.setdefault(item["reason"], []).append(f"{item['metric']} of {titles[item['run']]}")
    return lines + [f"{', '.join(found)}: {reason}" for reason, found in special.items()]


def name_seeds(comparison: Mapping[str, Any], titles: Sequence[str]) -> dict[int, str]:
    """Of runs that are compared as a group: how many the first stands for, and of which the others are seeds."""
    found = {}
    for first, *others in comparison["seeds"]:
        if others:
            found[first] = f"{len(others) + 1} seeds"
            found |= dict.fromkeys(others, f"seed of {titles[first]}")
    return found
