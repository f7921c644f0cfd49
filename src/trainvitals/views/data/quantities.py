"""Numbers as people read them, in two densities, and never a number where there is none.

`format_value` and its neighbours are for sentences and tables; `format_short` and `format_measure` for narrow cells,
where four digits and a unit must do. Those that findings need as well come from `analysis.wording`. The page has the
former in `web/src/logic/format.ts`: both are tested against tests/data/formats.json.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainvitals.analysis.wording import NONE as NONE
from trainvitals.analysis.wording import format_duration as format_duration
from trainvitals.analysis.wording import format_seconds as format_seconds
from trainvitals.analysis.wording import format_value as format_value

if TYPE_CHECKING:  # numpy
    from trainvitals.views.data.shapes import CostJson

_LARGE = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
"""From where on, by what it is divided, and the letter."""


def format_short(value: float | None) -> str:
    """About four digits: `0.2314`, `12.35`, `123.4`, `1,240`, `12.4k`, `3.0e-4`, `NaN`, `∞`; `-` for None."""
    if value is None:
        return NONE
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


def format_measure(value: float | None, unit: str) -> str:
    """A value with its unit, rescaled: `48.1 GB`, `102 ms`, `83%`, `64°C`, `4.9 kW`."""
    if value is None or not math.isfinite(value):
        return format_short(value)
    if unit == "%":
        return f"{value:.0f}%" if abs(value) >= 10 or value == int(value) else f"{value:.1f}%"
    if unit == "°C":
        return f"{value:.0f}°C"
    if unit == "MB":
        return format_mb(value)
    if unit == "MB/s":
        return f"{format_mb(value)}/s"
    if unit == "s":
        return format_seconds(value)
    if unit == "W":
        return f"{value:.0f} W" if value < 2000 else f"{value / 1000:.1f} kW"
    if unit == "MHz":
        return f"{value:.0f} MHz"
    if unit == "J":
        return format_energy(value)
    return f"{format_short(value)} {unit}" if unit else format_short(value)


def format_percent(value: float | None) -> str:
    """`85 %`, or `-`."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.0f} %"


def format_unit(value: float | None, unit: str) -> str:
    """`412 W`, or `-`."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f} {unit}"


def format_change(share: float | None) -> str:
    """`+3.2 %`, `-12 %`, or `-`."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{'' if share < 0 else '+'}{format_value(share * 100, 3)} %"


def format_confidence(share: float | None) -> str:
    """`99.8 %`, never rounded up to certainty; `-` if it is not known."""
    if share is None:
        return NONE
    return "> 99.99 %" if share > 0.9999 else f"{math.floor(share * 10_000) / 100:g} %"


def format_bytes(count: float | None) -> str:
    """`512 B`, `1.4 MB`, `23 GB`; 1 MB is 1,048,576 bytes, as everywhere."""
    if count is None or not math.isfinite(count):
        return NONE
    size, units = float(count), iter(("B", "KB", "MB", "GB", "TB"))
    unit = next(units)
    while abs(size) >= 1024 and unit != "TB":
        size, unit = size / 1024, next(units)
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.5 else f"{size:.1f} {unit}"


def format_mb(megabytes: float | None) -> str:
    """A size given in MB, which is also the unit of nothing: `0 MB`."""
    if not megabytes:
        return NONE if megabytes is None else "0 MB"
    return format_bytes(megabytes * (1 << 20))


def format_energy(joules: float | None) -> str:
    """`3.1 Wh`, `1.24 kWh`, `2.5 MWh`; `-` if unknown."""
    if joules is None:
        return NONE
    amount, units = joules / 3600, iter(("Wh", "kWh", "MWh"))
    unit = next(units)
    while amount >= 999.5 and unit != "MWh":
        amount, unit = amount / 1000, next(units)
    return f"{format_value(amount, 3)} {unit}"


def format_cost(cost: CostJson) -> str:
    """`6.40 USD of GPU hours; 0.80 per epoch, 2.10 to finish; 2 x H100 SXM at 3.99 USD per hour, ...`."""
    details = (
        ("per_epoch", "per epoch"),
        ("per_loss_percent", "per 1 % of the loss"),
        ("to_finish", "to finish"),
    )
    more = ", ".join(f"{amount:,.2f} {what}" for key, what in details if isinstance(amount := cost.get(key), float))
    total = f"{cost['amount']:,.2f} {cost['currency']}".rstrip()
    return "; ".join(filter(None, (f"{total} of {cost['of']}", more, cost["basis"])))


def format_driver(facts: Mapping[str, object]) -> str:
    """`driver 550.54.15, CUDA 12.4`, of what a source of GPUs says of itself; empty if it does not."""
    driver, cuda = facts.get("driver_version") or facts.get("driver"), facts.get("cuda_version")
    return (f"driver {driver}" + (f", CUDA {cuda}" if cuda else "")) if driver else ""


def format_step(step: int | None) -> str:
    """`12,480`, or `-`."""
    return NONE if step is None else f"{step:,}"


def format_clock(seconds: float | None) -> str:
    """A moment in local time: `15 Nov 22:36`, with the year if it is another one."""
    if seconds is None:
        return NONE
    moment = time.localtime(seconds)
    pattern = "%d %b %H:%M" if moment.tm_year == time.localtime().tm_year else "%d %b %Y"
    return time.strftime(pattern, moment)
