"""The statistics of a run, as plain values: trends, anomalies, changes, forecasts, resources, regressions.
Tested in tests/views/cli/test_analyze.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainvitals.analysis.anomalies import find_anomalies
from trainvitals.analysis.comparison import compare_metric
from trainvitals.analysis.findings import Curve, Device
from trainvitals.analysis.progress import find_total
from trainvitals.analysis.robust import thin
from trainvitals.analysis.trends import find_change_points, find_growth, find_trend, forecast
from trainvitals.journal.contracts import Reader
from trainvitals.views.data.comparison import decisive
from trainvitals.views.data.diagnosis import TrainingCurves, describe_resources, read_measurements

MAX_METRICS = 12
NEWEST_JUDGED = 20_000
"""Newest values that are searched for anomalies."""
MORE = 0.1
"""Share of the steps so far by which a run without a known end is continued."""
KEPT_POINTS = 200_000
"""Values of one curve that are looked at; of more, medians of neighbours."""
GROWING = {"gpu": ("memory_used_mb",), "system": ("memory_usage_percent",), "process": ("pss_mb", "rss_mb")}
"""What should not keep growing, by kind of device."""


def describe_analysis(reader: Reader, names: Sequence[str] = (), baselines: Sequence[Reader] = ()) -> dict[str, Any]:
    """Of the given metrics, else of those that show best how it went. `baselines` are the runs it is compared with;
    several are taken together."""
    curves = TrainingCurves(reader)
    wanted = list(names) or decisive(reader.names())[:MAX_METRICS]
    total = find_total(reader.info.file.config or {})
    measured = read_measurements(reader)
    devices = (("gpu", measured.gpus), ("system", measured.hosts), ("process", measured.processes))
    earlier = [TrainingCurves(baseline) for baseline in baselines]
    return {
        "run": reader.info.id,
        "from_step": curves.start,
        "baselines": [baseline.info.id for baseline in baselines],
        "metrics": [_describe_metric(name, curve, total) for name in wanted if (curve := curves.get(name)) is not None],
        "resources": describe_resources(measured),
        "growth": [row for table, found in devices for device in found for row in _describe_growth(device, table)],
        "regressions": _compare(wanted, curves, earlier) if earlier else [],
    }


def _describe_metric(name: str, curve: Curve, total: float | None) -> dict[str, Any]:
    finite = curve.finite()
    x, y = thin(finite.x, finite.y, KEPT_POINTS)
    trend = find_trend(x, y)
    first, last = (float(curve.x[0]), float(curve.x[-1])) if len(curve.x) else (0.0, 0.0)
    at = total if total is not None and total > last else last + MORE * (last - first)
    ahead = forecast(x, y, at)
    start = max(len(curve.y) - NEWEST_JUDGED, 0)
    return {
        "metric": name,
        "count": len(curve.y),
        "nonfinite": len(curve.y) - len(finite.y),
        "last": float(curve.y[-1]) if len(curve.y) else None,
        "trend": trend._asdict() if trend is not None else None,
        "anomalies": [
            {"step": int(curve.x[start + item.place]), **item._asdict(), "place": start + item.place}
            for item in find_anomalies(curve.y[start:].tolist())
        ],
        "changes": [item._asdict() for item in find_change_points(x, y)],
        "forecast": ahead._asdict() if ahead is not None else None,
    }


def _describe_growth(device: Device, table: str) -> list[dict[str, Any]]:
    """Per hour."""
    found = []
    for name in GROWING[table]:
        curve = device.curves.get(name)
        growth = find_growth(*curve) if curve is not None else None
        if growth is not None:
            per_hour = {"per_hour": growth.per_unit * 3600}
            plain = {key: value for key, value in growth._asdict().items() if key != "per_unit"}
            found.append({"subject": device.title, "table": table, "metric": name, **plain, **per_hour})
    return found


def _compare(names: Sequence[str], curves: TrainingCurves, earlier: Sequence[TrainingCurves]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        mine = curves.get(name)
        others = [(curve.x, curve.y) for item in earlier if (curve := item.get(name)) is not None and len(curve.x)]
        if mine is not None and others:
            found.append(compare_metric(name, others, [(mine.x, np.asarray(mine.y))])._asdict())
    return found
