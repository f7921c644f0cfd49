"""Which step was when: what leads from the axis of a training to that of its hardware and back.

Where a resumed run logged a step again, the newest attempt counts, as in every chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainvitals.journal.contracts import Reader
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.points import Axis, Floats
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.shapes import RangeJson


class Clock(NamedTuple):
    """Both ascending and of equal length, at least one."""

    steps: Floats
    times: Floats


def read_clock(
    reader: Reader,
    names: Sequence[str],
    *,
    x: Axis = "time",
    points: int | None = None,
    participants: Sequence[Participant] | None = None,
) -> Clock | None:
    """By the rows of the first of `names` that has any, of the lowest participant."""
    for name in names:
        # The same points are picked on both axes: which they are depends on the values alone.
        by_step, by_time = (
            reader.series([name], x=axis, max_points=points, participants=participants) for axis in ("step", x)
        )
        if by_step and by_time and len(by_step[0].x) == len(by_time[0].x):
            return Clock(by_step[0].x, by_time[0].x)
        # The first rows of some imports have no time. Rows without a step lead nowhere: others of them may.
        if points is None and by_step and by_time and 0 < len(by_time[0].x) < len(by_step[0].x):
            return Clock(by_step[0].x[-len(by_time[0].x) :], by_time[0].x)
    return None


def describe_range(reader: Reader, axis: str, start: float, end: float, to: str) -> RangeJson:
    """A range of one axis on another, by way of the steps. Between two rows it is interpolated, and what lies beyond
    the first or the last row ends there; a metric that goes up and down does not lead back to steps."""
    limits = np.array([start, end], dtype=np.float64)
    if {axis, to} <= {"time", "relative"}:
        origin = parse_time(reader.info.started) or 0.0
        limits += origin * ((to == "time") - (axis == "time"))
        return _range_of(limits)
    if axis != "step":
        scale = _read_scale(reader, axis)
        if scale is None or bool((np.diff(scale.times) < 0).any()):
            return NOWHERE
        limits = np.interp(limits, scale.times, scale.steps)
    if to != "step":
        scale = _read_scale(reader, to)
        if scale is None:
            return NOWHERE
        limits = np.interp(limits, scale.steps, scale.times)
    return _range_of(limits)


NOWHERE: RangeJson = {"start": None, "end": None}


def _range_of(limits: Floats) -> RangeJson:
    first, last = sorted(limits.tolist())
    return {"start": first, "end": last} if last > first else NOWHERE


def _read_scale(reader: Reader, axis: str) -> Clock | None:
    """An axis by step."""
    if axis in ("time", "relative"):
        return read_clock(reader, _timed_names(reader), x=axis, participants=lowest_of(reader))  # type: ignore[arg-type]
    for series in reader.series([axis], participants=lowest_of(reader)):
        finite = np.isfinite(series.y)
        if finite.any():
            return Clock(series.x[finite], series.y[finite])
    return None


def _timed_names(reader: Reader) -> list[str]:
    """Metrics to read the time of steps from, those with the most values first."""
    counts = {name: item.count for name, item in reader.summary().items()}
    return sorted(counts, key=lambda name: -counts[name])[:3]
