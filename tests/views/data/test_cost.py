"""What a run cost."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from trainvitals.analysis.findings import Curve
from trainvitals.prices import CO2_GRAMS, LIST_PRICES, Prices, find_list_price, find_smaller
from trainvitals.views.data.cost import add_details, find_co2, find_cost
from trainvitals.views.data.quantities import format_cost

H100 = "NVIDIA H100 80GB HBM3"
DOCS = Path(__file__).parents[3] / "docs" / "cost.md"


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        (H100, "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80 GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A10G", None),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_a_gpu_is_found_by_the_name_of_its_driver(name: str, gpu: str | None) -> None:
    found = find_list_price(name, "on_demand")
    assert (found.gpu if found is not None else None) == gpu
    assert find_list_price(name, "none") is None


def test_a_price_that_was_set_comes_before_the_list_and_the_list_before_energy() -> None:
    own = find_cost(Prices(gpu_hour=2.0, currency="EUR", plan="on_demand"), [H100, H100], 1800, 3.6e6)
    assert own is not None and (own["amount"], own["currency"], own["basis"]) == (2.0, "EUR", "")
    listed = find_cost(Prices(kwh=0.3, currency="EUR", plan="on_demand"), [H100, H100], 1800, 3.6e6)
    assert listed is not None and (listed["amount"], listed["currency"]) == (pytest.approx(3.99), "USD")
    assert listed["basis"] == "2 x H100 SXM at 3.99 USD per hour, on demand (runpod.io/pricing, 2026-11-09)"
    energy = find_cost(Prices(kwh=0.3, currency="EUR", plan="on_demand"), [H100, "unknown"], 1800, 3.6e6)
    assert energy is not None and (energy["amount"], energy["of"]) == (pytest.approx(0.3), "energy")
    assert find_cost(Prices(plan="spot"), [H100], 1800, 3.6e6) is None, "no spot price is listed"
    assert find_cost(Prices(), [H100], 1800, 3.6e6) is None
    assert find_cost(Prices(gpu_hour=2.0), [], 1800, None) is None


def test_what_an_epoch_the_rest_and_one_percent_of_the_loss_cost() -> None:
    cost = find_cost(Prices(gpu_hour=10.0, currency="USD"), [H100], 3600, None)
    steps = np.arange(1000.0)
    falling = Curve(steps, 2.0 - steps / 1000)  # 1.35 to 1.05 in three tenths of the steps
    assert cost is not None
    found = add_details(cost, 3600, 4.0, 1800, falling)
    assert (found["per_epoch"], found["to_finish"]) == (2.5, 5.0)
    assert found["per_loss_percent"] == pytest.approx(10 * 0.3 / (100 * 0.3 / 1.35), rel=0.01)
    text = "10.00 USD of GPU hours; 2.50 per epoch, 0.14 per 1 % of the loss, 5.00 to finish"
    assert format_cost(found) == text
    assert add_details(cost, 3600, None, None, Curve(steps, np.full(1000, 1.0)))["per_loss_percent"] is None


def test_co2_follows_the_energy() -> None:
    assert find_co2(Prices(co2_grams_per_kwh=342), 7.2e6) == pytest.approx(0.684)
    assert find_co2(Prices(), 7.2e6) is None and find_co2(Prices(co2_grams_per_kwh=342), None) is None


def test_a_smaller_gpu_is_cheaper_and_has_room() -> None:
    own = find_list_price(H100, "on_demand")
    assert own is not None
    small, large = find_smaller(own, 9_000), find_smaller(own, 60_000)
    assert small is not None and small.gpu == "RTX 4090"
    assert large is not None and large.memory_gb >= 80
    assert find_smaller(own, 500_000) is None


def test_the_page_has_the_lists_as_they_are() -> None:
    text = DOCS.read_text()
    for row in LIST_PRICES:
        assert f"| {row.gpu} | {row.memory_gb} GB | {row.plan} | {row.hour:g} | {row.source} | {row.date} |" in text
    assert dict(re.findall(r"([A-Z]{2}) (\d+)", text.partition("per kWh:")[2])) == {
        country: str(grams) for country, grams in CO2_GRAMS.items()
    }
