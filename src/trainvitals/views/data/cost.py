"""What a run cost, where the user has set a price. Tested in tests/views/cli/test_report.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainvitals.settings import Settings

if TYPE_CHECKING:
    from trainvitals.views.data.shapes import CostJson


def prices_of(settings: Settings) -> dict[str, Any]:
    """What an hour of a GPU and a kWh cost; None where it is not set."""
    return {
        "gpu_hour": settings.price_gpu_hour,
        "kwh": settings.price_kwh,
        "currency": settings.price_currency or "",
    }


def find_cost(prices: Mapping[str, Any], gpu_seconds: float | None, energy_joules: float | None) -> CostJson | None:
    """What the run cost so far, where a price is set: GPU hours, else energy."""
    hour, kwh, currency = prices.get("gpu_hour"), prices.get("kwh"), prices.get("currency") or ""
    if hour is not None and gpu_seconds is not None:
        return {"amount": gpu_seconds / 3600 * hour, "currency": currency, "of": "GPU hours"}
    if kwh is not None and energy_joules is not None:
        return {"amount": energy_joules / 3.6e6 * kwh, "currency": currency, "of": "energy"}
    return None
