"""Several runs beside each other, as plain values: the first is the baseline.
Tested in tests/views/cli/test_compare.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainvitals.analysis.comparison import compare_configs, compare_metric, last_stretch
from trainvitals.analysis.metric_sense import better
from trainvitals.journal.contracts import Reader
from trainvitals.journal.summaries import MetricSummary
from trainvitals.views.data.layers import LAYER_MEASURES
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.run_details import describe_row, unit_of
from trainvitals.views.data.run_rows import MAX_VALUES, make_row
from trainvitals.views.data.series import pack_series
from trainvitals.views.data.shapes import (
    ComparedMetricJson,
    ComparedSeriesJson,
    ComparedValueJson,
    ComparisonJson,
    Plain,
)


def describe_comparison(
    readers: Sequence[tuple[str, Reader]],
    names: Sequence[str],
    *,
    axis: str = "step",
    points: int = 600,
    start: float | None = None,
    end: float | None = None,
) -> ComparisonJson:
    """Runs beside each other; the first is the baseline. Without `names`, of all metrics that several have."""
    infos = [reader.info for _, reader in readers]
    summaries = [reader.summary() for _, reader in readers]
    shared = [name for name in summaries[0] if any(name in other for other in summaries[1:])] if summaries else []
    shared += sorted({name for other in summaries[1:] for name in other} - set(shared)) if not shared else []
    series: list[ComparedSeriesJson] = []
    wanted = list(names) or _decisive(shared)
    for place, (key, reader) in enumerate(readers):
        found = reader.series(
            wanted,
            x=axis,  # type: ignore[arg-type]
            start=start,
            end=end,
            max_points=points,
            participants=lowest_of(reader),
        )
        series += [{"run": place, "key": key, **pack_series(item, axis)} for item in found]
    rows = [_compare_row(name, summaries) for name in shared[:MAX_VALUES]]
    return {
        "runs": [
            describe_row(make_row(key, info, reader.statuses()))
            for info, (key, reader) in zip(infos, readers, strict=True)
        ],
        "config": [
            {"key": item.key, "values": list(item.values)}
            for item in compare_configs([info.file.config or {} for info in infos])
        ],
        "metrics": rows,
        "verdicts": _verdicts([reader for _, reader in readers], [n for n in _decisive(shared) if better(n)][:8]),
        "axis": axis,
        "names": wanted,
        "series": series,
    }


def _decisive(names: Sequence[str]) -> list[str]:
    """The metrics worth comparing first: those that show which run is better."""

    def order(name: str) -> tuple[bool, bool, bool, bool]:
        is_time = name.endswith("_time")
        return name != "loss", is_time, better(name) is None, "val" not in name

    ranked = sorted(
        (name for name in names if name.partition("/")[0] not in LAYER_MEASURES or "/" not in name), key=order
    )
    return ranked[:12]


def _compare_row(name: str, summaries: Sequence[Mapping[str, MetricSummary]]) -> ComparedMetricJson:
    direction = better(name)
    items = [summary.get(name) for summary in summaries]
    values: list[ComparedValueJson | None] = [
        {"last": item.last, "low": item.low, "high": item.high} if item is not None else None for item in items
    ]
    best = None
    if direction is not None:
        extremes = [(item.low if direction == "lower" else item.high) if item is not None else None for item in items]
        known = [(value, at) for at, value in enumerate(extremes) if value is not None]
        if len({value for value, _ in known}) > 1 or len(known) == 1:  # equal values have no best
            best = (min(known) if direction == "lower" else max(known))[1]
    return {"name": name, "better": direction, "values": values, "best": best, **unit_of("training", name)}


def _verdicts(readers: Sequence[Reader], names: Sequence[str]) -> list[Plain]:
    """Each run but the first against the first."""
    if len(readers) < 2:
        return []
    found_ends = (reader.series(names, max_points=4, participants=lowest_of(reader)) for reader in readers)
    ends = [{item.name: item for item in found} for found in found_ends]
    found = []
    for place, reader in enumerate(readers[1:], 1):
        for name in names:
            if name not in ends[0] or name not in ends[place]:
                continue
            # Every value of the last part and nothing else: extremes would suggest another spread.
            start, end = last_stretch(ends[0][name].x, ends[place][name].x)
            base = _of_lowest(readers[0], name, start, end)
            verdict = compare_metric(name, base, _of_lowest(reader, name, start, end), stretch=(start, end))
            found.append({"run": place, **verdict._asdict()})
    return found


def _of_lowest(reader: Reader, name: str, start: float, end: float) -> tuple[Any, Any]:
    for series in reader.series([name], start=start, end=end, participants=lowest_of(reader)):
        return series.x, series.y
    return np.empty(0), np.empty(0)
