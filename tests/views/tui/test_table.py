from __future__ import annotations

from rich.segment import Segment

from trainvitals.views.tui.paint import width_of
from trainvitals.views.tui.palette import BY_NAME
from trainvitals.views.tui.table import Column, draw_table, first_shown, lay_out

COLUMNS: list[Column[str]] = [
    Column("NAME", 4, 2, lambda row, width: [Segment(row)], most=20),
    Column("ID", 2, 1, lambda row, width: [Segment(row)]),
    Column("MORE", 6, 3, lambda row, width: [Segment(row)], most=10),
]


def titles(width: int) -> list[tuple[str, int]]:
    return [(column.title, size) for column, size in lay_out(COLUMNS, width)]


def test_columns_leave_by_importance_and_keep_their_order() -> None:
    assert titles(1) == []
    assert titles(3) == [("ID", 2)]
    assert titles(8) == [("NAME", 4), ("ID", 2)]
    assert titles(16) == [("NAME", 4), ("ID", 2), ("MORE", 6)]


def test_columns_grow_up_to_their_most() -> None:
    assert titles(200) == [("NAME", 20), ("ID", 2), ("MORE", 10)]
    assert sum(size for _, size in titles(30)) == 30 - 4


def test_the_selected_row_is_in_sight() -> None:
    rows = [f"row{number}" for number in range(100)]
    lines, first = draw_table(COLUMNS, rows, 40, 11, BY_NAME["dark"], selected=70)
    assert first <= 70 < first + 10
    assert [width_of(line) for line in lines if line[0].style == BY_NAME["dark"].selected] == [40]


def test_a_list_that_fits_begins_at_its_beginning() -> None:
    assert first_shown(5, 10, 4) == 0
    assert first_shown(50, 10, 49) == 40
    assert first_shown(50, 0, 49) == 0
