"""Several runs as one line: the mean of a group and how far its runs are apart, over one x.

All curves of a group are put on the same places. Where they have few different x together, the places are these, and a
run that logged there stands at its logged value; else x is cut into equal pieces, and a run stands at the mean of its
values within each. Between two of its values a run is on the line through them. Before its first and after its last
value it does not take part, and neither where it logged nothing but NaN or infinity: nothing is extrapolated, so that a
mean may jump where a run ends. `members` says of how many runs each place is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.chance import t_quantile

Floats = NDArray[np.float64]
BandKind = Literal["range", "std", "confidence"]
BAND_KINDS: tuple[BandKind, ...] = get_args(BandKind)
"""Lowest to highest run; one sample standard deviation; where the mean is with 95 % confidence (Student's t)."""
CONFIDENCE = 0.95


class GroupLine(NamedTuple):
    """Lines over the same x. `mean` is NaN where no run has a finite value; `low` and `high` also where a single run
    has one, except in a range: one run says nothing of a spread."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    members: NDArray[np.int64]
    broken: tuple[tuple[int, float], ...]
    """(place in `x`, value) where some run logged NaN or infinity: the first such value there."""


def make_group(curves: Sequence[tuple[Floats, Floats]], points: int, kind: BandKind = "range") -> GroupLine:
    """`curves` are (x, y), one per run, ascending in x. At most `points` places."""
    full = [(x, y) for x, y in curves if len(x)]
    if not full:
        empty = np.empty(0)
        return GroupLine(empty, empty, empty, empty, np.empty(0, dtype=np.int64), ())
    places, edges = _choose_places([x for x, _ in full], max(points, 2))
    table = np.full((len(full), len(places)), np.nan)
    broken: dict[int, float] = {}
    for row, (x, y) in zip(table, full, strict=True):
        _place(x, y, places, edges, row, broken)
    count = np.isfinite(table).sum(axis=0)
    mean, low, high = _summarize(table, count, kind)
    # A piece without any value is not a gap, only a place between two logged ones.
    kept = count > 0
    kept[list(broken)] = True
    new_place = np.cumsum(kept) - 1
    marks = tuple((int(new_place[at]), value) for at, value in sorted(broken.items()))
    return GroupLine(places[kept], mean[kept], low[kept], high[kept], count[kept], marks)


def _choose_places(xs: Sequence[Floats], points: int) -> tuple[Floats, Floats]:
    """Where the line has its points, and between which x each begins and ends; the last edge belongs to the last."""
    together = np.unique(np.concatenate(xs))
    if len(together) <= points:
        return together, np.append(together, together[-1])
    edges = np.linspace(together[0], together[-1], points + 1)
    places = (edges[:-1] + edges[1:]) / 2
    places[0], places[-1] = edges[0], edges[-1]  # so that an axis shows all of it
    return places, edges


def _place(x: Floats, y: Floats, places: Floats, edges: Floats, row: Floats, broken: dict[int, float]) -> None:
    """Fill `row`, the values of one run at all places, and note in `broken` where it is not finite."""
    piece = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(places) - 1)
    finite = np.isfinite(y)
    for at, value in zip(piece[~finite].tolist(), y[~finite].tolist(), strict=True):
        broken.setdefault(at, value)
    if not finite.any():
        return
    counts = np.bincount(piece[finite], minlength=len(places))
    known = np.flatnonzero(counts)
    with np.errstate(over="ignore", invalid="ignore"):
        row[known] = np.bincount(piece[finite], weights=y[finite], minlength=len(places))[known] / counts[known]
    inside = np.arange(known[0], known[-1] + 1)
    missed = inside[counts[inside] == 0]
    row[missed] = np.interp(places[missed], places[known], row[known])
    only_broken = np.setdiff1d(piece[~finite], known)
    row[only_broken] = np.nan


def _summarize(table: Floats, count: NDArray[np.int64], kind: BandKind) -> tuple[Floats, Floats, Floats]:
    some = np.isfinite(table)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.where(some, table, 0.0).sum(axis=0)
        mean = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        if kind == "range":
            low, high = np.where(some, table, np.inf).min(axis=0), np.where(some, table, -np.inf).max(axis=0)
            return mean, np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan)
        squares = np.where(some, (table - mean) ** 2, 0.0).sum(axis=0)
        deviation = np.sqrt(np.divide(squares, count - 1, out=np.full(len(count), np.nan), where=count > 1))
        if kind == "confidence":
            # As many factors as there are different counts, and not one per place.
            sizes = {int(size) for size in np.unique(count) if size > 1}
            factors = {size: t_quantile(CONFIDENCE, size - 1) / math.sqrt(size) for size in sizes}
            deviation = deviation * np.array([factors.get(int(size), np.nan) for size in count])
        return mean, mean - deviation, mean + deviation
