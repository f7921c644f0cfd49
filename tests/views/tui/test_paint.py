from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from trainvitals.views.tui.paint import (
    Line,
    as_ascii,
    bar,
    crop,
    drop,
    fit,
    heat,
    sparkline,
    stacked,
    width_of,
)
from trainvitals.views.tui.palette import BY_NAME, PALETTES, choose, following

DARK = BY_NAME["dark"]
RED, BLUE = Style.parse("red"), Style.parse("blue")


def text_of(line: Line) -> str:
    return "".join(segment.text for segment in line)


@given(st.text(max_size=80), st.integers(0, 40), st.booleans())
def test_fitted_text_has_exactly_the_width(text: str, width: int, right: bool) -> None:
    assert cell_len(fit(text, width, right=right)) == width


def test_text_that_is_cut_says_so() -> None:
    assert fit("gradient", 5) == "grad…"
    assert fit("ab", 5, right=True) == "   ab"
    assert fit("x" * 1_000_000, 3) == "xx…"


@given(st.lists(st.text(max_size=12), max_size=6), st.integers(0, 40))
def test_a_cropped_line_has_exactly_the_width(texts: list[str], width: int) -> None:
    line = [Segment(fit(text, cell_len(fit(text, 8)))) for text in texts]
    assert width_of(crop(line, width, Style())) == width


def test_what_is_dropped_and_what_is_kept_make_the_line() -> None:
    line = [Segment("abc", RED), Segment("defg", BLUE)]
    for place in range(8):
        assert text_of(crop(line, place, RED)) + text_of(drop(line, place)) == "abcdefg"


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none(), st.integers(0, 50))
def test_a_bar_is_as_wide_as_asked_for_whatever_the_share(share: float | None, width: int) -> None:
    assert width_of(bar(share, width, RED, DARK)) == width


def test_a_bar_is_filled_by_its_share() -> None:
    assert text_of(bar(0.5, 10, RED, DARK)) == "━━━━━─────"
    assert text_of(bar(0.001, 10, RED, DARK)) == "╸─────────", "a little is not nothing"
    assert text_of(bar(0.0, 4, RED, DARK)) == "────"
    assert text_of(bar(None, 4, RED, DARK)) == "────"
    assert text_of(bar(7.0, 4, RED, DARK)) == "━━━━"


def test_a_sparkline_shows_the_newest_values_and_marks_what_is_no_number() -> None:
    line = sparkline([0.0, 0.0, 100.0, 100.0], 4, 0.0, 100.0, RED, DARK)
    assert text_of(line) == "  ⣀⠉"
    assert "✕" in text_of(sparkline([1.0, math.nan], 1, 0.0, 1.0, RED, DARK))
    assert width_of(sparkline([5.0] * 999, 7, 0.0, 5.0, RED, DARK)) == 7


def test_the_parts_of_a_stacked_bar_have_their_shares() -> None:
    line = stacked([(1.0, RED), (3.0, BLUE)], 8)
    assert [len(segment.text) for segment in line] == [2, 6]
    assert stacked([], 8) == []


def test_without_colour_neighbours_of_a_stacked_bar_differ() -> None:
    line = stacked([(1.0, Style()), (1.0, Style()), (1.0, Style())], 9)
    assert len({segment.text[0] for segment in line}) == 3


def test_a_slow_step_is_high_and_hot() -> None:
    usual, slow, missing = heat([1.0, 2.0, None], DARK)
    assert usual.text < slow.text
    assert slow.style == DARK.heat[-1]
    assert missing.text == "·"


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    line = [*bar(0.5, 4, RED, DARK), Segment("⣿ 21°C …"), Segment("é")]
    text = text_of(as_ascii(line))
    assert text.isascii()
    assert text.startswith("==--")
    assert width_of(as_ascii(line)) == width_of(line)


@pytest.mark.parametrize(
    ("colours", "no_color", "name"),
    [
        ("truecolor", False, "dark"),
        ("256", False, "dark"),
        ("standard", False, "terminal"),
        (None, False, "mono"),
        ("truecolor", True, "mono"),
    ],
)
def test_the_palette_suits_the_terminal(colours: str | None, no_color: bool, name: str) -> None:
    assert choose(colours, no_color).name == name


def test_themes_go_round() -> None:
    seen = [PALETTES[0]]
    while following(seen[-1]) is not PALETTES[0]:
        seen.append(following(seen[-1]))
    assert seen == list(PALETTES)
