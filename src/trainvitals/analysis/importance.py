"""Which parameter of a sweep matters: the share of a metric's variance that it explains alone.

A parameter divides the runs into groups: those of a value, or of a stretch of a numeric one with many values, with as
many runs each. The share is epsilon squared of a one-way analysis of variance (Kelley 1935): what the groups explain,
less what as many groups of chance would, so that a parameter without effect comes out near 0, however many values it
has. All of it is computed on the ranks of the metric: one run that diverged does not decide, and the result is the same
on a logarithmic scale. The interval is that of the bootstrap, moved by the bootstrap's own bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]

LEAST_RUNS = 12
"""With a finite metric; fewer say nothing."""
LEAST_PER_GROUP = 3.0
"""Runs, in the mean of all groups."""
STRETCHES = 6
"""At most, of a numeric parameter."""
PAIR_STRETCHES = 3
"""Of each of two parameters, where their interaction is judged."""
SAMPLES = 200
"""Of the bootstrap."""
NOTABLE = 0.1
"""Share of the variance from which on an interaction is named."""
FEW = "not enough runs"


class Importance(NamedTuple):
    """What one parameter explains. `share`, `low` and `high` are None where `reason` says why it is not known."""

    key: str
    runs: int
    """That have the parameter and a finite metric."""
    share: float | None
    """Of the variance of the metric's ranks, 0 to 1."""
    low: float | None
    high: float | None
    """The ends of a 95 % interval of `share`."""
    direction: float | None
    """Rank correlation (Spearman) of the metric with a numeric parameter, -1 to 1."""
    reason: str


class Interaction(NamedTuple):
    """Two parameters that explain more together than the sum of each alone: the best of one depends on the other."""

    first: str
    second: str
    share: float
    """What they explain beyond that."""


def find_importances(
    configs: Sequence[Mapping[str, Any]], metric: Sequence[float | None]
) -> tuple[list[Importance], list[Interaction]]:
    """Of every parameter that differs between the runs, the most important first; a run whose metric is missing or not
    finite is left out. `configs` are flat."""
    pairs = [(config, value) for config, value in zip(configs, metric, strict=True) if value is not None]
    pairs = [(config, value) for config, value in pairs if math.isfinite(value)]
    flat, values = [config for config, _ in pairs], np.array([value for _, value in pairs], dtype=np.float64)
    keys = sorted({key for config in flat for key in config})
    columns = {key: [config.get(key) for config in flat] for key in keys}
    varied = {key: column for key, column in columns.items() if len({repr(item) for item in column}) > 1}
    found = [_judge(key, column, values) for key, column in varied.items()]
    found.sort(key=lambda item: (item.share is None, -(item.share or 0.0), item.key))
    known = [item.key for item in found if item.share is not None][:8]
    return found, _find_interactions({key: varied[key] for key in known}, values)


def _judge(key: str, column: Sequence[Any], values: Floats) -> Importance:
    present = [at for at, item in enumerate(column) if item is not None]
    items, y = [column[at] for at in present], values[present]
    numbers = _to_numbers(items)
    direction = _correlate(numbers, y) if numbers is not None and len(y) >= LEAST_RUNS else None

    def unknown(reason: str) -> Importance:
        return Importance(key, len(y), None, None, None, direction, reason)

    if len(y) < LEAST_RUNS:
        return unknown(FEW)
    groups = _divide(items, numbers, STRETCHES)
    count = int(groups.max()) + 1
    if count < 2:
        return unknown("the same in all of these runs")
    if len(y) < LEAST_PER_GROUP * count:
        return unknown("too many different values for this many runs")
    ranks = rank(y)
    share = float(_explain(groups[None], ranks[None], count)[0])
    drawn = np.random.default_rng(0).integers(0, len(y), (SAMPLES, len(y)))
    resampled = _explain(groups[drawn], ranks[drawn], count)
    # Runs drawn twice look as if the groups explained more than they do.
    low, high = np.percentile(resampled, (2.5, 97.5)) - (resampled.mean() - share)
    low, share, high = (min(max(float(item), 0.0), 1.0) for item in (low, share, high))
    return Importance(key, len(y), share, low, high, direction, "")


def rank(values: Floats) -> Floats:
    """From 0; equal values have the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: Floats = ends - (counts + 1) / 2
    return means[place]


def _to_numbers(items: Sequence[Any]) -> Floats | None:
    if all(isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item) for item in items):
        return np.array(items, dtype=np.float64)
    return None


def _divide(items: Sequence[Any], numbers: Floats | None, stretches: int) -> Groups:
    """The number of the group that each run is in."""
    if numbers is None:
        known: dict[str, int] = {}
        return np.array([known.setdefault(repr(item), len(known)) for item in items])
    if len(np.unique(numbers)) <= stretches:
        return np.unique(numbers, return_inverse=True)[1]
    wanted = int(min(stretches, max(len(items) // 8, 2)))
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, wanted + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, numbers, side="left"), return_inverse=True)[1]


def _correlate(numbers: Floats, values: Floats) -> float | None:
    a, b = rank(numbers), rank(values)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else None


def _explain(groups: Groups, values: Floats, count: int) -> Floats:
    """Epsilon squared of each row; 0 where there is nothing to explain."""
    rows, runs = values.shape
    offset = groups + np.arange(rows)[:, None] * count
    sizes = np.bincount(offset.ravel(), minlength=rows * count).reshape(rows, count)
    sums = np.bincount(offset.ravel(), weights=values.ravel(), minlength=rows * count).reshape(rows, count)
    mean = values.mean(axis=1, keepdims=True)
    total = ((values - mean) ** 2).sum(axis=1)
    between = (np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0) - mean) ** 2 * sizes
    explained = between.sum(axis=1)
    used = (sizes > 0).sum(axis=1)
    free = np.maximum(runs - used, 1)
    by_chance = (used - 1) * (total - explained) / free
    shares: Floats = np.divide(explained - by_chance, total, out=np.zeros(rows), where=total > 0)
    return shares


def _find_interactions(columns: Mapping[str, Sequence[Any]], values: Floats) -> list[Interaction]:
    found = []
    keys = list(columns)
    for place, first in enumerate(keys):
        for second in keys[place + 1 :]:
            present = [
                at for at in range(len(values)) if columns[first][at] is not None and columns[second][at] is not None
            ]
            sides = [[columns[key][at] for at in present] for key in (first, second)]
            one, two = (_divide(side, _to_numbers(side), PAIR_STRETCHES) for side in sides)
            both = np.unique(one * (int(two.max()) + 1) + two, return_inverse=True)[1] if present else one
            cells = int(both.max()) + 1 if present else 0
            if len(present) < max(LEAST_RUNS, LEAST_PER_GROUP * cells):
                continue
            ranks = rank(values[present])[None]
            alone = [float(_explain(part[None], ranks, int(part.max()) + 1)[0]) for part in (one, two)]
            share = float(_explain(both[None], ranks, cells)[0]) - max(alone[0], 0.0) - max(alone[1], 0.0)
            # Four times what chance does to a share of this many cells.
            if share > max(NOTABLE, 4 * math.sqrt(2 * (cells - 1)) / len(present)):
                found.append(Interaction(first, second, share))
    return sorted(found, key=lambda item: -item.share)
