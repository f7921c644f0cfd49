from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.views.tui.canvas import Axes, Canvas


def rows(canvas: Canvas) -> list[str]:
    return [text for text, _ in canvas.rows()]


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    canvas = Canvas(4, 2)
    assert canvas.curve(array(0, 1), array(0, 1), Axes(0, 1, 0, 1), 0) == []
    top, bottom = rows(canvas)
    assert top[0] == " " and top[3] != " "
    assert bottom[0] != " " and bottom[3] == " "


def test_no_peak_is_lost_among_a_million_points() -> None:
    x = np.arange(1_000_000, dtype=np.float64)
    y = np.zeros(1_000_000)
    y[123_456] = 1.0
    canvas = Canvas(20, 4)
    canvas.curve(x, y, Axes(0, 1e6, 0, 1), 0)
    assert rows(canvas)[0].strip() != "", "the peak reaches the top row"


def test_a_nan_is_a_mark_on_the_line_and_not_a_hole() -> None:
    canvas = Canvas(10, 4)
    marks = canvas.curve(array(0, 1, 2, 3, 4), array(1, 1, math.nan, 1, 1), Axes(0, 4, 0, 2), 0)
    assert [(mark.column, mark.kind) for mark in marks] == [(5, "nan")]
    line = next(row for row in rows(canvas) if row.strip())
    assert " " not in line, "the line goes on underneath"


def test_a_million_nans_are_a_mark_per_cell() -> None:
    y = np.full(1_000_000, math.nan)
    marks = Canvas(20, 4).curve(np.arange(1e6), y, Axes(0, 1e6 - 1, 0, 1), 0)
    assert sorted(mark.column for mark in marks) == list(range(20))


def test_infinities_are_marked_at_the_edges() -> None:
    canvas = Canvas(10, 4)
    marks = canvas.curve(array(0, 2, 4), array(math.inf, 1, -math.inf), Axes(0, 4, 0, 2), 0)
    assert {(mark.row, mark.kind) for mark in marks} == {(0, "high"), (3, "low")}


def test_a_logarithm_marks_what_it_cannot_show() -> None:
    marks = Canvas(10, 4).curve(array(0, 1, 2), array(1, 0, 10), Axes(0, 2, 1, 10, log=True), 0)
    assert [mark.kind for mark in marks] == ["low"]


def test_nothing_is_drawn_where_nothing_was_measured_for_long() -> None:
    x = array(0, 1, 2, 3, 50, 51, 52, 53)
    gappy, whole = Canvas(20, 2), Canvas(20, 2)
    axes = Axes(0, 53, 0, 2)
    gappy.curve(x, np.ones(8), axes, 0, gaps=True)
    whole.curve(x, np.ones(8), axes, 0)
    assert "  " in "".join(rows(gappy)).strip()
    assert " " not in next(row for row in rows(whole) if row.strip())


def test_later_curves_own_the_cells_they_share() -> None:
    canvas = Canvas(4, 1)
    for owner in (0, 1):
        canvas.curve(array(0, 1), array(1, 1), Axes(0, 1, 0, 2), owner)
    assert set(canvas.rows()[0][1]) == {1}


def test_a_band_fills_what_is_between_two_curves() -> None:
    canvas = Canvas(4, 2)
    canvas.band(array(0, 1), array(0, 0), array(2, 2), Axes(0, 1, 0, 2), 0)
    assert rows(canvas) == ["⣿⣿⣿⣿", "⣿⣿⣿⣿"] or "⣿⣿⣿⣿" in rows(canvas)


values = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(
    st.lists(values, max_size=60),
    st.integers(1, 30),
    st.integers(1, 8),
    st.booleans(),
    st.floats(-1e3, 1e3),
    st.floats(0, 1e3),
)
def test_any_curve_can_be_drawn_in_any_window(
    y: list[float], width: int, height: int, log: bool, left: float, span: float
) -> None:
    canvas = Canvas(width, height)
    low = 0.1 if log else -1.0
    axes = Axes(left, left + span, low, 1e6, log=log)
    marks = canvas.curve(np.arange(len(y), dtype=np.float64), np.array(y, dtype=np.float64), axes, 0, gaps=True)
    assert all(0 <= mark.column < width and 0 <= mark.row < height for mark in marks)
    assert [len(row) for row in rows(canvas)] == [width] * height
