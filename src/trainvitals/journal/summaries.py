"""What a metric came to: last, lowest and highest value. Grows line by line, or is put together from several files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainvitals.journal.documents.fields import finite, is_mapping, real, whole
from trainvitals.journal.encoding import Real, number

MOST_NAMES = 2000
"""Metrics with a summary; of the rest only the values are counted."""


@dataclass(slots=True)
class MetricSummary:
    """One metric, over everything that was logged. `low` and `high` look at finite values only."""

    count: int
    last: Real
    last_step: int | None
    low: float | None = None
    low_step: int | None = None
    high: float | None = None
    high_step: int | None = None
    nonfinite: int = 0

    def widen(self, value: float, step: int | None) -> None:
        """Take in a value outside of what was seen."""
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        if self.low is None or value < self.low:
            self.low, self.low_step = value, step
        if self.high is None or value > self.high:
            self.high, self.high_step = value, step

    def as_json(self) -> dict[str, Any]:
        found = {
            "last": self.last,
            "last_step": self.last_step,
            "count": self.count,
            "low": self.low,
            "low_step": self.low_step,
            "high": self.high,
            "high_step": self.high_step,
            "nonfinite": self.nonfinite,
        }
        return {key: value for key, value in found.items() if value is not None}

    @classmethod
    def read(cls, data: object) -> MetricSummary | None:
        """What `as_json` made and JSON gave back; None if it is something else."""
        last = real(data.get("last")) if is_mapping(data) else None
        if not is_mapping(data) or last is None:
            return None
        return cls(
            whole(data.get("count")) or 0,
            last,
            whole(data.get("last_step")),
            finite(data.get("low")),
            whole(data.get("low_step")),
            finite(data.get("high")),
            whole(data.get("high_step")),
            whole(data.get("nonfinite")) or 0,
        )


@dataclass(slots=True)
class SummaryWithMean(MetricSummary):
    """For those who ask a run: the mean takes all values to be read, so no file and no view has it."""

    mean: float | None = None
    """Of the finite values."""


def merge(older: MetricSummary | None, newer: MetricSummary) -> MetricSummary:
    """Of both together."""
    if older is None:
        return newer
    merged = replace(newer, count=older.count + newer.count, nonfinite=older.nonfinite + newer.nonfinite)
    if older.low is not None and (newer.low is None or older.low <= newer.low):
        merged.low, merged.low_step = older.low, older.low_step
    if older.high is not None and (newer.high is None or older.high >= newer.high):
        merged.high, merged.high_step = older.high, older.high_step
    return merged


@dataclass(slots=True)
class Summary:
    """Every metric of one rank."""

    metrics: dict[str, MetricSummary] = field(default_factory=dict)
    left_out: int = 0
    """Values of metrics beyond the limit."""

    def add(self, row: Mapping[str, Any]) -> int | None:
        """Take one line in. Returns its step, None if it has none."""
        metrics = self.metrics
        step = row.get("step")
        if type(step) is not int:
            step = None
        for name, item in row.items():
            if name == "timestamp" or name == "step":
                continue
            value = item if type(item) is float else number(item)
            if value is None:
                continue
            known = metrics.get(name)
            if known is None:
                if len(metrics) >= MOST_NAMES:
                    self.left_out += 1
                    continue
                known = metrics[name] = MetricSummary(0, value, step)
            known.count += 1
            known.last = value
            known.last_step = step
            low, high = known.low, known.high
            if low is None or high is None or not low <= value <= high:
                known.widen(value, step)
        return step
