"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from trainvitals.views.data import quantities


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
        (1.2e-5, "1.2e-05"),
        (1e308, "1e+308"),
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
    assert quantities.format_span(seconds) == text


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


def test_a_time_of_the_journal_is_read_and_anything_else_is_none() -> None:
    assert quantities.parse_time("1970-01-01T00:01:00.500000Z") == 60.5
    assert quantities.parse_time("1970-01-01T00:01:00") == 60
    assert quantities.parse_time("yesterday") is None
    assert quantities.parse_time(None) is None
