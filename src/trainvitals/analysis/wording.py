"""Numbers in sentences. Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import math


def show(value: float) -> str:
    """Four significant digits."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:,.{max(3 - math.floor(math.log10(abs(value))), 0) if value else 0}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3g}"


def percent(share: float, decimals: int | None = None) -> str:
    """`12 %`, `0.4 %`."""
    if not math.isfinite(share):
        return show(share)
    value = share * 100
    digits = decimals if decimals is not None else 0 if abs(value) >= 9.95 else 1
    return f"{value:,.{digits}f} %"


CLEARER_AS_RATIO = 3.0
"""Times as much from which a share of hundreds of percent is hard to read."""


def growth(before: float, after: float) -> str:
    """By how much it is more: `45 %`, but `24x`."""
    ratio = after / before if before > 0 else 0.0
    if ratio >= CLEARER_AS_RATIO:
        return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"
    return percent((after - before) / abs(before))


def count_of(count: int, word: str, plural: str = "") -> str:
    """`1 spike`, `3 spikes`, `2 processes`."""
    return f"{count:,} {word if count == 1 else plural or f'{word}s'}"


def span(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            value = seconds / size
            return f"{value:.{1 if value < 10 and unit != 's' else 0}f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def seconds_of(value: float) -> str:
    """A step time: `820 ms`, `1.72 s`."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
