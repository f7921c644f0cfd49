"""What a run cost: so far, per epoch, per 1 % of the loss, and until it is done; and how much CO2 its GPUs emitted.
Tested in tests/views/cli/test_report.py and tests/views/data/test_cost.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainvitals.prices import Prices

if TYPE_CHECKING:
    from trainvitals.analysis.findings import Curve
    from trainvitals.views.data.shapes import CostJson

JOULES_PER_KWH = 3.6e6
LATE = (0.6, 0.7), (0.9, 1.0)
"""Parts of a run between which the loss is compared, to know what it costs to lower it now."""


def find_cost(
    prices: Prices, gpus: Sequence[str], seconds: float | None, energy_joules: float | None
) -> CostJson | None:
    """What the run cost so far: the hours of its GPUs, given by name, where these have a price, else its energy."""
    rate = prices.per_hour(gpus)
    if rate is not None and seconds is not None:
        return _cost(seconds / 3600 * rate.per_hour, rate.currency, "GPU hours", rate.basis)
    if prices.kwh is not None and energy_joules is not None:
        return _cost(energy_joules / JOULES_PER_KWH * prices.kwh, prices.currency, "energy", "")
    return None


def _cost(amount: float, currency: str, of: str, basis: str) -> CostJson:
    return {
        "amount": amount,
        "currency": currency,
        "of": of,
        "basis": basis,
        "per_epoch": None,
        "to_finish": None,
        "per_loss_percent": None,
    }


def add_details(
    cost: CostJson, seconds: float | None, epoch: float | None, seconds_left: float | None, loss: Curve | None
) -> CostJson:
    """The same with what follows from it: `epoch` is how many are done, `loss` its curve over steps."""
    amount = cost["amount"]
    cost["per_epoch"] = amount / epoch if epoch is not None and epoch > 0 else None
    cost["to_finish"] = amount / seconds * seconds_left if seconds and seconds_left is not None else None
    cost["per_loss_percent"] = _per_loss_percent(amount, loss) if loss is not None else None
    return cost


def _per_loss_percent(amount: float, loss: Curve) -> float | None:
    """What it cost late in the run to lower the loss by 1 % of itself; None if it did not fall there."""
    import numpy as np

    loss = loss.finite()
    if len(loss.x) < 20:
        return None
    first, span = float(loss.x[0]), float(loss.x[-1] - loss.x[0])
    parts = [loss.y[(loss.x >= first + begin * span) & (loss.x <= first + end * span)] for begin, end in LATE]
    if not all(map(len, parts)):
        return None
    before, after = (float(np.median(part)) for part in parts)
    share = LATE[1][0] - LATE[0][0]
    return amount * share / (100 * (before - after) / before) if before > after > 0 else None


def find_co2(prices: Prices, energy_joules: float | None) -> float | None:
    """Kilograms of CO2 equivalent that the energy of the GPUs stands for; None if the region is not known."""
    if prices.co2_grams_per_kwh is None or energy_joules is None:
        return None
    return energy_joules / JOULES_PER_KWH * prices.co2_grams_per_kwh / 1000
