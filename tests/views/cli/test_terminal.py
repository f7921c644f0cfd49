"""Tables that fit, and text that cannot harm the terminal."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from trainvitals.views.cli.terminal import Cell, Paint, columns_of, draw_blocks, draw_table, shorten

PLAIN = Paint(io.StringIO())


def test_a_stream_that_is_no_terminal_gets_no_colours() -> None:
    assert PLAIN("bold red", "text") == "text"


def test_columns_are_aligned() -> None:
    text = draw_table(("name", "value"), [("a", "1"), ("long", "1,000")], paint=PLAIN, right=(1,))
    assert text.splitlines() == ["name  value", "a         1", "long  1,000"]


def test_columns_that_can_be_spared_are_left_out_in_their_order() -> None:
    rows = [("run", "status", "project")]
    assert draw_table(("", "", ""), rows, paint=PLAIN, columns=12, optional=(2, 1)) == "run  status"
    assert draw_table(("", "", ""), rows, paint=PLAIN, columns=100, optional=(2, 1)) == "run  status  project"


def test_the_last_column_is_cut_at_the_edge() -> None:
    text = draw_table(("a", "b"), [("x", "y" * 50)], paint=PLAIN, columns=20)
    assert text.splitlines()[1] == "x  " + "y" * 16 + "…"


def test_columns_that_do_not_fit_go_on_below_with_the_first_one() -> None:
    header, rows = ("run", "loss", "accuracy", "time"), [("a", "1", "2", "3"), ("b", "4", "5", "6")]
    parts = [part.splitlines() for part in draw_blocks(header, rows, paint=PLAIN, columns=13).split("\n\n")]
    assert parts == [
        ["run  loss", "a    1", "b    4"],
        ["run  accuracy", "a    2", "b    5"],
        ["run  time", "a    3", "b    6"],
    ]
    wide = draw_blocks(header, rows, paint=PLAIN, columns=80)
    assert wide == draw_blocks(header, rows, paint=PLAIN) == draw_table(header, rows, paint=PLAIN)


def test_wide_characters_count_twice() -> None:
    assert columns_of("日本") == 4
    text = draw_table(("", ""), [("日本", "x"), ("abcd", "x")], paint=PLAIN)
    assert text.splitlines() == ["日本  x", "abcd  x"]


def test_painted_cells_are_as_wide_as_their_text() -> None:
    painted = Paint(io.StringIO())
    painted.enabled = True
    text = draw_table(("", ""), [(Cell("ab", "red"), "x")], paint=painted)
    assert text == "\x1b[31mab\x1b[0m  x"


@given(st.text(alphabet=st.characters(categories=("L", "N"))), st.integers(0, 30))
def test_shortened_text_fits(text: str, columns: int) -> None:
    assert columns_of(shorten(text, columns)) <= columns
