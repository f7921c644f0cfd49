"""The charts of all runs that the table's filter finds, in Chromium."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import made_runs
import pytest
from made_sweep import make_sweep

from .conftest import Server, Tab

Open = Callable[..., Tab]
LINES = "[...document.querySelectorAll('.lines .line-name')].map(one => one.innerText)"
# How many pixels of the first chart are no background: what is hidden is no longer drawn.
INK = """(() => {
  const canvas = document.querySelector('.many canvas'), box = canvas.getContext('2d');
  const data = box.getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0;
  for (let at = 3; at < data.length; at += 4) if (data[at]) found++;
  return found;
})()"""


@pytest.fixture(scope="module")
def sweep_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Forty runs of ten configurations, four seeds of each."""
    root: Path = tmp_path_factory.mktemp("sweep")
    make_sweep(root, 40, steps=60, seeds=4)
    made = Server(root)
    yield made
    made.stop()


def test_all_runs_are_drawn_and_the_filter_is_that_of_the_table(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs")
    tab.page.get_by_role("button", name="Charts", exact=True).click()
    tab.wait(f"{LINES}.length === 10 && document.querySelectorAll('.many').length === 2")  # seeds are one line each
    tab.page.get_by_label("lines", exact=True).first.select_option("run")
    tab.wait(f"{LINES}.length === 40 && document.querySelectorAll('.many').length === 2")
    tab.requests.clear()
    tab.page.reload()
    tab.wait(f"{LINES}.length === 40 && document.querySelectorAll('.many').length === 2")
    assert len([url for url in tab.requests if "/curves" in url]) == 1, "one request for all runs"
    tab.page.get_by_label("search runs").fill("tag:batch-1")
    tab.wait(f"{LINES}.length === 20")
    tab.page.get_by_role("button", name="Table", exact=True).click()
    tab.wait("document.querySelectorAll('table.runs tbody tr').length === 20")


def test_lines_are_hidden_pinned_and_colored_and_a_reload_keeps_it(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts&by=run")
    tab.wait(f"{LINES}.length === 40 && {INK} > 0")
    before = tab.page.evaluate(INK)
    tab.page.get_by_label("pin run-0007").click()
    tab.wait(f"{LINES}[0] === 'run-0007'")
    tab.page.get_by_title("hide all listed, except pinned runs").click()
    tab.wait("document.querySelectorAll('.lines input:checked').length === 1")
    tab.wait(f"{INK} < {before}")
    swatch = tab.page.get_by_label("color of run-0007")
    color = swatch.evaluate("one => one.style.background")
    swatch.click()
    tab.wait(f"document.querySelector('.lines .paint').style.background !== {color!r}")
    painted = swatch.evaluate("one => one.style.background")
    tab.page.reload()
    tab.wait(f"{LINES}[0] === 'run-0007' && document.querySelectorAll('.lines input:checked').length === 1")
    assert swatch.evaluate("one => one.style.background") == painted
    tab.page.get_by_label("search lines").fill("000[12]")
    tab.wait(f"{LINES}.length === 2")
    tab.page.get_by_title("show those listed").click()
    tab.page.get_by_label("search lines").fill("")
    tab.wait("document.querySelectorAll('.lines input:checked').length === 3")


def test_seeds_of_an_experiment_are_one_line_with_a_band(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440, theme="light")
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts")
    tab.page.get_by_label("lines", exact=True).first.select_option("experiment")
    tab.wait(f"{LINES}.length === 10 && {LINES}.every(one => one.includes('lr='))")
    counts = tab.page.evaluate("[...document.querySelectorAll('.lines .dim')].map(one => one.innerText)")
    assert counts == ["n = 4"] * 10
    tab.page.get_by_label("band").select_option("confidence")
    tab.wait("location.hash.includes('band=confidence')")
    tab.page.get_by_label("lines", exact=True).first.select_option("config.optimizer")
    tab.wait(f"{LINES}.join() === 'adam,lion,sgd'")


def test_of_few_lines_no_two_look_alike(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    swatches = "[...document.querySelectorAll('.lines .paint')].map(one => one.style.background)"
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts&by=experiment&metric=train/loss")
    tab.wait(f"{LINES}.length === 10")
    looks = tab.page.evaluate(swatches)
    assert len(set(looks)) == 10 and [look.startswith("repeating") for look in looks] == [False] * 8 + [True] * 2
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts&by=run&metric=train/loss")
    tab.wait(f"{LINES}.length === 40")
    assert len(set(tab.page.evaluate(swatches))) == 8, "dashes of 40 lines would tell nothing apart"


def test_keys_go_from_line_to_line_and_the_tooltip_has_the_logged_value(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts&by=run&metric=train/loss")
    tab.wait(f"{LINES}.length === 40 && document.querySelectorAll('.many').length === 1")
    tab.page.locator(".many .plot").focus()
    for key in ("ArrowRight", "ArrowDown"):
        tab.page.keyboard.press(key)
    tab.wait("document.querySelector('.many .tip-row')")
    first = tab.page.inner_text(".many .tip-row span")
    tab.page.keyboard.press("ArrowDown")
    tab.wait(f"document.querySelector('.many .tip-row span').innerText !== '{first}'")
    tab.page.keyboard.press("+")
    tab.wait("location.hash.includes('from=')")
    tab.page.keyboard.press("0")
    tab.wait("!location.hash.includes('from=')")


def test_any_metric_is_the_axis_and_a_line_is_smoothed_but_not_its_tooltip(
    sweep_server: Server, open_tab: Open
) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts&by=run&metric=train/loss&q=name~run-0003")
    tab.wait(f"{LINES}.join() === 'run-0003'")
    tab.page.get_by_label("x", exact=True).select_option("epoch")
    tab.wait("document.querySelector('.many .axis').innerText.includes('by epoch')")
    tab.page.get_by_label("smoothing").fill("1")
    tab.wait("location.hash.includes('smooth=1')")
    tab.page.locator(".many .plot").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.wait("document.querySelector('.many .tip-row small')?.innerText.startsWith('smoothed ')")
    shown = tab.page.inner_text(".many .tip-row b"), tab.page.inner_text(".many .tip-x")
    tab.page.get_by_label("smoothing").fill("0")
    tab.wait("location.hash.includes('smooth=0')")
    tab.page.locator(".many .plot").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowLeft")
    tab.wait("document.querySelector('.many .tip-row') && !document.querySelector('.many .tip-row small')")
    assert (tab.page.inner_text(".many .tip-row b"), tab.page.inner_text(".many .tip-x")) == shown


def test_values_that_are_not_finite_are_marked_and_a_metric_that_nobody_logged_is_said_so(
    tmp_path: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    (name,) = make_sweep(tmp_path, 1, steps=40)
    folder = tmp_path / "sweep" / name
    made_runs.write(folder, [{"step": 40 + at, "train/loss": math.nan} for at in range(3)])
    tab = open_tab(width=1440)
    tab.page.goto(f"{serve(tmp_path).base}#/runs?view=charts&metric=train/loss&metric=never")
    tab.wait("document.querySelector('.many .badge.critical')?.innerText === '3 NaN'")
    tab.page.get_by_text("none of these runs logged never").wait_for()


def test_a_phone_has_everything_below_each_other(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=390)
    tab.page.goto(f"{sweep_server.base}#/runs?view=charts&by=experiment")
    tab.wait(f"{LINES}.length === 10")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
