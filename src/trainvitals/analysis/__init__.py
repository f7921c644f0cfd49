"""Pure functions: numbers in, findings out. No file is read and nothing is drawn here.

The names below are for everyone (docs/analysis.md); each is imported when it is first used, since the agent needs parts
of this room without numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainvitals.analysis.anomalies import find_anomalies as find_anomalies
    from trainvitals.analysis.comparison import compare_metric as compare_metric
    from trainvitals.analysis.statistics import describe_values as describe_values
    from trainvitals.analysis.trends import find_change_points as find_change_points
    from trainvitals.analysis.trends import find_growth as find_growth
    from trainvitals.analysis.trends import find_trend as find_trend
    from trainvitals.analysis.trends import forecast as forecast

_MENU = {
    "compare_metric": "comparison",
    "describe_values": "statistics",
    "find_anomalies": "anomalies",
    "find_change_points": "trends",
    "find_growth": "trends",
    "find_trend": "trends",
    "forecast": "trends",
}

__all__ = [*_MENU]


def __getattr__(name: str) -> object:
    if name not in _MENU:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_MENU[name]}"), name)
    globals()[name] = value
    return value
