"""Points of one series on their way to a chart: cut to what is wanted, thinned out.
Tested in tests/journal/test_reader.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainvitals.journal.downsample import pick
from trainvitals.journal.extremes import NO_STEP
from trainvitals.journal.segment_writer import Lines
from trainvitals.journal.summaries import MetricSummary

Axis = Literal["step", "time", "relative"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(slots=True)
class Points:
    """Some or all points of a series."""

    steps: Integers
    times: Integers
    values: Floats
    total: int
    """How many there are in total."""
    nonfinite: int
    """How many of all are NaN or infinite."""

    @classmethod
    def whole(cls, steps: Integers, times: Integers, values: Floats) -> Points:
        """All points of a series."""
        return cls(steps, times, values, len(values), len(values) - int(np.isfinite(values).sum()))

    @classmethod
    def none(cls) -> Points:
        """Those of a series without a number."""
        return cls.whole(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which points are wanted: a range on the axis, and the step at which a later attempt takes over."""

    x: Axis
    origin: float
    start: float | None
    end: float | None
    below_step: int | None

    def condition(self) -> tuple[str, list[Any]]:
        """SQL that keeps what may be wanted; `cut` then keeps exactly that."""
        column = "step" if self.x == "step" else "time"
        text, values = "", []
        for operator, wanted in ((">=", self.start), ("<=", self.end)):
            if wanted is not None:
                text += f" AND {column} {operator} ?"
                values.append(self._stored(wanted))
        if self.below_step is not None:
            text += " AND (step < ? OR step IS NULL)"
            values.append(self.below_step)
        return text, values

    def may_hold(self, buckets: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Which buckets may hold something wanted."""
        column = "step" if self.x == "step" else "time"
        keep = np.ones(len(buckets["count"]), dtype=bool)
        if self.start is not None:
            keep &= buckets[f"{column}_to"] >= self._stored(self.start)
        if self.end is not None:
            keep &= buckets[f"{column}_from"] <= self._stored(self.end)
        if self.below_step is not None:
            keep &= buckets["step_from"] < self.below_step
        if column == "step":
            keep &= buckets["step_to"] != NO_STEP
        return keep

    def _stored(self, wanted: float) -> float:
        return wanted if self.x == "step" else (wanted + self.origin) * 1e6

    def cut(self, points: Points, *, keep_total: bool = False) -> Points:
        """Only what is wanted."""
        keep = np.ones(len(points.times), dtype=bool)
        if self.x == "step":
            keep &= points.steps != NO_STEP
            axis: Any = points.steps
        else:
            axis = points.times / 1e6 - self.origin
        if self.start is not None:
            keep &= axis >= self.start
        if self.end is not None:
            keep &= axis <= self.end
        if self.below_step is not None:
            keep &= points.steps < self.below_step
        if keep.all():
            return points
        kept = points.steps[keep], points.times[keep], points.values[keep]
        return Points(*kept, points.total, points.nonfinite) if keep_total else Points.whole(*kept)


def thin(points: Points, max_points: int) -> Points:
    """At most so many of them, every peak kept."""
    chosen = pick(points.values, max_points)
    return Points(points.steps[chosen], points.times[chosen], points.values[chosen], points.total, points.nonfinite)


def tail_points(lines: Lines, name: str, label: str) -> Points:
    """Of what is not sealed yet."""
    column = lines.columns.get((name, label))
    if column is None:
        return Points.none()
    # Copies: the arrays keep growing, which a view of them would prevent.
    rows = np.array(column.rows, dtype=np.int64)
    return Points.whole(
        np.array(lines.steps, dtype=np.int64)[rows],
        np.array(lines.times, dtype=np.int64)[rows],
        np.array(column.values, dtype=np.float64),
    )


def summarize(lines: Lines) -> Iterator[tuple[str, MetricSummary]]:
    """What every metric came to in what is not sealed yet."""
    steps = np.array(lines.steps, dtype=np.int64)
    for (name, _), column in lines.columns.items():
        values = np.array(column.values, dtype=np.float64)
        at = steps[np.array(column.rows, dtype=np.int64)]
        finite = np.isfinite(values)
        found = MetricSummary(len(values), float(values[-1]), known_step(at[-1]))
        found.nonfinite = len(values) - int(finite.sum())
        if finite.any():
            low = int(np.where(finite, values, np.inf).argmin())
            high = int(np.where(finite, values, -np.inf).argmax())
            found.low, found.low_step = float(values[low]), known_step(at[low])
            found.high, found.high_step = float(values[high]), known_step(at[high])
        yield name, found


def known_step(value: Any) -> int | None:
    """A step as stored, None for the marker of a missing one."""
    return None if value is None or int(value) == NO_STEP else int(value)
