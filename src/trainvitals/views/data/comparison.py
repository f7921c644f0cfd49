"""Several runs beside each other, as plain values: the first is the baseline.
Tested in tests/views/cli/test_compare.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trainvitals import catalog
from trainvitals.analysis.comparison import DENSE, XY, compare_configs, compare_metric, group_seeds, last_stretch
from trainvitals.analysis.metric_sense import better
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.summaries import MetricSummary
from trainvitals.views.data.benchmark import LATENCY, compare_benchmarks
from trainvitals.views.data.differences import describe_differences
from trainvitals.views.data.layers import LAYER_MEASURES
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.run_details import unit_of
from trainvitals.views.data.run_rows import MAX_VALUES, describe_row, read_row_of
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
    wanted = list(names) or decisive(shared)
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
    configs = [info.file.config or {} for info in infos]
    # The same configuration in other code is another experiment.
    commits = [info.file.git.commit for info in infos]
    seeds = group_seeds([{"config": config, "commit": commit} for config, commit in zip(configs, commits, strict=True)])
    return {
        "runs": [describe_row(read_row_of(reader, key)) for key, reader in readers],
        "config": [{"key": item.key, "values": list(item.values)} for item in compare_configs(configs)],
        "others": describe_differences([reader for _, reader in readers]),
        "seeds": seeds,
        "metrics": rows,
        "verdicts": [
            *_verdicts([reader for _, reader in readers], seeds, _judged(shared)),
            *_benchmark_verdicts([reader for _, reader in readers]),
        ],
        "axis": axis,
        "names": wanted,
        "series": series,
    }


_LOSS = catalog.find("training", "loss")
_LOSSES = {"loss", *(_LOSS.aliases if _LOSS is not None else ())}


def decisive(names: Sequence[str]) -> list[str]:
    """The metrics worth comparing first: those that show which run is better."""

    def order(name: str) -> tuple[bool, bool, bool, bool]:
        is_time = name.endswith("_time")
        return name not in _LOSSES, is_time, better(name) is None, "val" not in name

    ranked = sorted(
        (name for name in names if name.partition("/")[0] not in LAYER_MEASURES or "/" not in name), key=order
    )
    return ranked[:12]


def _judged(names: Sequence[str]) -> list[str]:
    """Those whose last part decides. A benchmark's rounds have none, and are judged by themselves."""
    return [name for name in decisive(names) if better(name) and not name.startswith(LATENCY)][:8]


def _compare_row(name: str, summaries: Sequence[Mapping[str, MetricSummary]]) -> ComparedMetricJson:
    direction = better(name)
    items = [summary.get(name) for summary in summaries]
    values: list[ComparedValueJson | None] = [
        {"last": item.last, "low": item.low, "high": item.high} if item is not None else None for item in items
    ]
    best = None
    if direction is not None:
        # A run that ended NaN or infinite came to nothing, however good it was before.
        ended = [item if item is not None and math.isfinite(float(item.last)) else None for item in items]
        extremes = [(item.low if direction == "lower" else item.high) if item is not None else None for item in ended]
        known = [(value, at) for at, value in enumerate(extremes) if value is not None]
        if len({value for value, _ in known}) > 1 or len(known) == 1:  # equal values have no best
            best = (min(known) if direction == "lower" else max(known))[1]
    return {"name": name, "better": direction, "values": values, "best": best, **unit_of("training", name)}


def _verdicts(readers: Sequence[Reader], seeds: Sequence[Sequence[int]], names: Sequence[str]) -> list[Plain]:
    """Each run, or the seeds of it together, against the first."""
    if len(seeds) < 2:
        return []
    found_ends = (reader.series(names, max_points=4, participants=lowest_of(reader)) for reader in readers)
    ends = [{item.name: item for item in found if len(item.x)} for found in found_ends]
    found = []
    for group in seeds[1:]:
        for name in names:
            sides = [[place for place in side if name in ends[place]] for side in (seeds[0], group)]
            if not all(sides):
                continue
            start, end = last_stretch(*(ends[place][name].x for side in sides for place in side))
            base, other = (
                [_read_end(readers[place], ends[place][name], start, end) for place in side] for side in sides
            )
            verdict = compare_metric(name, base, other, stretch=(start, end))
            found.append({"run": group[0], **verdict._asdict()})
    return found


def _benchmark_verdicts(readers: Sequence[Reader]) -> list[Plain]:
    """Each run but the first against the first, by the interval of the ratio of their rounds."""
    first, *others = [reader.benchmarks() for reader in readers] or [[]]
    compared = ((place, compare_benchmarks(first, other)) for place, other in enumerate(others, 1))
    return [{"run": place, **verdict._asdict()} for place, verdicts in compared for verdict in verdicts]


def _read_end(reader: Reader, outline: Series, start: float, end: float) -> XY:
    """Every value of the last part and nothing else, since extremes would suggest another spread; where these are few,
    the curve before it as well, which shows the noise."""

    def read(start: float | None) -> XY:
        for series in reader.series([outline.name], start=start, end=end, participants=lowest_of(reader)):
            return series.x, series.y
        return outline.x[:0], outline.y[:0]

    found = read(start)
    return found if len(found[0]) >= DENSE else read(None)
