"""Where the marks of an axis are, and their labels: exact, where a value elsewhere is rounded.
Tested in tests/views/report/test_svg.py."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def find_range(values: Floats, low: float | None, high: float | None, log: bool) -> tuple[float, float]:
    """The ends of an axis; `low` and `high` are wanted ends, unless the data is beyond them."""
    if not len(values):
        return (low if low is not None else 0.0), (high if high is not None else 1.0)
    bottom, top = float(values.min()), float(values.max())
    if log:
        return (bottom / 1.1, top * 1.1) if top > bottom else (bottom / 2, top * 2)
    if low is not None and low <= bottom:
        bottom = low
    if high is not None and high >= top:
        return bottom, high if high > bottom else bottom + 1
    # Halves first: the largest numbers there are must not overflow.
    room = 0.05 * (top / 2 - bottom / 2) * 2 or max(abs(top) * 0.05, 1e-12)
    fixed = low is not None and bottom == low
    return (bottom if fixed else max(bottom - room, -1e308)), min(top + room, 1e308)


def find_ticks(low: float, high: float, log: bool = False, unit: str = "", count: int = 5) -> list[float]:
    """Round numbers between the ends."""
    if log:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        decades = [10.0**power for power in range(first, last + 1, max((last - first) // count, 1))]
        if len(decades) >= 2:
            return decades
    span = high / 2 - low / 2
    if not span > 0:
        return [low]
    scale = _unit_scale(max(abs(low), abs(high)), unit)
    raw = span / count * 2 / scale
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= raw * 0.75) * scale
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) if step > 1e-9 else place * step for place in range(first, first + 3 * count + 2)
            if place * step <= high * (1 + 1e-12) + 1e-300]  # fmt: skip


_SPANS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
)


def find_span_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round times between two numbers of seconds."""
    wanted = (high - low) / count
    step = next((float(s) for s in _SPANS if s >= wanted), 604_800.0 * math.ceil(wanted / 604_800))
    if wanted < 1:
        return find_ticks(low, high, count=count)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def format_span(seconds: float) -> str:
    """`30 s`, `5 min`, `2 h`, `3 d`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:g} {unit}" if (seconds / size * 2).is_integer() else f"{seconds / size:.1f} {unit}"
    return f"{seconds:g} s"


def _unit_scale(largest: float, unit: str) -> float:
    """1,024 for megabytes that are shown as gigabytes, so that marks are round there."""
    return 1024.0 if unit in ("MB", "MB/s") and largest >= 1024 else 1.0


def format_value(value: float, unit: str) -> str:
    """Short, with its unit: `40 %`, `250 ms`, `16 GB`, `1.2M`, `1e-5`."""
    if unit == "s" and 0 < abs(value) < 1:
        return f"{_digits(value * 1000)} ms" if abs(value) >= 1e-3 else f"{_digits(value * 1e6)} µs"
    if unit in ("MB", "MB/s") and abs(value) >= 1024:
        return f"{_digits(value / 1024)} {unit.replace('MB', 'GB')}"
    text = _compact(value)
    return f"{text} {unit}" if unit and unit not in ("1/s", "errors", "rows") else text


def _compact(value: float) -> str:
    size = abs(value)
    if size >= 1e12 or 0 < size < 1e-3:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{_digits(value / limit)}{letter}"
    return _digits(value)


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
