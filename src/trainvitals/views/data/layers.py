"""What was measured of each layer, and the histograms: grids to draw, as plain values.
Tested in tests/views/web/test_app.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.identity import Participant
from trainvitals.views.data.natural_order import natural_key
from trainvitals.views.data.shapes import HistogramsJson, LayersJson

LAYER_MEASURES = ("gradient_norm", "gradient_max", "weight_norm", "update_ratio", "gradient_nan", "gradient_inf")
MAX_LAYERS = 400


def layer_measures(names: Iterable[str]) -> dict[str, int]:
    """What was measured of layers, and of how many."""
    counts: dict[str, int] = {}
    for name in names:
        head, slash, _ = name.partition("/")
        if slash and head in LAYER_MEASURES:
            counts[head] = counts.get(head, 0) + 1
    return counts


def describe_layers(
    reader: Reader, measure: str, points: int = 200, participants: Sequence[Participant] | None = None
) -> LayersJson:
    """One measure of every layer over the steps, as a grid: `values[layer][column]`, null where nothing was seen.
    Of several participants, the lowest."""
    names = [name for name in reader.names() if name.partition("/")[0] == measure and "/" in name]
    names.sort(key=natural_key)
    left_out = max(len(names) - MAX_LAYERS, 0)
    names = names[:MAX_LAYERS]
    found: dict[str, Series] = {}
    for series in reader.series(names, max_points=points * 2, participants=participants):
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


def describe_histograms(reader: Reader, name: str, limit: int = 200) -> HistogramsJson:
    """The histograms of one name over the steps, evenly thinned out to `limit`."""
    rows = reader.histograms(name)
    if len(rows) > limit:
        rows = [rows[int(at)] for at in np.linspace(0, len(rows) - 1, limit)]
    wanted = ("step", "low", "high", "counts", "nonfinite")
    return {"name": name, "histograms": [{key: row.get(key) for key in wanted} for row in rows]}
