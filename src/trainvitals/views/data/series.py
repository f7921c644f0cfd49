"""What the API says of a run's series, layers and histograms: numbers to draw, as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainvitals.analysis.bands import make_band
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.reader import RunReader, Series
from trainvitals.views.data.wire import Answer, pack_axis, pack_broken, pack_values

LAYER_MEASURES = ("gradient_norm", "gradient_max", "weight_norm", "update_ratio", "gradient_nan", "gradient_inf")
MAX_LAYERS = 400
MAX_CHANGES = 2000


def describe_series(
    reader: RunReader,
    names: Sequence[str],
    *,
    table: str = "training",
    axis: str = "step",
    start: float | None = None,
    end: float | None = None,
    points: int = 1000,
    ranks: Sequence[int] | None = None,
    band: bool = False,
    rate: bool = False,
    all_attempts: bool = False,
) -> Answer:
    """Series of the given names. `axis` is step, time, relative, or the name of a training metric such as `epoch`;
    `band` puts the ranks of a name together as lowest, mean and highest; `rate` draws a counter per second."""
    plain = axis in ("step", "time", "relative")
    found = reader.series(
        names,
        table=table,
        x=axis if plain else "step",  # type: ignore[arg-type]
        start=start if plain else None,
        end=end if plain else None,
        max_points=points,
        ranks=ranks,
        all_attempts=all_attempts,
    )
    if not plain:
        found = _on_metric(reader, found, axis, start, end, points)
    if rate:
        found = [_per_second(series) for series in found]
    if band:
        return {"axis": axis, "table": table, "series": _bands(found, axis, points)}
    return {"axis": axis, "table": table, "series": [pack_series(series, axis) for series in found]}


def pack_series(series: Series, axis: str) -> Answer:
    """One series for the wire."""
    return {
        "name": series.name,
        "labels": dict(series.labels),
        "rank": series.rank,
        "total": series.total,
        "nonfinite_total": series.nonfinite,
        "x": pack_axis(series.x, axis),
        **pack_values(series.y),
    }


def _on_metric(
    reader: RunReader, found: list[Series], axis: str, start: float | None, end: float | None, points: int
) -> list[Series]:
    """The same values over another metric: its value at each step, between two looks interpolated."""
    scale = next(iter(reader.series([axis], max_points=max(points, 2000))), None)
    if scale is None:
        return []
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
        moved.append(replace(series, x=x[keep], y=y[keep], nonfinite=count))
    return moved


def _per_second(series: Series) -> Series:
    """A counter as its rate. A counter that falls began anew: its rate there is not known."""
    if len(series.x) < 2:
        return replace(series, x=series.x[:0], y=series.y[:0], nonfinite=0)
    span, rise = np.diff(series.x), np.diff(series.y)
    known = (span > 0) & (rise >= 0)
    return replace(series, x=series.x[1:][known], y=rise[known] / span[known], nonfinite=0)


def _bands(found: Sequence[Series], axis: str, points: int) -> list[Answer]:
    by_name: dict[str, list[Series]] = {}
    for series in found:
        by_name.setdefault(series.name, []).append(series)
    bands = []
    for name, several in by_name.items():
        if len(several) == 1:
            bands.append(pack_series(several[0], axis))
            continue
        made = make_band([(series.x, series.y) for series in several], max(points // 2, 1))
        x = np.round(made.x) if axis == "step" else made.x
        bands.append(
            {
                "name": name,
                "labels": {},
                "rank": None,
                "total": sum(series.total for series in several),
                "nonfinite_total": sum(series.nonfinite for series in several),
                "members": len(several),
                "x": pack_axis(x, axis),
                "y": made.mean,
                **pack_broken(made.broken),
                "low": made.low,
                "high": made.high,
            }
        )
    return bands


# -- states


def describe_states(
    reader: RunReader, names: Sequence[str], *, table: str = "gpu", start: float | None = None, end: float | None = None
) -> Answer:
    """Words over time. The word that holds at `start` is told as well; of too many changes, the newest."""
    states = []
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
                    "changes": [[round(at, 3), word] for at, word in changes[-MAX_CHANGES:]],
                }
            )
    return {"table": table, "states": states}


# -- layers and histograms


def layer_measures(names: Iterable[str]) -> dict[str, int]:
    """What was measured of layers, and of how many."""
    counts: dict[str, int] = {}
    for name in names:
        head, slash, _ = name.partition("/")
        if slash and head in LAYER_MEASURES:
            counts[head] = counts.get(head, 0) + 1
    return counts


def describe_layers(reader: RunReader, measure: str, points: int = 200, rank: int | None = None) -> Answer:
    """One measure of every layer over the steps, as a grid: `values[layer][column]`, null where nothing was seen."""
    names = [name for name in reader.names() if name.partition("/")[0] == measure and "/" in name]
    names.sort(key=_natural)
    left_out = max(len(names) - MAX_LAYERS, 0)
    names = names[:MAX_LAYERS]
    ranks = None if rank is None else [rank]
    found: dict[str, Series] = {}
    for series in reader.series(names, max_points=points * 2, ranks=ranks):
        found.setdefault(series.name, series)
    if not found:
        return {"measure": measure, "layers": [], "x": [], "values": [], "left_out": left_out}
    start = min(float(series.x[0]) for series in found.values())
    end = max(float(series.x[-1]) for series in found.values())
    columns = min(points, max(len(series.x) for series in found.values()))
    edges = np.linspace(start, end, columns + 1)
    rows = []
    for series in found.values():
        place = np.clip(np.searchsorted(edges, series.x, side="right") - 1, 0, columns - 1)
        row = np.full(columns, np.nan)
        row[place] = series.y
        rows.append([None if not np.isfinite(value) else float(value) for value in row])
    return {
        "measure": measure,
        "layers": [name.partition("/")[2] for name in found],
        "x": edges[:-1].round().astype(np.int64),
        "values": rows,
        "left_out": left_out,
    }


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part]


def histogram_files(folder: Path) -> list[Path]:
    """The files that hold histograms, rank 0 first."""
    return sorted((folder / "media").glob("histograms.rank*.jsonl"), key=lambda path: (len(path.name), path.name))


def list_histograms(folder: Path) -> list[str]:
    """Names of the histograms, from the beginning of rank 0's file: all are written at each look."""
    names: dict[str, None] = {}
    for path in histogram_files(folder)[:1]:
        names.update((str(row.get("name")), None) for row in Cursor(path).read(1 << 20))
    return list(names)


def describe_histograms(reader: RunReader, name: str, limit: int = 200) -> Answer:
    """The histograms of one name over the steps, evenly thinned out to `limit`."""
    rows = [
        row for path in histogram_files(reader.folder)[:1] for row in Cursor(path).read() if row.get("name") == name
    ]
    if len(rows) > limit:
        rows = [rows[int(at)] for at in np.linspace(0, len(rows) - 1, limit)]
    wanted = ("step", "low", "high", "counts", "nonfinite")
    return {"name": name, "histograms": [{key: row.get(key) for key in wanted} for row in rows]}
