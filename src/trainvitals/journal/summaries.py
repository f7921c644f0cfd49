"""What a metric came to: last, lowest and highest value, of lines or put together from several files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainvitals.journal.extremes import NO_STEP
from trainvitals.journal.segments import Lines


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """What a metric came to, over everything that was logged. `low` and `high` look at finite values only."""

    count: int
    last: float
    last_step: int | None
    low: float | None
    low_step: int | None
    high: float | None
    high_step: int | None
    nonfinite: int


def summarize(lines: Lines) -> Iterator[tuple[str, MetricSummary]]:
    """Of what is not sealed yet."""
    steps = np.array(lines.steps, dtype=np.int64)
    for (name, _), column in lines.columns.items():
        values = np.array(column.values, dtype=np.float64)
        at = steps[np.array(column.rows, dtype=np.int64)]
        finite = np.isfinite(values)
        broken = len(values) - int(finite.sum())
        extremes: tuple[float | None, int | None, float | None, int | None] = (None, None, None, None)
        if finite.any():
            low = int(np.where(finite, values, np.inf).argmin())
            high = int(np.where(finite, values, -np.inf).argmax())
            extremes = (float(values[low]), known_step(at[low]), float(values[high]), known_step(at[high]))
        yield name, MetricSummary(len(values), float(values[-1]), known_step(at[-1]), *extremes, broken)


def merge(older: MetricSummary | None, newer: MetricSummary) -> MetricSummary:
    """Of both together."""
    if older is None:
        return newer
    low, low_step = older.low, older.low_step
    if low is None or (newer.low is not None and newer.low < low):
        low, low_step = newer.low, newer.low_step
    high, high_step = older.high, older.high_step
    if high is None or (newer.high is not None and newer.high > high):
        high, high_step = newer.high, newer.high_step
    return MetricSummary(
        older.count + newer.count,
        newer.last,
        newer.last_step,
        low,
        low_step,
        high,
        high_step,
        older.nonfinite + newer.nonfinite,
    )


def known_step(value: Any) -> int | None:
    """A step as it is stored, None if it says that there is none."""
    return None if value is None or int(value) == NO_STEP else int(value)
