"""A run's series and states: numbers and words to draw, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainvitals.analysis.bands import make_band
from trainvitals.analysis.rates import rate_of
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.downsample import pick
from trainvitals.journal.identity import TRAINER, Participant
from trainvitals.journal.points import Axis
from trainvitals.views.data.chosen import choose, compute_series
from trainvitals.views.data.shapes import SeriesAnswerJson, SeriesJson, StatesAnswerJson, StatesJson
from trainvitals.views.data.wire import find_broken, mark_broken, pack_axis

MAX_CHANGES = 2000
PLAIN_AXES = ("step", "time", "relative")
"""Every other axis is a training metric."""


def describe_series(
    reader: Reader,
    names: Sequence[str],
    *,
    chosen: Sequence[str] = (),
    table: str = "training",
    axis: str = "step",
    start: float | None = None,
    end: float | None = None,
    points: int = 1000,
    participants: Sequence[Participant] | None = None,
    band: bool = False,
    rate: bool = False,
    all_attempts: bool = False,
) -> SeriesAnswerJson:
    """Series of the given names, and of what `chosen` stands for: names, patterns and expressions of training metrics.
    `axis` is step, time, relative, or the name of a training metric such as `epoch`; `band` puts the ranks of a name
    and role together as lowest, mean and highest; `rate` draws a counter per second."""
    plain = axis in PLAIN_AXES
    # Of a range on another axis it is not known yet which steps are in it.
    from_all = not plain and (start is not None or end is not None)
    x: Axis = axis if plain else "step"  # type: ignore[assignment]
    limits = (start, end) if plain else (None, None)
    most = None if from_all else points
    found = reader.series(
        names,
        table=table,
        x=x,
        start=limits[0],
        end=limits[1],
        max_points=most,
        participants=participants,
        all_attempts=all_attempts,
    )
    problems: list[str] = []
    if chosen:
        what = choose(chosen, reader.names())
        more, problems = compute_series(
            reader, what, x=x, start=limits[0], end=limits[1], points=most, participants=participants
        )
        found += more
        problems = [*what.problems, *problems]
    if not plain:
        found = _on_metric(reader, found, axis, start, end, points)
    if rate:
        found = [per_second(series) for series in found]
    series = _bands(found, axis, points) if band else [pack_series(item, axis) for item in found]
    answer: SeriesAnswerJson = {"axis": axis, "table": table, "series": series}
    if problems:
        answer["problems"] = problems
    return answer


def pack_series(series: Series, axis: str) -> SeriesJson:
    """One series for the wire."""
    packed: SeriesJson = {
        "name": series.name,
        "labels": dict(series.labels),
        "rank": series.rank,
        "total": series.total,
        "nonfinite_total": series.nonfinite,
        "x": pack_axis(series.x, axis),
        "y": np.ascontiguousarray(series.y),
    }
    mark_broken(packed, find_broken(series.y))
    return packed


def _on_metric(
    reader: Reader, found: list[Series], axis: str, start: float | None, end: float | None, points: int
) -> list[Series]:
    zoomed = start is not None or end is not None
    scale = next(iter(reader.series([axis], max_points=None if zoomed else max(points, 2000))), None)
    return [] if scale is None else move_to_metric(found, scale, start, end, points)


def move_to_metric(
    found: Sequence[Series], scale: Series, start: float | None, end: float | None, points: int
) -> list[Series]:
    """Series by step over another metric: the value of `scale` at each step, between two of its steps interpolated."""
    finite = np.isfinite(scale.y)
    if not finite.any():
        return []
    moved = []
    for series in found:
        x = np.interp(series.x, scale.x[finite], scale.y[finite])
        order = np.argsort(x, kind="stable")
        x, y = x[order], series.y[order]
        keep = np.ones(len(x), dtype=bool)
        if start is not None:
            keep &= x >= start
        if end is not None:
            keep &= x <= end
        count = series.nonfinite if keep.all() else int((~np.isfinite(y[keep])).sum())
        x, y = x[keep], y[keep]
        shown = pick(y, points)
        moved.append(replace(series, x=x[shown], y=y[shown], nonfinite=count))
    return moved


def steps_between(scale: Series, start: float | None, end: float | None) -> tuple[float | None, float | None]:
    """The steps that a range of another metric lies within, one look of it more on either side."""
    if start is None and end is None:
        return None, None
    inside = np.isfinite(scale.y)
    if start is not None:
        inside &= scale.y >= start
    if end is not None:
        inside &= scale.y <= end
    places = np.flatnonzero(inside)
    if not len(places):
        return None, None  # between two looks, or beyond all of them
    first, last = int(places[0]) - 1, int(places[-1]) + 1
    return float(scale.x[first]) if first >= 0 else None, float(scale.x[last]) if last < len(scale.x) else None


def per_second(series: Series) -> Series:
    """A counter as its rate."""
    x, y = rate_of(series.x, series.y)
    return replace(series, x=x, y=y, nonfinite=0)


def _bands(found: Sequence[Series], axis: str, points: int) -> list[SeriesJson]:
    groups: dict[tuple[str, str], list[Series]] = {}
    for series in found:
        groups.setdefault((series.name, series.participant.role), []).append(series)
    bands: list[SeriesJson] = []
    for (name, role), several in groups.items():
        if len(several) == 1:
            bands.append(pack_series(several[0], axis))
            continue
        made = make_band([(series.x, series.y) for series in several], max(points // 2, 1))
        x = np.round(made.x) if axis == "step" else made.x
        packed: SeriesJson = {
            "name": name,
            "labels": {} if role == TRAINER else {"role": role},
            "rank": None,
            "total": sum(series.total for series in several),
            "nonfinite_total": sum(series.nonfinite for series in several),
            "members": len(several),
            "x": pack_axis(x, axis),
            "y": made.mean,
            "low": made.low,
            "high": made.high,
        }
        mark_broken(packed, made.broken)
        bands.append(packed)
    return bands


# -- states


def describe_states(
    reader: Reader, names: Sequence[str], *, table: str = "gpu", start: float | None = None, end: float | None = None
) -> StatesAnswerJson:
    """Words over time. The word that holds at `start` is included; of too many changes, the newest."""
    states: list[StatesJson] = []
    for item in reader.states(names, table=table):
        changes = [change for change in item.changes if end is None or change[0] <= end]
        if start is not None:
            before = [change for change in changes if change[0] <= start][-1:]
            changes = before + [change for change in changes if change[0] > start]
        if changes:
            states.append(
                {
                    "name": item.name,
                    "labels": dict(item.labels),
                    "rank": item.rank,
                    "gpu": item.labels.get("gpu_index"),
                    "left_out": max(len(changes) - MAX_CHANGES, 0),
                    "changes": [(round(at, 3), word) for at, word in changes[-MAX_CHANGES:]],
                }
            )
    return {"table": table, "states": states}
