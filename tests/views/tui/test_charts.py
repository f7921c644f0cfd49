from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.conditions import Level
from trainvitals.views.panels import BY_ID
from trainvitals.views.tui.charts import Look, draw_chart, find_axes, is_crowded, legend
from trainvitals.views.tui.paint import width_of
from trainvitals.views.tui.palette import BY_NAME
from trainvitals.views.tui.snapshot import Chart, Line

LOOK = Look(palette=BY_NAME["dark"], now=0.0)


def line(y: list[float], *, metric: str = "loss", label: str = "", start: float = 0.0) -> Line:
    return Line(metric, label, np.arange(start, start + len(y), dtype=np.float64), np.array(y, dtype=np.float64))


def chart(*lines: Line, panel: str = "loss", axis: str = "step") -> Chart:
    return Chart(BY_ID[panel], axis, lines, len(lines))


def text(chart: Chart, width: int = 60, height: int = 10, look: Look = LOOK) -> list[str]:
    return ["".join(segment.text for segment in row) for row in draw_chart(chart, width, height, look)]


def test_a_chart_tells_its_name_its_newest_value_and_its_range() -> None:
    rows = text(chart(line([2.0, 1.0, 0.5])))
    assert "Loss" in rows[0] and "0.5" in rows[0] and "0.5 to 2" in rows[0]
    assert rows[-1].split() == ["0", "2"]


def test_a_chart_without_values_says_so() -> None:
    assert "no values yet" in "\n".join(text(chart()))


def test_nan_only_is_drawn_as_marks() -> None:
    rows = text(chart(line([math.nan, math.nan])))
    assert "NaN" in rows[0]
    assert "✕" in "\n".join(rows)


def test_the_cross_hair_reads_the_value_under_it() -> None:
    look = Look(palette=BY_NAME["dark"], now=0.0, cross=0.5)
    rows = text(chart(line([1.0, 2.0, 7.5, 3.0, 4.0])), look=look)
    assert "7.5" in rows[0]
    assert "step 2" in rows[-1]
    assert any("│" in row[8:] for row in rows[1:-1])


def test_a_dotted_line_is_where_an_attempt_began() -> None:
    look = Look(palette=BY_NAME["dark"], now=0.0, starts=(10.0, 500.0), smooth=False)
    rows = text(chart(line([float(value) for value in range(20)])), look=look)
    places = {row.index("┊") for row in rows[1:-1] if "┊" in row}
    assert len(places) == 1 and places.pop() > len(rows[1]) // 2, "the other is beyond the curve"


def test_a_window_shows_only_its_stretch() -> None:
    values = [float(value) for value in range(100)]
    look = Look(palette=BY_NAME["dark"], now=0.0, window=(10.0, 20.0), smooth=False)
    rows = text(chart(line(values)), look=look)
    assert rows[-1].split() == ["10", "20"]
    assert rows[1].split("┤")[0].strip() == "20.5"


def test_a_curve_that_would_not_move_by_a_cell_is_not_drawn_anew_but_its_newest_value_is_told() -> None:
    patient = Look(palette=BY_NAME["dark"], now=0.0, patience=1e-9, smooth=False)
    values = [float(place % 7) for place in range(1000)]
    before = text(chart(line(values)), look=patient)
    unmoved = text(chart(line([*values, 5.25])), look=patient)
    assert unmoved[1:] == before[1:] and "5.25" in unmoved[0]
    moved = text(chart(line([*values, *([5.25] * 50)])), look=patient)
    assert moved[1:] != before[1:] and moved[-1].split() == ["0", "1,049"]


@pytest.mark.parametrize("value", [99.0, -5.0, 0.1, math.nan, math.inf])
def test_what_jumps_or_leaves_the_picture_is_drawn_at_once(value: float) -> None:
    patient = Look(palette=BY_NAME["dark"], now=0.0, patience=1e-9, smooth=False)
    values = [float(place % 7) for place in range(1000)]
    before = text(chart(line(values)), look=patient)
    assert text(chart(line([*values, value])), look=patient)[1:] != before[1:]


def test_many_curves_become_a_range_with_a_mean() -> None:
    lines = [line([value, value], metric="utilization_percent", label=f"GPU {value:.0f}") for value in range(90, 98)]
    rows = text(chart(*lines, panel="gpu_utilization", axis="time"))
    assert "94%" in rows[0] and "90% to 97% of 8" in rows[0]
    assert not is_crowded(list(lines), 30), "there is room for all of them in a large chart"


def test_what_is_drawn_beside_many_curves_keeps_its_own_value() -> None:
    lines = [line([value, value], metric="loss", label=f"rank {value:.0f}") for value in range(90, 98)]
    rows = text(chart(*lines, line([12.0, 13.0], metric="val/loss"), panel="loss"))
    assert "93.5" in rows[0] and "90 to 97 of 8" in rows[0] and "val/loss 13" in rows[0]


@pytest.mark.parametrize("ranks", [1, 4, 16])
@pytest.mark.parametrize(
    "look", [LOOK, Look(palette=BY_NAME["dark"], now=0.0, other_scale=True)], ids=["linear", "log"]
)
def test_a_loss_that_is_nan_to_the_end_is_marked_to_the_end_however_many_ranks_there_are(
    ranks: int, look: Look
) -> None:
    values = [math.exp(-step / 150) if step <= 200 else math.nan for step in range(1000)]
    rows = text(chart(*(line(values, label=f"rank {rank}") for rank in range(ranks))), look=look)
    assert "NaN" in rows[0]
    right = "".join(row[-30:] for row in rows[1:-1])
    assert set(right.replace(" ", "")) == {"✕"}, "marks, and no line that nobody measured"


def test_the_title_of_many_says_how_many_are_no_number() -> None:
    lines = [line([1.0, math.nan if rank == 5 else 1.0], label=f"rank {rank}") for rank in range(16)]
    assert "1 of 16 not finite" in text(chart(*lines))[0]


def test_percentages_have_the_whole_scale_and_thresholds_are_drawn() -> None:
    drawn = chart(line([50.0, 60.0], metric="memory_percent"), panel="gpu_memory", axis="time")
    rows = text(drawn, look=replace(LOOK, levels=(Level("warning", 90.0),)))
    assert rows[1].lstrip().startswith("100%")
    assert "┄" in "\n".join(rows)
    assert "┄" not in "\n".join(text(drawn))


def test_a_flat_line_is_told_without_a_range_and_nothing_is_less_than_nothing() -> None:
    rows = text(chart(line([0.0, 0.0], metric="disk_read_mb_s"), panel="disk_io", axis="time"))
    assert " to " not in rows[0]
    assert rows[8].split("┤")[0].strip() == "0", "no traffic is the least there can be"
    rows = text(chart(line([10.9, 11.1], metric="memory_usage_percent"), panel="memory", axis="time"))
    assert " to " not in rows[0], "both are 11%"


def test_a_phase_that_takes_no_time_takes_no_room_in_the_title() -> None:
    lines = [line([0.0, 0.0], metric="data_time"), line([0.1, 0.1], metric="forward_time")]
    assert "data" not in text(chart(*lines, panel="step_phases"))[0]


def test_phases_are_stacked_and_named_without_what_they_share() -> None:
    lines = [line([0.1, 0.1], metric=name) for name in ("data_time", "forward_time")]
    rows = text(chart(*lines, panel="step_phases"), width=80)
    assert "data 100 ms" in rows[0] and "forward 100 ms" in rows[0]
    assert find_axes(BY_ID["step_phases"], list(lines), (0, 1), False).high == pytest.approx(0.21)


def test_a_curve_is_named_by_what_tells_it_apart() -> None:
    one = line([1.0], metric="disk_read_mb_s")
    assert legend(chart(one, panel="disk_io"), one) == "read"
    two = line([1.0], label="GPU 3", metric="utilization_percent")
    assert legend(chart(two, panel="gpu_utilization"), two) == "3"


def test_a_logarithmic_axis_is_said_and_skips_what_it_cannot_show() -> None:
    look = Look(palette=BY_NAME["dark"], now=0.0, other_scale=True)
    rows = text(chart(line([100.0, 1.0, 0.0, 0.01])), look=look)
    assert " log" in rows[0]
    assert "▼" in "\n".join(rows)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30),
    st.integers(0, 70),
    st.integers(0, 14),
    st.booleans(),
    st.sampled_from(["loss", "step_phases", "gpu_power", "gpu_energy", "learning_rate"]),
    st.none() | st.floats(0, 1),
    st.sampled_from([1, 6]),
)
def test_any_values_fit_any_size(
    y: list[float], width: int, height: int, log: bool, panel: str, cross: float | None, count: int
) -> None:
    look = Look(palette=BY_NAME["dark"], now=5.0, other_scale=log, cross=cross)
    drawn = draw_chart(chart(*[line(y)] * count, panel=panel), width, height, look)
    assert [width_of(row) for row in drawn] == [width] * height
