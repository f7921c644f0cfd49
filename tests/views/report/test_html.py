"""The report opens from disk in a real browser: charts, findings, comparison, hostile names, a million steps."""

from __future__ import annotations

import base64
import gzip
import math
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from waiting import PATIENCE

from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report

from .conftest import BEGAN, HOSTILE, SECRET, gpu_rows, rows_of

Open = Callable[..., Any]
Write = Callable[..., Path]


def write_html(folders: list[Path]) -> Path:
    target = folders[0].parent.parent.parent / "report.html"
    target.write_bytes(draw_report(name_runs(folders), "html", resolve({})))
    return target


class Side(NamedTuple):
    """What is on a page of paper."""

    texts: int
    images: int


def read_paper(pdf: bytes) -> list[Side]:
    """Of a PDF as Chromium writes it: pages as plain objects, what is drawn on each in a deflated stream."""
    objects = {int(found[1]): found[2] for found in re.finditer(rb"(?ms)^(\d+) 0 obj\n(.*?)\nendobj", pdf)}
    sides = []
    for page in objects.values():
        if re.search(rb"/Type /Page\b", page) and (contents := re.search(rb"/Contents (\d+) 0 R", page)):
            stream = objects[int(contents[1])].partition(b"stream\n")[2].rpartition(b"\nendstream")[0]
            drawn = zlib.decompress(stream)
            sides.append(Side(len(re.findall(rb"\bT[jJ]\b", drawn)), len(re.findall(rb"/X\d+ Do\b", drawn))))
    return sides


DRAWN = """() => [...document.querySelectorAll("canvas")].filter((canvas) => {
    const data = canvas.width && canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return data && data.some((value, at) => value !== data[at % 4]);
}).length"""


def wait_drawn(page: Any, count: int) -> None:
    """Until so many charts have something else on their canvas than one colour."""
    deadline = time.monotonic() + PATIENCE
    while (found := page.evaluate(DRAWN)) < count:
        assert time.monotonic() < deadline, f"{found} of {count} charts: {page.inner_text('body')[:1000]}"
        time.sleep(0.1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_of_a_run_shows_its_charts_and_says_simulated(write: Write, open_file: Open, theme: str) -> None:
    folder = write("spiral", gpus=gpu_rows(100), simulated=True)
    page = open_file(write_html([folder]), theme=theme)
    assert page.title() == "spiral · Overview · trainvitals"
    wait_drawn(page, 3)
    text = page.inner_text("body")
    assert "simulated GPUs" in text and "report" in text and "finished" in text
    assert page.evaluate("document.documentElement.dataset.theme") == theme


def test_findings_resources_and_gaps_have_a_page(write: Write, open_file: Open) -> None:
    folder = write(gpus=gpu_rows(100))
    page = open_file(write_html([folder]), f"#/run/{folder.name}/findings")
    page.wait_for_selector(".findings > li")
    text = page.inner_text("main")
    assert "The loss became NaN at step 60 and recovered" in text
    assert "25 % of step time is spent waiting for data" in text
    assert "GPU utilization" in text and "simulated" in text
    assert "step times of at least two ranks" in text


def test_words_over_time_are_in_the_report(write: Write, open_file: Open) -> None:
    gpus = [{**row, "throttle_reasons": "power cap" if at > 100 else "none"} for at, row in enumerate(gpu_rows(100))]
    folder = write(gpus=gpus)
    page = open_file(write_html([folder]), f"#/run/{folder.name}/system")
    page.wait_for_selector(".states canvas")
    assert "power cap" in page.locator(".states .legend").inner_text()


def test_training_curves_can_be_drawn_over_time(write: Write, open_file: Open) -> None:
    folder = write()
    page = open_file(write_html([folder]), f"#/run/{folder.name}/training?x=relative")
    wait_drawn(page, 3)
    assert "over time since start" in page.inner_text("main")


def test_two_runs_are_compared(write: Write, open_file: Open) -> None:
    folders = [write("slow", rows_of(400), config={"lr": 1}), write("fast", rows_of(400, 0.4), config={"lr": 2})]
    page = open_file(write_html(folders))
    page.wait_for_selector(".verdict")
    text = page.inner_text("main")
    assert "baseline" in text and "lr" in text and "slow" in text and "fast" in text
    wait_drawn(page, 2)


def test_names_that_are_markup_are_shown_as_text(write: Write, open_file: Open) -> None:
    folder = write(HOSTILE, config={HOSTILE: HOSTILE}, tags=[HOSTILE])
    page = open_file(write_html([folder]), f"#/run/{folder.name}/training")
    page.wait_for_selector("canvas")
    assert "</script><img src=x" in page.inner_text("body")
    assert page.title() != "owned" and page.locator("main img").count() == 0


def test_secrets_that_are_in_a_folder_are_not_in_its_report(write: Write) -> None:
    folder = write(config={"api_key": SECRET}, notes=f"see {SECRET}", command=["train.py", "--hub-token", SECRET])
    for format in ("html", "md", "json"):
        content = draw_report(name_runs([folder]), format, resolve({}))
        if format == "html":
            found = re.search(rb'data-encoding="gzip">([^<]+)<', content)
            assert found
            content += gzip.decompress(base64.b64decode(found[1]))
        assert SECRET.encode() not in content


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 0, "loss": 1.0}],
        [{"step": step, "loss": math.nan} for step in range(50)],
        [{"step": 0, "__proto__": 1.0, "constructor": 2.0}],
        [{"loss": 1.0}],
    ],
    ids=["no steps", "one point", "NaN only", "odd names", "no step"],
)
def test_runs_with_hardly_anything_in_them_have_a_report(
    write: Write, open_file: Open, rows: list[dict[str, Any]]
) -> None:
    folder = write(rows=rows)
    page = open_file(write_html([folder]))
    page.wait_for_selector(".health")
    page = open_file(write_html([folder]), f"#/run/{folder.name}/findings")
    page.wait_for_selector("text=Checks skipped")


def test_a_long_run_with_sixty_four_gpus_stays_below_five_megabytes(write: Write, open_file: Open) -> None:
    from trainvitals.journal.segment_writer import seal

    folder = write(rows=[], gpus=gpu_rows(300, 64), gpu_count=64)
    random = np.random.default_rng(0)
    lines = [
        encode_line({f"metric_{at}": value for at, value in enumerate(row)})[1:]
        for row in random.normal(0, 1, (1000, 9))
    ]
    path = folder / "training_metrics_20270101_000000.jsonl"
    with open(path, "wb") as file:
        for place in range(60_000):
            head = (
                f'{{"timestamp":"{format_time(BEGAN + place / 10)}","step":{place * 17},"loss":{1 / (place + 1):.17g},'
            )
            file.write(head.encode() + lines[place % 1000])
    seal(path)
    target = write_html([folder])
    assert target.stat().st_size < 5_000_000
    wait_drawn(open_file(target), 2)


def test_a_report_is_made_of_a_run_that_is_alive(write: Write, open_file: Open) -> None:
    folder = write(status="running", ended=None)
    page = open_file(write_html([folder]))
    page.wait_for_selector("header.head .status")
    assert "finished" not in page.locator("header.head").inner_text()
    assert re.search(r"report as of \d", page.locator("header.head").inner_text())
    assert page.locator(".pulse").count() == 0


def test_the_time_in_a_report_stands_still(write: Write, open_file: Open) -> None:
    since = format_time(time.time() - 7200)
    firing = {
        "timestamp": since,
        "since": since,
        "state": "firing",
        "rule": "own",
        "severity": "warning",
        "message": "m",
    }
    target = write_html([write(status="running", ended=None, alerts=[firing])])
    page = open_file(target)
    page.clock.set_fixed_time(time.time() + 864_000)
    page.reload()
    page.wait_for_selector(".alert-list time")
    assert re.fullmatch(r"2 h \d\d min ago", page.locator(".alert-list time").first.inner_text())


def test_a_page_may_be_printed_before_it_was_scrolled(write: Write, open_file: Open) -> None:
    page = open_file(write_html([write("spiral", gpus=gpu_rows(100), simulated=True)]))
    page.set_viewport_size({"width": 800, "height": 300})
    page.reload()
    page.wait_for_selector(".chart canvas")
    page.wait_for_function("() => !document.querySelector('.chart.waiting')")
    assert page.evaluate("scrollY") == 0
    assert page.locator(".chart canvas").last.bounding_box()["y"] > 600


def test_the_print_view_is_the_whole_report_on_white_paper(write: Write, open_file: Open) -> None:
    folder = write("spiral", gpus=gpu_rows(100), simulated=True)
    event = {"timestamp": format_time(BEGAN + 9), "event": "checkpoint", "message": "saved", "severity": "info"}
    (folder / "events_20260101_000000.jsonl").write_bytes(encode_line(event))
    page = open_file(write_html([folder]), theme="dark")
    page.get_by_text("print view").click()
    page.wait_for_selector(".part-overview dl")
    shown = [item.inner_text() for item in page.locator(".part:visible > h1").all()]
    assert shown[0] == "Overview" and {"Findings", "Training", "System"} <= set(shown)
    assert not {"Media", "Export"} & set(shown)  # there is nothing on it, or nothing for paper
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.wait_for_function("() => !document.querySelector('.chart.waiting')")
    page.emulate_media(media="print")
    for hidden in (".side", ".head-rest", ".whole button:not(.fold, .plain, .legend *)", ".whole .tools"):
        assert page.locator(f"{hidden}:visible").count() == 0
    # Some texts are buttons on the screen: headings that fold, legends, events with more behind them.
    assert page.locator(".part-training h2").first.inner_text().strip()
    assert page.locator(".part-system .legend button:visible").count() > 1
    assert page.locator(".part-logs td[data-title=event]").all_inner_texts() == ["checkpoint"]
    outside = """() => [...document.querySelectorAll(".whole canvas, .whole table")].filter((element) => {
        const place = element.getBoundingClientRect();
        return place.width && place.right > document.querySelector(".whole").getBoundingClientRect().right + 1;
    }).length"""
    assert page.evaluate(outside) == 0
    first, second = (chart.bounding_box() for chart in page.locator(".part-training .chart").all()[:2])
    assert first["y"] == second["y"] and first["x"] < second["x"]  # two in a row: one leaves pages half empty
    canvases = page.locator(".whole canvas:visible").count()
    paper = read_paper(page.pdf(prefer_css_page_size=True))
    assert len(paper) > 1 and all(side.texts for side in paper), "a blank page"
    # One that goes on over the edge of a page is drawn on both.
    assert canvases > 3 and sum(side.images for side in paper) == canvases
