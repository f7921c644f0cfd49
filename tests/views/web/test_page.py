"""The page in Debian's Chromium: every page, live, by mouse, by keyboard, on a phone, in both themes."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import made_runs
import pytest
from rl_runs import FAULTS, make_healthy, spell
from waiting import PATIENCE, free_port, wait_until

import trainvitals
from trainvitals import settings
from trainvitals.conditions import Conditions
from trainvitals.integrations import samples
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.media import Media
from trainvitals.journal.reader import RunReader
from trainvitals.journal.stop_requests import find_request
from trainvitals.views.data import dashboard, run_details, wire
from trainvitals.views.data.page import make_single_file
from trainvitals.views.data.series import describe_series
from trainvitals.views.report.document import draw_report

from .conftest import HOSTILE, Server, Tab, make_run

Open = Callable[..., Tab]
CHARTS = "document.querySelectorAll('.chart canvas').length"


def link(server: Server, key: str, page: str = "overview", query: str = "") -> str:
    return f"{server.base}#/run/{quote(key)}/{page}{query}"


def test_the_runs_page_lists_and_leads_to_a_run(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(server.base)
    tab.page.get_by_role("link", name="baseline").click()
    tab.wait(f"{CHARTS} >= 3")
    assert tab.page.title() == "baseline · Overview · trainvitals"
    assert f"#/run/{keys[0]}/overview" in tab.page.url


@pytest.mark.parametrize(
    ("page", "seen"),
    [
        ("overview", "gpu_temperature_high"),
        ("training", "search 21 metrics"),
        ("system", "Fake H100"),
        ("alerts", "gpu.temperature_celsius > 80"),
        ("logs", "most recent call first"),
        ("export", "Parquet"),
    ],
)
@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 360)])
def test_every_page_draws_in_both_themes_and_on_a_phone(
    server: Server, open_tab: Open, keys: list[str], page: str, seen: str, theme: str, width: int
) -> None:
    tab = open_tab(width=width, theme=theme)
    tab.page.goto(link(server, keys[0], page))
    tab.wait("document.querySelector('main')?.innerText.length > 20 || document.querySelector('main input')")
    everything = "document.body.innerText + [...document.querySelectorAll('input')].map(i => i.placeholder).join()"
    tab.wait(f"({everything}).includes({json.dumps(seen)})")
    if page in ("overview", "training", "system"):
        tab.wait(f"{CHARTS} >= 1")
    assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


OUTSIDE = "[...document.querySelectorAll(%s)].filter(cell => cell.getBoundingClientRect().right > innerWidth).length"


@pytest.mark.parametrize(
    ("page", "cells"),
    [
        ("logs", "td[data-title=message]"),
        ("alerts", "td[data-title=message]"),
        ("findings", "td[data-title=mean]"),
        ("compare", "td[data-title=candidate]"),
        ("runs", "td[data-title=lr]"),
    ],
)
def test_on_a_phone_values_and_messages_are_in_view(
    server: Server, open_tab: Open, keys: list[str], page: str, cells: str
) -> None:
    addresses = {"compare": f"compare?run={keys[0]}&run={keys[1]}", "runs": "runs"}
    tab = open_tab(width=360)
    tab.page.goto(f"{server.base}#/{addresses.get(page, f'run/{keys[0]}/{page}')}")
    tab.wait(f"document.querySelector({json.dumps(cells)})")
    assert tab.page.evaluate(OUTSIDE % json.dumps(cells)) == 0


def test_an_alert_says_each_thing_that_its_rule_saw_once(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "alerts"))
    tab.wait("document.querySelector('.alert-card')")
    assert tab.page.locator(".alert-card dt").all_inner_texts() == ["rule", "value", "fan_speed_percent", "step"]


def test_an_event_is_marked_over_steps_and_epochs(server: Server, open_tab: Open, keys: list[str]) -> None:
    for axis in ("step", "epoch"):
        tab = open_tab()
        tab.page.goto(link(server, keys[0], "training", f"?x={axis}"))
        tab.wait("document.querySelector('[data-chart=Loss] .u-over')")
        deadline = time.monotonic() + PATIENCE
        while not tab.page.locator(".tip-mark", has_text="checkpoint: saved").count():
            assert time.monotonic() < deadline, f"no mark over {axis}"
            box = tab.point_at("[data-chart=Loss] .u-over")
            tab.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)


@pytest.mark.parametrize("width", [1440, 1920])
def test_the_last_row_of_charts_is_as_full_as_the_others(
    server: Server, open_tab: Open, keys: list[str], width: int
) -> None:
    tab = open_tab(width=width)
    tab.page.goto(link(server, keys[0], "training"))
    tab.wait("document.querySelector('.charts .chart')")
    short = """[...document.querySelectorAll('.charts')].filter(box => box.lastElementChild
      && box.getBoundingClientRect().right - box.lastElementChild.getBoundingClientRect().right > 2).length"""
    counts = "[...document.querySelectorAll('.charts')].map(box => box.children.length)"
    assert any(count % 2 for count in tab.page.evaluate(counts))
    tab.wait(f"{short} === 0")


def test_the_export_page_asks_for_a_metric_of_the_run(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "export"))
    command = tab.page.locator("pre.text").inner_text().splitlines()[-1]
    answer = httpx.get(command.removeprefix('curl "').removesuffix('"'), timeout=PATIENCE)
    assert answer.json()["series"], command


def test_a_chart_fills_the_window_where_full_screen_is_refused(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.page.evaluate("void (Element.prototype.requestFullscreen = () => Promise.reject(new TypeError('refused')))")
    tab.page.get_by_label("Loss: full screen").click()
    box = "document.querySelector('[data-chart=Loss]').getBoundingClientRect()"
    tab.wait(f"{box}.width >= innerWidth - 20 && {box}.height >= innerHeight - 1")
    tab.page.keyboard.press("Escape")
    tab.wait(f"{box}.width < innerWidth - 20")


CONTRAST = """element => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3)
      .map(part => part / 255).map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let opacity = 1;
  for (let at = element; at; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
  const [low, high] = [getComputedStyle(element).color, getComputedStyle(element.closest('.chart')).backgroundColor]
    .map(light).sort((a, b) => a - b);
  return opacity < 1 ? 0 : (high + 0.05) / (low + 0.05);
}"""


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_tools_of_a_chart_are_legible_at_rest(server: Server, open_tab: Open, keys: list[str], theme: str) -> None:
    tab = open_tab(theme=theme)
    tab.page.goto(link(server, keys[0], "training"))
    assert tab.page.get_by_label("Loss: save as CSV").evaluate(CONTRAST) >= 4.5


def test_sixty_four_gpus_are_told_apart_and_their_runs_said_to_be_simulated(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    key = make_run(tmp_path, "wide", steps=3)
    folder = next(tmp_path.glob(f"*/{key}"))
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "simulated": True}))
    rows = [
        {"timestamp": format_time(time.time()), "gpu_index": gpu, "host": "box", "utilization_percent": 100.0}
        | {"temperature_celsius": 68.0, "throttle_reasons": "power cap"}
        for gpu in range(64)
    ]
    for old in folder.glob("gpu_metrics_*"):
        old.unlink()
    (folder / "gpu_metrics_20260101_000000.jsonl").write_bytes(b"".join(map(encode_line, rows)))
    server = serve(tmp_path)
    tab = open_tab()
    tab.page.goto(link(server, key, "system"))
    tab.wait("document.querySelectorAll('.gpu-cell').length === 64")
    gaps = """[...document.querySelectorAll('.gpu-cell')].map(cell => {
      const [index, heat] = ['span', 'em'].map(part => cell.querySelector(part).getBoundingClientRect());
      return heat.left - index.right;
    })"""
    assert min(tab.page.evaluate(gaps)) >= 4
    assert tab.page.locator(".gpu-cell").nth(10).inner_text().split() == ["10", "68°", "100", "%"]
    tab.page.goto(f"{server.base}#/runs")
    tab.wait("document.querySelector('.run-name .badge')?.innerText === 'simulated'")
    assert tab.page.evaluate(OUTSIDE % json.dumps(".run-name .badge")) == 0


@pytest.mark.promise("markup as the name of a run, metric or event", "it is shown as text")
def test_names_that_are_markup_are_shown_as_text(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(f"{server.base}#/runs")
    tab.page.get_by_role("link", name=HOSTILE).click()
    tab.wait(f"document.querySelector('h1').innerText === {json.dumps(HOSTILE)}")
    tab.page.goto(link(server, keys[0], "training", "?q=img"))
    tab.wait("document.querySelector('.chart h3')?.innerText.startsWith('<img')")
    tab.page.goto(link(server, keys[0], "logs"))
    tab.wait(f"document.body.innerText.includes({json.dumps('saved ' + HOSTILE)})")
    assert tab.page.evaluate("document.querySelectorAll('img').length") == 0
    assert "owned" not in tab.page.title()


def test_dragging_zooms_every_chart_reloads_detail_and_the_address_brings_it_back(
    server: Server, open_tab: Open, keys: list[str]
) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.wait("document.querySelectorAll('.chart .u-over').length >= 2")
    box = tab.point_at(".chart .u-over", across=0.25)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2, steps=5)
    tab.page.mouse.up()
    tab.wait("location.hash.includes('from=')")
    deadline = time.monotonic() + PATIENCE
    while not any("start=" in request for request in tab.requests):
        assert time.monotonic() < deadline
        tab.page.wait_for_timeout(50)
    again = open_tab()
    again.page.goto(tab.page.url)
    again.wait("document.querySelector('[aria-label=\"reset zoom\"]')")
    asked = next(request for request in again.requests if "/series" in request and "start=" in request)
    start = float(asked.partition("start=")[2].partition("&")[0])
    assert 45 < start < 55
    again.page.get_by_label("reset zoom").first.click()
    again.wait("!location.hash.includes('from=')")


def test_a_chart_is_saved_as_csv_and_png(server: Server, open_tab: Open, keys: list[str], tmp_path: Path) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.wait(f"{CHARTS} >= 1")
    with tab.page.expect_download() as csv:
        tab.page.get_by_label("Loss: save as CSV").press("Enter")
    lines = Path(csv.value.path()).read_text().splitlines()
    assert lines[0] == "step,loss" and lines[61] == "60,NaN" and len(lines) == 201
    with tab.page.expect_download() as png:
        tab.page.get_by_label("Loss: save as PNG").press("Enter")
    assert Path(png.value.path()).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("page", ["overview", "training"])
def test_the_logged_value_is_read_first_and_the_smoothed_one_second(
    server: Server, open_tab: Open, root: Path, keys: list[str], page: str
) -> None:
    rows = RunReader(root / "p" / keys[0]).rows("training")
    logged = {row["step"]: row["loss"] for row in rows if "loss" in row}
    tab = open_tab()
    tab.page.goto(link(server, keys[0], page))
    tip = tab.page.locator("[data-chart=Loss] .tip")
    tab.wait("document.querySelector('[data-chart=Loss] .u-over')")
    tab.page.locator("[data-chart=Loss] .plot").focus()
    tab.page.keyboard.press("ArrowRight")
    tip.wait_for()
    step = int(tip.locator(".tip-x").inner_text().removeprefix("step "))
    assert tip.locator("b").first.inner_text() == f"{logged[step]:.4g}"
    assert tip.locator("small").first.inner_text().startswith("smoothed ")
    assert tab.page.locator(".choice output").inner_text() == "1.5 %"
    slider = tab.page.get_by_label("smoothing")
    slider.focus()
    slider.press("Home")
    tab.wait("document.querySelector('.choice output').innerText === 'off'")
    tab.page.locator("[data-chart=Loss] .plot").focus()
    tab.page.keyboard.press("ArrowRight")
    tip.wait_for()
    step = int(tip.locator(".tip-x").inner_text().removeprefix("step "))
    assert tip.locator("b").first.inner_text() == f"{logged[step]:.4g}" and not tip.locator("small").count()


def test_the_keyboard_alone_is_enough(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.wait(f"{CHARTS} >= 1")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("accuracy")
    tab.wait("document.querySelectorAll('.chart canvas').length === 1")
    tab.page.keyboard.press("Escape")
    tab.page.locator(".plot").first.focus()
    assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.page.keyboard.press("ArrowRight")
    tab.wait("document.querySelector('.tip')?.innerText.includes('step')")
    tab.page.keyboard.press("+")
    tab.wait("location.hash.includes('from=')")
    tab.page.keyboard.press("0")
    tab.wait("!location.hash.includes('from=')")
    tab.go_by_key("s", "location.hash.endsWith('/system')")
    tab.go_by_key("r", "location.hash === '#/runs'")


def test_two_runs_are_marked_and_compared(server: Server, open_tab: Open) -> None:
    tab = open_tab()
    tab.page.goto(f"{server.base}#/runs")
    tab.page.get_by_label("select baseline").check()
    tab.page.get_by_label("select candidate").check()
    tab.page.get_by_role("button", name="compare").click()
    tab.wait("document.body.innerText.includes('compared with baseline')")
    tab.wait(f"{CHARTS} >= 2")
    tab.wait("document.querySelectorAll('td .best').length >= 1")
    assert tab.page.locator("td.changed").all_inner_texts() == ["0.05"]


def test_a_metric_is_found_pinned_and_drawn_over_another_axis(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.page.get_by_label("search metrics").fill("val loss")
    tab.wait("[...document.querySelectorAll('.chart h3')].map(h => h.innerText).join() === 'val/loss'")
    tab.page.get_by_label("pin val/loss").click()
    tab.page.get_by_label("search metrics").fill("")
    tab.page.get_by_label("x", exact=True).select_option("epoch")
    tab.wait("document.querySelector('.section .axis')?.innerText === 'by epoch'")
    assert tab.page.locator(".section h2").first.inner_text() == "Pinned"
    tab.page.get_by_role("button", name="log", exact=True).first.click()
    tab.page.get_by_role("button", name="log", exact=True, pressed=True).first.wait_for()
    tab.page.reload()
    tab.wait("document.querySelector('.section h2')?.innerText === 'Pinned'")


def test_layers_and_words_over_time_are_saved_as_they_are_shown(
    server: Server, open_tab: Open, keys: list[str], tmp_path: Path
) -> None:
    tab = open_tab(accept_downloads=True)

    def save(title: str) -> str:
        # By key: what is drawn above it meanwhile moves the button from under the mouse between down and up.
        with tab.page.expect_download() as waited:
            tab.page.get_by_label(f"{title}: save as CSV").press("Enter")
        waited.value.save_as(tmp_path / "saved.csv")
        return (tmp_path / "saved.csv").read_text()

    tab.page.goto(link(server, keys[0], "training"))
    lines = save("gradient norm by layer and step").splitlines()
    assert lines[0].startswith("row,0,") and lines[1].startswith("blocks.0.mlp,1,") and len(lines) == 13
    tab.page.goto(link(server, keys[0], "system"))
    words = save("Throttle reasons").splitlines()
    assert words[0] == "time,device,state" and [line.partition(",")[2] for line in words[1:]] == [
        "GPU 0,none",
        "GPU 1,none",
        "GPU 1,thermal slowdown",
    ]


def test_what_is_zoomed_in_is_exported(server: Server, open_tab: Open, keys: list[str], tmp_path: Path) -> None:
    tab = open_tab(accept_downloads=True)
    tab.page.goto(link(server, keys[0], "training", "?zx=step&from=50&to=99"))
    tab.wait(f"{CHARTS} >= 1")
    tab.page.get_by_role("link", name="Export").click()
    tab.page.get_by_label("search metrics").fill("loss")
    with tab.page.expect_download() as waited:
        tab.page.get_by_role("button", name="save 2 as CSV").click()
    waited.value.save_as(tmp_path / "part.csv")
    lines = (tmp_path / "part.csv").read_text().splitlines()
    assert lines[0] == "step,loss,val/loss"
    assert [line.partition(",")[0] for line in lines[1:]] == [str(step) for step in range(50, 100)]
    assert "60,NaN," in [line[:7] for line in lines]


def test_a_report_is_saved_from_the_page(server: Server, open_tab: Open, keys: list[str], tmp_path: Path) -> None:
    tab = open_tab(accept_downloads=True)
    tab.page.goto(link(server, keys[0], "export"))
    beginnings = {"HTML": b"<!doctype html>", "Markdown": b"# baseline", "PNG": b"\x89PNG", "SVG": b"<svg"}
    for title, beginning in beginnings.items():
        with tab.page.expect_download() as waited:
            tab.page.get_by_role("link", name=title, exact=True).click()
        waited.value.save_as(tmp_path / waited.value.suggested_filename)
        assert (tmp_path / waited.value.suggested_filename).read_bytes().startswith(beginning)


def test_runs_are_tagged_and_an_alert_is_silenced(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    key = make_run(tmp_path, "mine", steps=3)
    server = serve(tmp_path, "--allow-edit")
    tab = open_tab()
    tab.page.goto(f"{server.base}#/runs")
    tab.page.get_by_label("select mine").check()
    tab.page.get_by_role("button", name="tag", exact=True).click()
    tab.page.get_by_label("add tags").fill("paper, final")
    tab.page.get_by_role("button", name="save").click()
    tab.wait("document.querySelector('table.runs')?.innerText.includes('final')")
    tab.page.goto(link(server, key, "alerts"))
    tab.page.get_by_label("silence duration").select_option("900")
    tab.page.get_by_role("button", name="silence for").click()
    folder = next(tmp_path.glob("*/*/run.json")).parent
    wait_until(
        lambda: any('"control":"silence"' in file.read_text() for file in folder.glob("alerts_*.jsonl")),
        "the wish for silence",
    )


def test_what_is_printed_is_followed_folded_and_searched(
    serve: Callable[..., Server], open_tab: Open, live: Any
) -> None:
    console = Path(live.folder) / "console.rank0.log"
    console.write_text(
        "epoch 0\n 10%|#  | 1/10 [00:01<00:09, 1.0it/s]\n 90%|###| 9/10 [00:09<00:01, 1.0it/s]\nloss 0.5\n"
    )
    server = serve(Path(live.folder).parent.parent)
    tab = open_tab()
    tab.page.goto(link(server, Path(live.folder).name, "logs"))
    shown = "[...document.querySelectorAll('.console div')].map(line => line.innerText.trim())"
    tab.wait(f"{shown}.length === 3")
    assert tab.page.evaluate(shown)[1].startswith("90%") and tab.page.evaluate(shown)[1].endswith("2")
    with open(console, "a") as file:
        file.write("<b>loss 0.4</b>\n")
    tab.wait(f"{shown}.at(-1) === '<b>loss 0.4</b>'")
    tab.page.get_by_label("search logs").fill("loss")
    tab.wait(f"{shown}.length === 2")


def test_the_table_of_runs_sorts_filters_and_groups(server: Server, open_tab: Open) -> None:
    tab = open_tab()
    tab.page.goto(f"{server.base}#/runs")
    tab.page.get_by_label("search runs").fill("lr<0.08")
    tab.wait("document.querySelectorAll('tbody tr').length === 1")
    assert "candidate" in tab.page.locator("tbody tr").inner_text()
    tab.page.get_by_label("search runs").fill("")
    tab.page.get_by_role("button", name="run", exact=True).click()
    tab.wait("document.querySelector('tbody tr .run-name a').innerText.startsWith('<img')")
    tab.page.get_by_label("group by").select_option("project")
    tab.wait("document.querySelectorAll('table').length === 2")


def test_a_run_that_is_not_there_says_so(server: Server, open_tab: Open) -> None:
    tab = open_tab()
    tab.page.goto(link(server, "nothing"))
    tab.wait("document.body.innerText.includes(\"no run 'nothing'\")")
    assert "the Runs page" in tab.page.inner_text("main") and "/api/" not in tab.page.inner_text("main")


def test_a_run_deleted_while_it_is_shown_says_so_once(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    key = make_run(tmp_path, "doomed", steps=2)
    tab = open_tab()
    tab.page.goto(link(serve(tmp_path), key))
    tab.page.locator("figure.chart").first.wait_for()
    shutil.rmtree(next(tmp_path.glob(f"*/{key}")))
    tab.page.get_by_role("link", name="Training").click()
    tab.page.get_by_text("This run was deleted or moved.").wait_for()
    tab.wait("document.querySelectorAll('.problem').length === 1")


def test_a_run_of_reinforcement_learning_has_a_page_and_another_run_has_not(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    other = make_run(tmp_path, "other", steps=2)
    run = make_healthy(5)
    FAULTS["rl_truncation"](run)
    folder = made_runs.make_run(tmp_path / "p" / "grpo")
    made_runs.write(folder, [{"step": step, **row} for step, row in spell(run, "verl")])
    for rank in (0, 1):  # processes have times and no steps
        measured = [{"role": "rollout", "rank": rank, "gpu_waiting_percent": 40.0 + rank}] * 50
        made_runs.write(folder, measured, "process_metrics_20260101_000000")
    media = Media(folder)
    for step, answer in ((1, "a first guess"), (40, "a good answer")):
        table = {"columns": samples.COLUMNS, "data": [["a question", answer, step / 40]]}
        media.write("table", samples.NAME, json.dumps(table).encode(), "json", step=step)
        media.write("table", "other rows", json.dumps({**table, "data": [["elsewhere", "", 0]]}).encode(), "json")
    server, report = serve(tmp_path), tmp_path / "report.html"
    report.write_bytes(draw_report([("grpo", RunReader(folder))], "html", settings.resolve({})))
    for tab, place in ((open_tab(), server.base), (open_tab(width=390, theme="light"), f"file://{report}")):
        tab.page.goto(f"{place}#/run/grpo/overview")
        tab.page.get_by_role("link", name="RL", exact=True).click()
        tab.wait(f"{CHARTS} >= 3")
        tab.wait("document.body.innerText.includes('of the responses are cut off at the length limit')")
        tab.wait("document.body.innerText.includes('critic/score/mean')")
        tab.page.get_by_text("Waiting GPUs by role").scroll_into_view_if_needed()
        tab.wait("document.body.innerText.includes('all 2 rollout ranks')")
        tab.page.get_by_role("heading", name="Responses").scroll_into_view_if_needed()
        tab.wait("document.body.innerText.includes('a good answer')")
        if place == server.base:  # a report may have the newest only
            tab.page.get_by_label(f"step of {samples.NAME}").focus()
            tab.page.keyboard.press("Home")
            tab.wait("document.body.innerText.includes('a first guess')")
        assert "elsewhere" not in tab.page.inner_text("main")
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    tab = open_tab()
    tab.page.goto(link(server, other))
    tab.wait(f"{CHARTS} >= 1")
    assert tab.page.get_by_role("link", name="RL", exact=True).count() == 0
    tab.page.goto(link(server, "grpo"))
    tab.wait(f"{CHARTS} >= 1")
    tab.go_by_key("p", "location.hash.includes('/rl')")
    tab.go_by_key("r", "location.hash.includes('/runs')")


def test_no_runs_at_all_tells_what_to_do(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab()
    tab.page.goto(serve(tmp_path / "none").base)
    tab.wait("document.body.innerText.includes('trainvitals run -- python train.py')")


def test_a_run_is_deleted_only_after_a_question(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    key = make_run(tmp_path, "doomed", steps=2)
    make_run(tmp_path, "kept", steps=2)
    tab = open_tab()
    tab.page.goto(f"{serve(tmp_path, '--allow-edit').base}#/runs")
    tab.page.get_by_label("select doomed").check()
    tab.page.get_by_role("button", name="delete").click()
    assert next(tmp_path.glob(f"*/{key}")).exists()
    tab.page.get_by_role("alertdialog").get_by_role("button", name="delete").click()
    tab.wait("document.querySelectorAll('tbody tr').length === 1")
    assert not list(tmp_path.glob(f"*/{key}"))


def test_a_live_run_is_stopped_only_after_a_question(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    run = trainvitals.init(project="p", name="alive", dir=tmp_path, agent=False)
    try:
        run.log({"loss": 1.0}, step=0)
        tab = open_tab()
        tab.page.goto(link(serve(tmp_path, "--allow-edit"), Path(run.folder).name))
        button = tab.page.get_by_role("button", name="stop")
        tab.page.once("dialog", lambda dialog: dialog.dismiss())
        button.click()
        assert find_request(Path(run.folder)) is None
        tab.page.once("dialog", lambda dialog: dialog.accept())
        button.click()
        tab.wait("document.body.innerText.includes('stopping')")
        wait_until(lambda: find_request(Path(run.folder)) is not None, "the request")
    finally:
        run.finish()


def test_a_token_is_taken_out_of_the_address_bar(
    serve: Callable[..., Server], open_tab: Open, root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery")
    tab = open_tab()
    tab.page.goto(serve(root, "--token-file", str(file)).url)
    tab.wait("document.querySelectorAll('tbody tr').length === 3")
    assert "token" not in tab.page.url and tab.page.evaluate("document.cookie") == ""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Any]:
    run = trainvitals.init(project="p", name="live", config={"total_steps": 1000}, dir=tmp_path, agent=False)
    for step in range(20):
        run.log({"loss": 1.0 / (step + 1), "val/acc": 0.5}, step=step)
    yield run
    run.finish()


LAST = "(document.querySelector('.plot[aria-label^=\"Loss:\"]')?.getAttribute('aria-label') ?? '')"


def test_what_is_logged_shows_up_by_itself(serve: Callable[..., Server], open_tab: Open, live: Any) -> None:
    server = serve(Path(live.folder).parent.parent)
    tab = open_tab()
    tab.page.goto(link(server, Path(live.folder).name))
    tab.wait(f"{LAST}.includes('loss 0.05')")
    live.log({"loss": 0.0321}, step=20)
    tab.wait(f"{LAST}.includes('loss 0.0321')")
    live.log({"loss": float("nan")}, step=21)
    tab.wait("document.querySelector('[data-chart=Loss] .badge')?.innerText.includes('1 NaN')")
    live.event("checkpoint", "saved step 21")
    tab.page.goto(link(server, Path(live.folder).name, "logs"))
    tab.wait("document.body.innerText.includes('saved step 21')")
    live.event("checkpoint", "saved step 22")
    tab.wait("document.body.innerText.includes('saved step 22')")


def test_a_flood_of_events_is_read_a_few_times_and_to_its_end(
    serve: Callable[..., Server], open_tab: Open, live: Any
) -> None:
    server, key = serve(Path(live.folder).parent.parent), Path(live.folder).name
    tab = open_tab()
    tab.page.goto(link(server, key, "logs"))
    tab.wait("document.body.innerText.includes('Events')")
    for number in range(600):
        live.event("checkpoint", f"saved checkpoint {number}")
    tab.wait("document.body.innerText.includes('saved checkpoint 599')")
    live.event("checkpoint", "saved the very last")
    tab.wait("document.body.innerText.includes('saved the very last')")
    assert len([address for address in tab.requests if address.endswith("/events")]) < 300


def test_what_is_logged_while_a_chart_is_being_read_shows_up(
    serve: Callable[..., Server], open_tab: Open, live: Any
) -> None:
    """An answer that was made before a value was logged and arrives after it takes nothing away."""
    server, key = serve(Path(live.folder).parent.parent), Path(live.folder).name
    tab = open_tab()
    tab.page.goto(link(server, key, "training"))
    tab.wait(f"{LAST}.includes('loss 0.05')")
    followed, heard = threading.Event(), threading.Event()

    def listen() -> None:
        with httpx.stream("GET", f"{server.base}api/v1/runs/{key}/stream", timeout=PATIENCE) as stream:
            for line in stream.iter_lines():
                if line == "event: reset":
                    followed.set()
                if "0.0123" in line:
                    heard.set()
                    return

    def hold(route: Any) -> None:
        answer = route.fetch()
        if not heard.is_set():
            live.log({"loss": 0.0123}, step=20)
            heard.wait(PATIENCE)
            time.sleep(0.5)  # until it has reached the page, too
        route.fulfill(response=answer)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    followed.wait(PATIENCE)
    tab.page.route("**/series?*", hold)
    tab.page.goto(link(server, key, "training", "?x=time"))
    tab.wait(f"{LAST}.includes('loss 0.0123')")
    listener.join(PATIENCE)


def test_the_page_says_when_it_is_stale_and_comes_back_by_itself(
    serve: Callable[..., Server], open_tab: Open, live: Any
) -> None:
    # No port that the kernel gives to others while nobody listens on it.
    server = serve(Path(live.folder).parent.parent, port=free_port())
    tab = open_tab()
    tab.page.goto(link(server, Path(live.folder).name))
    tab.wait(f"{LAST}.includes('loss 0.05')")
    server.stop()
    tab.wait("document.querySelector('.head').innerText.includes('Disconnected')")
    live.log({"loss": 0.0123}, step=30)
    server.start()
    tab.wait("!document.querySelector('.head').innerText.includes('Disconnected')")
    tab.wait(f"{LAST}.includes('loss 0.0123')")


def test_a_run_that_ends_is_shown_as_ended(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    run = trainvitals.init(project="p", name="short", dir=tmp_path, agent=False)
    run.log({"loss": 1.0}, step=0)
    server = serve(tmp_path)
    tab = open_tab()
    tab.page.goto(link(server, Path(run.folder).name))
    tab.wait("document.querySelector('.head .status')?.innerText === 'running'")
    run.finish()
    tab.wait("document.querySelector('.head .status')?.innerText === 'finished'")


@pytest.fixture
def resumed(tmp_path: Path) -> str:
    """A run of two attempts with validation, nested configuration and a group per block."""
    for attempt, steps in enumerate((range(30), range(20, 60))):
        config = {"lr": 0.1, "model": {"dim": 256}}
        run = trainvitals.init(
            project="p", name="r", dir=tmp_path, agent=False, config=config, notes="why", tags=["a"], resume=attempt > 0
        )
        for step in steps:
            blocks = {f"block_{block}/norm": 1.0 for block in range(3)}
            run.log({"train/loss": 1 / (step + 1), "train/lr": 0.1, "samples_per_sec": 9.0, **blocks}, step=step)
            run.log({"val/loss": 2 / (step + 1)}, step=step)
        run.finish()
    return Path(run.folder).name


def test_the_overview_has_validation_attempts_and_what_the_run_was_made_of(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path, resumed: str
) -> None:
    tab = open_tab()
    tab.page.goto(link(serve(tmp_path), resumed))
    legend = "[...document.querySelectorAll('[data-chart=Loss] .legend button')].map(b => b.innerText.trim()).join()"
    tab.wait(f"{legend} === 'train/loss,val/loss'")
    facts = tab.page.locator(".fact-title").all_inner_texts()
    assert {"loss", "val loss", "learning rate", "samples / s"} <= set(facts)
    details = tab.page.get_by_label("configuration").inner_text().split()
    assert details == ["lr", "0.1", "model.dim", "256"]
    environment = tab.page.get_by_label("environment").inner_text()
    assert "command" in environment and "host" in environment
    assert tab.page.inner_text(".notes").split() == ["a", "why"]
    attempts = tab.page.locator(".section", has=tab.page.get_by_role("heading", name="Attempts")).locator("tbody tr")
    assert [row.split("\t")[3] for row in attempts.all_inner_texts()] == ["0", "20"]


def test_groups_are_folded_and_log_scale_and_hidden_lines_stay_in_the_address(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path, resumed: str
) -> None:
    tab = open_tab()
    tab.page.goto(link(serve(tmp_path), resumed))
    tab.page.locator("[data-chart=Loss]").get_by_role("button", name="log", exact=True).click()
    tab.page.locator("[data-chart=Loss] .legend button", has_text="val/loss").click()
    tab.page.get_by_role("link", name="Training", exact=True).click()
    headings = "[...document.querySelectorAll('.section h2')].map(h => h.innerText).join()"
    tab.wait(f"{headings} === 'Metrics,train,val,block_*'")
    tab.page.get_by_role("button", name="val", exact=True).click()
    tab.wait("!document.querySelector('[data-chart=\"val/loss\"]')")
    tab.page.reload()
    tab.wait("document.querySelector('[data-chart=\"train/loss\"]')")
    assert tab.page.locator("[data-chart='val/loss']").count() == 0
    tab.page.get_by_role("link", name="Overview", exact=True).click()
    tab.page.locator("[data-chart=Loss]").get_by_role("button", name="log", exact=True, pressed=True).wait_for()
    tab.page.locator("[data-chart=Loss] .legend button.off", has_text="val/loss").wait_for()


def test_ten_thousand_metrics_do_not_freeze_the_page(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    run = trainvitals.init(project="p", name="wide", dir=tmp_path, agent=False)
    for step in range(3):
        run.log({f"group{place % 7}/metric {place}": place for place in range(10_000)}, step=step)
    run.finish()
    tab = open_tab()
    tab.page.goto(link(serve(tmp_path), Path(run.folder).name, "training"))
    tab.wait(f"{CHARTS} >= 1")
    assert tab.page.evaluate("document.querySelectorAll('.panel-place').length") <= 7 * 48
    tab.page.get_by_label("search metrics").fill("metric 9999")
    tab.wait("document.querySelectorAll('.panel-place').length === 1")


def test_150_charts_are_drawn_while_one_scrolls_and_all_stay_live(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    groups = ("loss", "norm", "share", "speed", "memory")
    names = [f"{groups[place % 5]}/m{place:03d}" for place in range(150)]
    run = trainvitals.init(project="p", name="long", dir=tmp_path, agent=False)
    for step in range(200):
        run.log(dict.fromkeys(names, math.sin(step / 20)), step=step)
    tab = open_tab(width=1440, height=900)
    tab.page.goto(link(serve(tmp_path), Path(run.folder).name, "training"))
    tab.wait(f"{CHARTS} >= 1")
    assert tab.page.evaluate(CHARTS) < 150, "what nobody has scrolled to is not drawn"

    def is_drawn() -> bool:
        tab.page.mouse.wheel(0, 600)
        return bool(tab.page.evaluate(f"{CHARTS} === 150"))

    tab.page.mouse.move(700, 500)
    wait_until(is_drawn, lambda: f"{tab.page.evaluate(CHARTS)} charts")
    run.log(dict.fromkeys(names, math.nan), step=200)
    tab.wait("document.querySelectorAll('.chart .badge.critical').length === 150")
    run.finish()


def test_the_same_page_is_a_report_that_opens_from_disk(
    root: Path, keys: list[str], open_tab: Open, tmp_path: Path
) -> None:
    reader = RunReader(next(root.glob(f"*/{keys[0]}")))
    run = run_details.describe_run(reader, keys[0])
    names = run["tables"]["training"]["names"]
    series = {axis: describe_series(reader, names, axis=axis, points=500)["series"] for axis in ("step", "time")}
    gpu = describe_series(reader, run["tables"]["gpu"]["names"], table="gpu", axis="time", points=500)["series"]
    data = {
        "about": {"version": "1", "root": "", "allow_edit": False, "runs": 1, "machines": []},
        "panels": dashboard.describe_panels(Conditions()),
        "runs": {
            keys[0]: {
                "run": run,
                "series": {"training": series, "gpu": {"time": gpu}},
                "events": run_details.describe_events(reader),
                "alerts": run_details.describe_alerts(reader),
            }
        },
        "written": "2026-01-01T00:00:00Z",
    }
    file = tmp_path / "report.html"
    file.write_bytes(make_single_file(wire.encode(data)))
    tab = open_tab()
    tab.page.goto(f"file://{file}")
    tab.wait(f"{CHARTS} >= 3")
    assert [request for request in tab.requests if not request.startswith(("file:", "data:"))] == []
    tab.page.get_by_role("link", name="Training").click()
    tab.wait(f"{CHARTS} >= 3")
    tab.page.get_by_label("x", exact=True).select_option("relative")
    tab.wait("document.querySelector('.axis')?.innerText === 'over time since start'")
