"""What GPU hours and kWh cost, and how much CO2 a kWh emits: set by the user, or from dated lists. Without numpy.

The lists are few and dated on purpose: a price that nobody can check is worse than none. Whoever pays another price
sets `price.gpu_hour`, in any currency. Tested in tests/views/data/test_cost.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

if TYPE_CHECKING:
    from trainvitals.settings import Settings

Plan = Literal["none", "on_demand", "spot"]
LIST_CURRENCY = "USD"


class ListPrice(NamedTuple):
    """What a vendor asked for one hour of one GPU, in USD."""

    gpu: str
    pattern: str
    """Matches the name that the driver reports."""
    memory_gb: int
    plan: Plan
    hour: float
    source: str
    date: str
    """When the price was read there."""

    @property
    def text(self) -> str:
        """`H100 SXM at 3.99 USD per hour, on demand (runpod.io/pricing, 2026-11-09)`."""
        plan = self.plan.replace("_", " ")
        return f"{self.gpu} at {self.hour:.2f} {LIST_CURRENCY} per hour, {plan} ({self.source}, {self.date})"


_RUNPOD, _LAMBDA, _VERDA = "runpod.io/pricing", "lambda.ai/pricing", "verda.com/pricing"

LIST_PRICES: tuple[ListPrice, ...] = (
    ListPrice("B200", r"\bB200\b", 180, "on_demand", 6.79, _RUNPOD, "2026-09-25"),
    ListPrice("H200", r"\bH200\b", 141, "on_demand", 4.59, _RUNPOD, "2026-09-25"),
    ListPrice("GH200", r"\bGH200\b", 96, "on_demand", 2.29, _LAMBDA, "2026-09-25"),
    ListPrice("H100 NVL", r"\bH100 NVL\b", 94, "on_demand", 3.19, _RUNPOD, "2026-11-09"),
    ListPrice("H100 PCIe", r"\bH100 PCIe\b", 80, "on_demand", 2.89, _RUNPOD, "2026-11-09"),
    ListPrice("H100 SXM", r"\bH100 80GB HBM3\b|\bH100.SXM", 80, "on_demand", 3.99, _RUNPOD, "2026-11-09"),
    ListPrice("A100 80 GB", r"\bA100.*80GB", 80, "on_demand", 1.79, _RUNPOD, "2026-11-09"),
    ListPrice("A100 40 GB", r"\bA100.*40GB", 40, "on_demand", 1.99, _LAMBDA, "2026-09-25"),
    ListPrice("L40S", r"\bL40S\b", 48, "on_demand", 1.09, _RUNPOD, "2026-09-25"),
    ListPrice("L40S", r"\bL40S\b", 48, "spot", 0.941, _VERDA, "2026-10-29"),
    ListPrice("RTX A6000", r"\bRTX A6000\b", 48, "on_demand", 0.82, _VERDA, "2026-10-29"),
    ListPrice("RTX A6000", r"\bRTX A6000\b", 48, "spot", 0.41, _VERDA, "2026-10-29"),
    ListPrice("A10", r"\bA10\b", 24, "on_demand", 1.29, _LAMBDA, "2026-09-25"),
    ListPrice("RTX 4090", r"\bRTX 4090$", 24, "on_demand", 0.74, _RUNPOD, "2026-09-25"),
)

# Ember, yearly average of 2024 (ember-energy.org, CC BY 4.0)
CO2_GRAMS = {
    "AT": 103, "AU": 554, "BE": 118, "BR": 106, "CA": 185, "CH": 37, "CN": 558, "DE": 342, "DK": 143, "ES": 146,
    "FI": 72, "FR": 44, "GB": 216, "IE": 280, "IN": 709, "IT": 288, "JP": 484, "KR": 416, "NL": 253, "NO": 31,
    "PL": 615, "SE": 36, "SG": 499, "TW": 635, "US": 384, "ZA": 714,
}  # fmt: skip
"""Grams of CO2 equivalent per kWh of electricity, by country."""


class Prices(NamedTuple):
    """What applies to a run; what is not set is None."""

    gpu_hour: float | None = None
    kwh: float | None = None
    currency: str = ""
    plan: Plan = "none"
    """The list that GPUs are priced by if there is no `gpu_hour`."""
    co2_grams_per_kwh: float | None = None

    def per_hour(self, gpus: Sequence[str]) -> GpuRate | None:
        """For GPUs of these names together; None unless every one of them has a price."""
        if not gpus:
            return None
        if self.gpu_hour is not None:
            return GpuRate(self.gpu_hour * len(gpus), self.currency, "")
        found = [find_list_price(name, self.plan) for name in gpus]
        known = [price for price in found if price is not None]
        if len(known) < len(gpus):
            return None
        kinds = {price: known.count(price) for price in known}
        basis = "; ".join(f"{count} x {price.text}" for price, count in kinds.items())
        return GpuRate(sum(price.hour for price in known), LIST_CURRENCY, basis)

    @classmethod
    def of(cls, settings: Settings) -> Prices:
        """Those that the user set."""
        region = CO2_GRAMS.get((settings.price_region or "").upper()[:2])
        return cls(
            gpu_hour=settings.price_gpu_hour,
            kwh=settings.price_kwh,
            currency=settings.price_currency or "",
            plan=cast(Plan, settings.price_plan),
            co2_grams_per_kwh=settings.price_co2 if settings.price_co2 is not None else region,
        )


class GpuRate(NamedTuple):
    """What some GPUs cost together."""

    per_hour: float
    currency: str
    basis: str
    """The list prices; empty where the user set one."""


NO_PRICES = Prices()


def find_list_price(gpu: str, plan: Plan) -> ListPrice | None:
    """By the name that the driver reports: `NVIDIA A100-SXM4-80GB`."""
    rows = (row for row in LIST_PRICES if row.plan == plan)
    return next((row for row in rows if re.search(row.pattern, gpu)), None)


def find_smaller(price: ListPrice, memory_mb: float) -> ListPrice | None:
    """The cheapest GPU of the same plan that costs less and has room for this much memory, a tenth of it kept free."""
    rows = [row for row in LIST_PRICES if row.plan == price.plan and row.hour < price.hour]
    return min((row for row in rows if 0.9 * row.memory_gb * 1024 >= memory_mb), key=lambda row: row.hour, default=None)
