"""Charts without a browser: other programs read them, and what is in the numbers is in the picture."""

from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainvitals
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder_runs import name_runs
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.writer import LineWriter
from trainvitals.views import panels
from trainvitals.views.report import png, ticks
from trainvitals.views.report.charts import make_charts
from trainvitals.views.report.document import draw_picture
from trainvitals.views.report.svg import SvgChart, SvgLine, draw_svg

from .conftest import BEGAN, HOSTILE, gpu_rows

Write = Callable[..., Path]
SPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: str | bytes) -> list[str]:
    return [item.text or "" for item in ET.fromstring(svg).iter(f"{SPACE}text")]


def line(values: list[float], title: str = "loss") -> SvgLine:
    return SvgLine(title, np.arange(len(values), dtype=np.float64), np.array(values, dtype=np.float64))


def test_a_sheet_is_xml_with_titles_units_and_the_word_simulated(write: Write) -> None:
    folder = write("spiral", gpus=gpu_rows(50), simulated=True)
    said = texts(draw_picture(name_runs([folder]), "svg"))
    assert "spiral" in said and "Loss" in said and "GPU utilization" in said
    assert any("simulated GPUs" in text for text in said) and "simulated" in said
    assert any(text.endswith("%") for text in said) and any(text.endswith("ms") for text in said)


def test_every_panel_of_the_dashboard_can_be_drawn_or_says_what_it_lacks(write: Write) -> None:
    reader = RunReader(write(gpus=gpu_rows(50)))
    drawn = 0
    for name in panels.BY_ID:
        try:
            (chart,) = make_charts(reader, [name])
        except TrainvitalsError as error:
            assert name in error.message
            continue
        drawn += 1
        ET.fromstring(draw_svg([chart]))
    assert drawn >= 9


def test_an_unknown_panel_is_answered_with_the_nearest(write: Write) -> None:
    with pytest.raises(TrainvitalsError, match="did you mean 'loss'"):
        make_charts(RunReader(write()), ["los"])


def test_a_metric_of_ones_own_is_a_panel_and_markup_in_its_name_is_text(write: Write) -> None:
    svg = draw_picture(name_runs([write()]), "svg", names=[HOSTILE])
    assert HOSTILE in texts(svg)
    assert b"<img" not in svg


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0],
        [math.nan],
        [math.nan] * 80,
        [math.inf, -math.inf, 1.0],
        [5.0] * 80,
        [1e-300, 1e300],
        [-1e308, 1e308],
        [0.0],
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_odd_values_are_drawn_without_a_broken_number(values: list[float], log: bool) -> None:
    svg = draw_svg([SvgChart("odd", [line(values), line(values, "again")], log=log, smooth=True)])
    ET.fromstring(svg)
    assert "nan" not in svg.lower().replace("no finite", "") and "inf " not in svg


def test_nan_is_a_gap_and_a_red_mark() -> None:
    svg = draw_svg([SvgChart("gap", [line([1.0, 2.0, math.nan, 2.0, 1.0])])])
    path = next(item for item in ET.fromstring(svg).iter(f"{SPACE}path") if item.get("fill") == "none")
    assert (path.get("d") or "").count("M") == 2
    assert 'fill="#b3261e"' in svg


def test_samples_that_are_missing_are_not_drawn_across() -> None:
    x = np.array([0.0, 1, 2, 3, 60, 61, 62, 63])
    drawn = [draw_svg([SvgChart("a", [SvgLine("a", x, x)], axis=axis)]) for axis in ("time", "step")]
    found = [
        [path for path in ET.fromstring(text).iter(f"{SPACE}path") if path.get("fill") == "none"] for text in drawn
    ]
    assert [(paths[0].get("d") or "").count("M") for paths in found] == [2, 1]


def test_a_value_that_no_line_reaches_is_a_dot() -> None:
    svg = draw_svg([SvgChart("a", [line([1.0, 2.0, math.nan, 2.0, math.nan])])])
    path = next(item for item in ET.fromstring(svg).iter(f"{SPACE}path") if item.get("fill") == "none")
    assert (path.get("d") or "").endswith("h0") and (path.get("d") or "").count("h0") == 1
    assert path.get("stroke-linecap") == "round"


def test_pictures_in_one_page_do_not_share_names() -> None:
    x = np.arange(4.0)
    one, other = (draw_svg([SvgChart("a", [SvgLine("a", x, x * scale)])]) for scale in (1.0, -1.0))
    names = [{item.get("id") for item in ET.fromstring(text).iter() if item.get("id")} for text in (one, other)]
    assert all(names) and not names[0] & names[1]


def test_stacked_parts_add_up() -> None:
    chart = SvgChart("phases", [line([1.0, 1.0], "a"), line([2.0, 2.0], "b")], unit="s", stacked=True, low=0.0)
    assert "3 s" in texts(draw_svg([chart])), "the axis reaches the sum"


def test_many_gpus_are_a_band(write: Write) -> None:
    folder = write(gpus=gpu_rows(30, 16), gpu_count=16)
    (chart,) = make_charts(RunReader(folder), ["gpu_utilization"])
    (band,) = chart.lines
    assert band.low is not None and band.high is not None
    assert "all 16" in band.title
    assert float(band.high[0] - band.low[0]) == 4.0


def test_a_band_of_ranks_that_went_nan_is_marked_and_the_axis_reaches_the_last_step(write: Write) -> None:
    folder = write(rows=[])
    for rank in range(16):
        writer = LineWriter(folder, FileName("training", 1, "", rank=rank))
        for step in range(1000):
            row = {"timestamp": format_time(BEGAN + step), "step": step, "loss": math.nan if step > 200 else 1.0}
            writer.append(encode_line(row))
        writer.close()
    (chart,) = make_charts(RunReader(folder), ["loss"])
    (band,) = chart.lines
    assert band.x[-1] == 999 and band.broken is not None and band.broken[-1] == 999
    svg = draw_svg([chart])
    marks = [float(item.get("x") or 0) for item in ET.fromstring(svg).iter(f"{SPACE}rect") if item.get("height") == "7"]
    assert len(marks) > 100 and "900" in texts(svg)


def test_the_mean_of_a_band_is_drawn_as_it_is() -> None:
    y = np.exp(-np.arange(200.0) / 20)
    svg = draw_svg([SvgChart("loss", [SvgLine("band", np.arange(200.0), y, y * 0.99, y * 1.01)], smooth=True)])
    assert len([item for item in ET.fromstring(svg).iter(f"{SPACE}path") if item.get("fill") == "none"]) == 1


def test_the_area_of_a_band_has_a_gap_where_no_value_is_finite() -> None:
    y = np.array([1.0, 2.0, math.nan, 2.0, 1.0])
    svg = draw_svg([SvgChart("gap", [SvgLine("band", np.arange(5.0), y, y - 1, y + 1, np.array([2.0]))])])
    area = next(item for item in ET.fromstring(svg).iter(f"{SPACE}path") if item.get("fill-opacity") == "0.22")
    assert (area.get("d") or "").count("Z") == 2


def test_every_line_is_in_the_legend_or_counted_there() -> None:
    few = [line([1.0, 2.0], f"GPU {at}") for at in range(12)]
    assert {item.title for item in few} <= set(texts(draw_svg([SvgChart("wide", few)], width=600)))
    many = [line([1.0, 2.0], f"a line with a long name {at}") for at in range(40)]
    said = texts(draw_svg([SvgChart("many", many)], width=600))
    shown = [text for text in said if text.startswith("a line")]
    assert f"and {40 - len(shown)} more" in said


def test_metrics_of_two_runs_are_called_as_their_panels_are(write: Write) -> None:
    said = texts(draw_picture(name_runs([write("slow"), write("fast")]), "svg"))
    assert "fast vs. slow" in said and "Loss" in said and "Learning rate" in said


def test_later_attempts_are_marked_where_they_began(tmp_path: Path) -> None:
    for first in (0, 80, 160):
        run = trainvitals.init(dir=tmp_path, agent=False, resume=first > 0)
        for step in range(first, first + 100):
            run.log({"loss": 1 / (step + 1)}, step=step)
        run.finish()
    said = texts(draw_picture(name_runs([run.folder]), "svg"))
    assert said.count("attempt 2") == said.count("attempt 3") >= 1
    assert "attempt 1" not in said


def test_so_many_attempts_are_marked_but_only_some_named() -> None:
    chart = SvgChart("loss", [line([1.0] * 100, "loss")], attempts={number: float(number) for number in range(2, 99)})
    svg = draw_svg([chart], width=600)
    assert svg.count('stroke-dasharray="2 3"') == 97
    assert 2 < len([text for text in texts(svg) if text.startswith("attempt ")]) < 10


def test_runs_of_one_name_are_told_apart_by_their_ids(write: Write) -> None:
    named = name_runs([write("same"), write("same")])
    (first, _), (second, _) = named
    said = texts(draw_picture(named, "svg"))
    assert f"{second} vs. {first}" in said
    assert {first, second} <= set(said)  # in the legends


def test_a_smooth_line_lies_over_the_raw_one_and_keeps_its_gaps() -> None:
    values = [math.nan if step == 200 else 10.0 + step % 7 for step in range(400)]
    svg = draw_svg([SvgChart("loss", [line(values)], smooth=True)])
    raw, smooth = (
        item.get("d") or "" for item in ET.fromstring(svg).iter(f"{SPACE}path") if item.get("fill") == "none"
    )
    assert raw != smooth and raw.count("M") == smooth.count("M") == 2


@pytest.mark.parametrize("ends", [(0, 1), (-3, 17), (1e-9, 2e-9), (0, 1e12), (99.5, 100)])
def test_marks_are_inside_and_a_handful(ends: tuple[float, float]) -> None:
    found = ticks.find_ticks(*ends)
    assert 3 <= len(found) <= 13
    assert all(ends[0] - 1e-12 <= value <= ends[1] * (1 + 1e-9) for value in found)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "s", "250 ms"),
        (0.00025, "s", "250 µs"),
        (40, "%", "40 %"),
        (16_384, "MB", "16 GB"),
        (1_200_000, "", "1.2M"),
        (1e-5, "", "1e-5"),
        (0, "W", "0 W"),
    ],
)
def test_marks_are_numbers_that_a_person_reads(value: float, unit: str, text: str) -> None:
    assert ticks.format_value(value, unit) == text


def read_png(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose every part is in order."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, parts, width, height, channels = 8, b"", 0, 0, 4
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colour]
        parts += body if kind == b"IDAT" else b""
        place += 12 + size
    raw = zlib.decompress(parts)
    assert len(raw) == height * (1 + width * channels)
    return width, height


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_png_is_one_and_has_the_size_that_was_asked_for(write: Write, theme: str) -> None:
    data = draw_picture(name_runs([write()]), "png", names=["loss"], theme=theme, width=600)
    width, height = read_png(data)
    assert width == 1200 and height > 600


def test_text_is_drawn() -> None:
    assert png.has_font()
    empty, full = (draw_svg([], title=title) for title in ("", "Il"))
    assert png.draw_png(empty, 1) != png.draw_png(full, 1)


def test_without_any_font_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "has_font", lambda: False)
    with pytest.raises(TrainvitalsError, match="no font found") as caught:
        png.draw_png(draw_svg([]))
    assert "trainvitals[report]" in str(caught.value.hint)


def test_a_run_without_numbers_has_no_picture(write: Write) -> None:
    with pytest.raises(TrainvitalsError, match="nothing to draw"):
        draw_picture(name_runs([write(rows=[])]), "svg")


def test_a_browser_draws_the_svg(write: Write, browser: Any, tmp_path: Path) -> None:
    target = tmp_path / "sheet.svg"
    target.write_bytes(draw_picture(name_runs([write(gpus=gpu_rows(20))]), "svg", theme="dark"))
    page = browser.new_page()
    page.goto(target.as_uri())
    assert page.evaluate("document.documentElement.tagName") == "svg"
    assert page.evaluate("document.querySelectorAll('path').length") > 20
    page.close()


def test_the_font_that_comes_with_the_extra_is_enough_for_a_bare_container() -> None:
    import resvg_py

    def render(text: str, fonts: list[str]) -> bytes:
        svg = draw_svg([], title=text)
        return bytes(resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True, font_files=fonts or None))

    fonts = list(png.find_fonts())
    assert len(fonts) == 2
    assert render("Loss 0.25 µs °C", fonts) != render("Il", fonts)
    assert render("Loss", []) == render("Il", []), "without a font text vanishes, which is what has_font looks for"
