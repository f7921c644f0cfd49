"""Numbers in sentences, written as the views write them: `views.data.quantities` has these and more.
Tested in tests/views/data/test_quantities.py and tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import math

NONE = "-"
"""Shown where a value is missing."""


SEVERITY_SIGNS = {"critical": "✗", "warning": "!", "info": "i"}
"""Before a finding, in text."""


def format_value(value: float | None, digits: int = 4) -> str:
    """A metric with `digits` significant digits: `0.02134`, `1.2e-5`, `12,480`, `NaN`; `-` if there is none."""
    if value is None:
        return NONE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e7:
        decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
        text = f"{value:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{value:.{digits - 2}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def show(value: float) -> str:
    """In a finding, as everywhere else."""
    return format_value(value)


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
    """Roughly, for sentences that say `about`: `40 s`, `12 min`, `3.5 h`, `2.1 d`. Tables have `format_duration`."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            value = seconds / size
            return f"{value:.{1 if value < 10 and unit != 's' else 0}f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def format_seconds(value: float) -> str:
    """A short time, such as that of a step: `830 µs`, `102 ms`, `1.25 s`, then as `format_duration`."""
    size = abs(value)
    if value == 0:
        return "0 s"
    if size < 0.9995e-3:  # above, three digits are 1 ms
        return f"{value * 1e6:.3g} µs"
    if size < 0.9995:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if size < 60 else format_duration(value)


def format_duration(seconds: float | None) -> str:
    """How long something took: `0.8 s`, `12 s`, `4 min 05 s`, `2 h 13 min`, `3 d 04 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left:02d} s"
    hours, minutes_left = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes_left:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def seconds_of(value: float) -> str:
    """A step time in a finding, as everywhere else."""
    return format_seconds(value)
