"""Numbers for narrow cells: four digits at most, a unit that fits, a dash for what is missing."""

from __future__ import annotations

import math
import unicodedata

MISSING = "-"

# From where on, by what it is divided, and the letter.
_LARGE = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def short(value: float | None) -> str:
    """About four digits: `0.2314`, `12.35`, `123.4`, `1,240`, `12.4k`, `3.0e-4`, `NaN`, `∞`; `-` for None."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    size = abs(value)
    if size >= 1e15:
        return f"{value:.1e}".replace("e+", "e")
    for least, scale, letter in _LARGE:
        if size >= least:
            return f"{_plain(value / scale)}{letter}"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    if size < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    return _plain(value)


def _plain(value: float) -> str:
    size = abs(value)
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 1 else 4
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def measure(value: float | None, unit: str) -> str:
    """A value with its unit, rescaled: MB to GB, s to ms, %, °C and W without decimals."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return short(value)
    if unit == "%":
        return f"{value:.0f}%" if abs(value) >= 10 or value == int(value) else f"{value:.1f}%"
    if unit == "°C":
        return f"{value:.0f}°C"
    if unit == "MB":
        return megabytes(value)
    if unit == "MB/s":
        return f"{megabytes(value)}/s"
    if unit == "s":
        return seconds(value)
    if unit == "W":
        return f"{value:.0f} W" if value < 2000 else f"{value / 1000:.1f} kW"
    if unit == "MHz":
        return f"{value:.0f} MHz"
    if unit == "J":
        return f"{value / 3.6e6:.2f} kWh" if value >= 3.6e6 else f"{value / 3600:.1f} Wh"
    return f"{short(value)} {unit}" if unit else short(value)


def megabytes(value: float) -> str:
    """`512 MB`, `48.1 GB`, `1.2 TB`, `3 KB`."""
    size = abs(value)
    if size >= 1 << 20:
        return f"{value / (1 << 20):.1f} TB"
    if size >= 1000:
        return f"{value / 1024:.1f} GB" if size < 100 * 1024 else f"{value / 1024:.0f} GB"
    if size >= 1 or value == 0:
        return f"{value:.0f} MB" if size >= 10 or value == int(value) else f"{value:.1f} MB"
    return f"{value * 1024:.0f} KB"


def seconds(value: float) -> str:
    """A short stretch of time: `830 µs`, `102 ms`, `1.25 s`, then as `duration`."""
    size = abs(value)
    if value == 0:
        return "0 s"
    if size < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if size < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if size < 60 else duration(value)


def duration(value: float) -> str:
    """A stretch of time in two units: `38 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    whole = max(round(value), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 and whole < 600 else f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


# Characters that move the cursor, change the direction of the line or have no agreed width.
_UNSAFE = frozenset("\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0e\ufe0f")


def one_line(text: str) -> str:
    """Text from anywhere, safe on a terminal: no control character, no change of direction, one line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_safe(character) for character in text)


def _safe(character: str) -> str:
    if character in "\n\r\t":
        return " "
    if character in _UNSAFE:
        return ""
    category = unicodedata.category(character)
    # Cc controls, Cf formatting (direction marks), Cs surrogates, Co and Cn of unknown width, Zl and Zp breaks
    return "·" if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else character
