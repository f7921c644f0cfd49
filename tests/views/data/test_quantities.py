"""Numbers as people read them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainvitals.views.data import quantities

CASES = json.loads((Path(__file__).parents[2] / "data" / "formats.json").read_text())
FORMATS: dict[str, Callable[[Any], str]] = {
    "value": quantities.format_value,
    "change": quantities.format_change,
    "confidence": quantities.format_confidence,
    "seconds": quantities.format_seconds,
    "duration": quantities.format_duration,
    "bytes": quantities.format_bytes,
    "energy": quantities.format_energy,
}


@pytest.mark.parametrize(("kind", "value", "text"), [(kind, *case) for kind, found in CASES.items() for case in found])
def test_a_number_is_the_text_that_it_is_on_the_page(kind: str, value: float | None, text: str) -> None:
    assert FORMATS[kind](value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (-0.0, "0"),
        (12_480, "12,480"),
        (0.021346, "0.02135"),
        (1.5, "1.5"),
        (123.456, "123.5"),
        (99_999.5, "100,000"),
        (1.2e-5, "1.2e-5"),
        (1e308, "1e308"),
        (-3.25, "-3.25"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_value_has_four_digits(value: float | None, text: str) -> None:
    assert quantities.format_value(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7980, "2 h 13 min"),
        (273_600, "3 d 04 h"),
    ],
)
def test_a_span_has_the_two_units_that_matter(seconds: float | None, text: str) -> None:
    assert quantities.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (512, "512 B"),
        (1536, "1.5 KB"),
        (1 << 30, "1.0 GB"),
        (250 << 20, "250 MB"),
        (5 << 50, "5120 TB"),
    ],
)
def test_bytes_are_counted_in_powers_of_1024(count: float | None, text: str) -> None:
    assert quantities.format_bytes(count) == text


def test_energy_is_told_in_a_unit_that_fits() -> None:
    assert quantities.format_energy(3.6e6) == "1 kWh"
    assert quantities.format_energy(3600 * 3.14) == "3.14 Wh"
    assert quantities.format_energy(None) == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.23141, "0.2314"),
        (12.345, "12.35"),
        (123.45, "123.5"),
        (1240.0, "1,240"),
        (12_400.0, "12.4k"),
        (3.04e-4, "3.0e-4"),
        (2.5e9, "2.5G"),
        (1e308, "1.0e308"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (-0.5, "-0.5"),
    ],
)
def test_a_number_takes_few_characters(value: float | None, text: str) -> None:
    assert quantities.format_short(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (83.4, "%", "83%"),
        (0.4, "%", "0.4%"),
        (49_254.0, "MB", "48.1 GB"),
        (512.0, "MB", "512 MB"),
        (2_000_000.0, "MB", "1.9 TB"),
        (0.102, "s", "102 ms"),
        (0.00083, "s", "830 µs"),
        (412.3, "W", "412 W"),
        (4870.0, "W", "4.9 kW"),
        (64.2, "°C", "64°C"),
        (1755.0, "MHz", "1755 MHz"),
        (7.2e6, "J", "2 kWh"),
        (12.5, "samples/s", "12.5 samples/s"),
        (math.nan, "MB", "NaN"),
        (None, "W", "-"),
    ],
)
def test_a_measure_has_the_unit_that_fits(value: float | None, unit: str, text: str) -> None:
    assert quantities.format_measure(value, unit) == text
