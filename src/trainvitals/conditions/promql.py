"""Pieces of PromQL that several rows share."""

from __future__ import annotations

GPU = "GPU {{ $labels.gpu }} on {{ $labels.host }}"
RANK = '{{ or $labels.role "rank" }} {{ $labels.rank }} of {{ $labels.run }}'


def known_for(series: str, half_window: str) -> str:
    """Whether a series is old enough for a forecast: of the first seconds of an agent a line is easily drawn."""
    return f"{series} offset {half_window}"


def has_grown(counter: str, window: str) -> str:
    """Whether something was counted, also before the counter was first seen: `increase` knows nothing of that."""
    return f"increase({counter}[{window}]) > 0 or {counter} > 0 unless last_over_time({counter}[1h] offset {window})"


def correlation(series: str, window: str) -> str:
    """Of a value with time: 1 for a straight line. A jump and then nothing, as when a model is loaded, is 0.87 at most.

    It is the slope times the spread of the times over the spread of the values. At the newest sample the line stands
    the slope times half the window above the mean, and the spread of n evenly spaced times follows from that half.
    """
    values = f"{series}[{window}]"
    height = f"predict_linear({values}, 0) - deriv({values}) * (time() - timestamp({series})) - avg_over_time({values})"
    count = f"count_over_time({values})"
    return f"({height}) / stddev_over_time({values}) * sqrt(({count} + 1) / (3 * ({count} - 1)))"
