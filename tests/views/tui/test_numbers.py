from __future__ import annotations

import math

import pytest

from trainvitals.views.tui.numbers import duration, measure, one_line, short


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
    assert short(value) == text


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
        (7.2e6, "J", "2.00 kWh"),
        (12.5, "samples/s", "12.5 samples/s"),
        (math.nan, "MB", "NaN"),
        (None, "W", "-"),
    ],
)
def test_a_measure_has_the_unit_that_fits(value: float | None, unit: str, text: str) -> None:
    assert measure(value, unit) == text


def test_a_stretch_of_time_has_two_units() -> None:
    assert [duration(value) for value in (5, 125, 725, 12_000, 190_000)] == [
        "5 s",
        "2 min 5 s",
        "12 min",
        "3 h 20 min",
        "2 d 4 h",
    ]


def test_text_from_anywhere_cannot_move_the_cursor_or_turn_the_line_around() -> None:
    hostile = "a\x1b[2Jb\nc\u202ed\u200be\x07\ud800f"
    clean = one_line(hostile)
    assert clean == "a·[2Jb c·de··f"
    assert one_line("שלום") == "שלום", "letters stay as they are"
