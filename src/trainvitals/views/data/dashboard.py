"""The declared panels and the catalog of metrics as plain values: what the page needs to draw any run.
Tested in tests/views/test_panels.py."""

from __future__ import annotations

from trainvitals import catalog
from trainvitals.conditions import Conditions
from trainvitals.views import panels
from trainvitals.views.data.key_metrics import KEY_METRICS
from trainvitals.views.data.shapes import PanelJson, PanelsJson


def describe_panels(conditions: Conditions) -> PanelsJson:
    """The dashboard's panels, their groups, and every metric of the catalog."""
    return {
        "groups": [{"id": name, "title": title} for name, title in panels.GROUPS],
        "panels": [_describe_panel(panel, conditions) for panel in panels.PANELS],
        "scheduled": list(panels.SCHEDULED),
        "key_metrics": list(KEY_METRICS),
        "metrics": {
            table: [metric._asdict() for metric in (*rows, *(catalog.MEANINGS if table == "training" else ()))]
            for table, rows in catalog.TABLES.items()
        },
        "thresholds": [
            {"table": table, "metric": name, **level._asdict()}
            for (table, name), found in conditions.levels.items()
            for level in found
        ],
    }


def _describe_panel(panel: panels.Panel, conditions: Conditions) -> PanelJson:
    return {
        "id": panel.id,
        "title": panel.title,
        "group": panel.group,
        "table": panel.table,
        "metrics": list(panel.metrics),
        "importance": panel.importance,
        "chart": panel.chart,
        "by": list(panel.by),
        "limit": panel.limit,
        "low": panel.low,
        "high": panel.high,
        "log": panel.log_scale,
        "log_first": panel.log_first,
        "smooth": panel.smooth,
        "unit": panel.unit,
        "rate": panel.is_rate,
        "thresholds": [level._asdict() for level in panels.levels_of(panel, conditions)],
    }
