"""The page of all runs in Chromium: columns, search, what a click does, very many runs, and a server that is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_runs
import pytest
from waiting import free_port

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Status

from .conftest import Server, Tab

Open = Callable[..., Tab]
TITLES = "[...document.querySelectorAll('table.runs th')].map(cell => cell.innerText.trim())"
NAMES = "[...document.querySelectorAll('td.run-name a')].map(link => link.innerText).join()"


def add(root: Path, project: str, name: str, config: dict[str, Any], last: dict[str, float]) -> Path:
    folder = made_runs.make_run(root / project / name, name=name, project=project, config=config)
    summary = {metric: {"last": value, "last_step": 1, "count": 1} for metric, value in last.items()}
    run_folder.write_status(folder, Status.parse({"attempt": 1, "state": "finished", "summary": summary}))
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Six runs of a sweep and two of another project, whose names have little in common."""
    for number in range(6):
        config = {"lr": 0.01 * (number + 1), "wide": {f"option_{at}": at for at in range(1000)}}
        add(tmp_path, "sweep", f"lr{number}", config, {"train/loss": 1.0 - number / 10, "lr": 0.5})
    for number in range(2):
        add(tmp_path, "other", f"old{number}", {"depth": number}, {"loss": 3.0, "speed": 7.0})
    return tmp_path


def test_a_menu_of_a_thousand_columns_is_readable_searched_and_closed(
    sweep: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    tab = open_tab()
    tab.page.goto(f"{serve(sweep).base}#/runs")
    menu = tab.page.locator(".menu > div")
    tab.page.get_by_text("columns", exact=True).click()
    tab.wait("document.querySelectorAll('.menu label').length > 1000")
    heights = tab.page.evaluate("[...document.querySelectorAll('.menu label')].map(one => one.offsetHeight)")
    assert min(heights) >= 18, "no label is squashed"
    assert tab.page.evaluate("(box => box.scrollHeight > box.clientHeight)(document.querySelector('.menu > div'))")
    tab.page.keyboard.type("option_99[78]")
    tab.wait("document.querySelectorAll('.menu label').length === 2")
    tab.page.get_by_label("wide.option_998").check()
    tab.wait(f"{TITLES}.includes('wide.option_998')")
    tab.page.keyboard.press("Escape")
    menu.wait_for(state="detached")
    tab.page.get_by_text("columns", exact=True).click()
    menu.wait_for()
    tab.page.locator("h1").click()
    menu.wait_for(state="detached")
    tab.page.reload()
    tab.wait(f"{TITLES}.includes('wide.option_998')")
    tab.page.get_by_text("columns", exact=True).click()
    tab.page.get_by_role("button", name="reset").click()
    tab.wait(f"!{TITLES}.includes('wide.option_998')")


def test_columns_are_what_most_of_the_shown_runs_have_and_no_two_have_one_title(
    sweep: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    base = serve(sweep).base
    tab = open_tab()
    tab.page.goto(f"{base}#/runs")
    tab.wait(f"{TITLES}.includes('train/loss')")
    titles = tab.page.evaluate(TITLES)
    assert {"lr (config)", "lr (last)"} <= set(titles) and len(set(titles)) == len(titles)
    tab.page.get_by_label("project").select_option("other")
    tab.wait(f"{TITLES}.includes('loss') && {TITLES}.includes('depth') && !{TITLES}.includes('train/loss')")


def test_the_search_finds_as_the_command_does_and_says_what_is_wrong(
    sweep: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    tab = open_tab()
    tab.page.goto(f"{serve(sweep).base}#/runs")
    box = tab.page.get_by_label("search runs")
    box.fill("config.lr>0.04 -name~5$")
    tab.wait(f"{NAMES} === 'lr4'")
    box.fill("config.lr>0.04 train/loss<")
    tab.page.get_by_text("'train/loss<' has no value").wait_for()
    tab.wait(f"{NAMES} === 'lr5,lr4'")
    box.fill("lrr>1")
    tab.page.get_by_text("no run has 'lrr'").wait_for()


def test_a_click_on_a_row_opens_the_run_and_a_click_on_its_box_selects_it(
    sweep: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    tab = open_tab()
    tab.page.goto(f"{serve(sweep).base}#/runs")
    tab.page.get_by_label("select lr3").check()
    tab.page.get_by_text("1 selected").wait_for()
    assert tab.page.url.endswith("#/runs")
    tab.page.locator("tr", has_text="lr2").locator("td[data-title=project]").click()
    tab.wait("location.hash === '#/run/lr2/overview'")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for number in range(600):
        add(tmp_path, "many", f"run{number:03d}", {"lr": number}, {"train/loss": 1.0 - number / 1000})
    return tmp_path


def test_of_very_many_runs_those_in_view_are_drawn_and_all_are_there(
    many: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    tab = open_tab()
    tab.page.goto(f"{serve(many).base}#/runs?sort=name")
    first, last = tab.page.get_by_label("select run000"), tab.page.get_by_label("select run599")
    first.check()
    assert tab.page.evaluate("document.querySelector('table.runs').ariaRowCount") == "601"
    assert last.count() == 0
    tab.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    last.check()
    tab.page.get_by_text("2 selected").wait_for()
    assert first.count() == 0, "what is far from the window is not drawn"
    assert tab.page.evaluate("document.querySelectorAll('table.runs tbody tr').length") < 200
    # Onward by key from row to row, as in a table that is all there: box, link, box of the row above.
    for number in range(200):
        tab.page.keyboard.press("Shift+Tab")
        if number % 20 == 19:  # rows are drawn with the next frame: faster than it, nobody can press a key
            tab.wait("new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true))))")
    tab.wait("/^(select )?run499$/.test(document.activeElement.ariaLabel ?? document.activeElement.innerText)")
    tab.page.get_by_label("search runs").fill("lr<50 -name:run007")
    tab.page.get_by_text("49 of 600 runs").wait_for()
    tab.wait(f"{NAMES}.split(',').length === 49")
    tab.page.get_by_role("button", name="lr").click()
    tab.page.get_by_role("button", name="lr").click()
    tab.wait(f"{NAMES}.startsWith('run049,run048')")
    assert first.is_checked()
    tab.page.get_by_role("button", name="compare", exact=True).click()
    tab.wait("location.hash === '#/compare?run=run000&run=run599'")


def test_a_change_is_seen_without_sending_the_others_again(
    many: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    tab = open_tab()
    tab.page.goto(f"{serve(many).base}#/runs?sort=name")
    tab.wait(f"{NAMES}.startsWith('run000')")
    with tab.page.expect_response(lambda answer: "run000-renamed" in answer.text()) as caught:
        run_folder.change_run(many / "many" / "run000", lambda run: replace(run, name="run000-renamed"))
    assert [row["id"] for row in caught.value.json()["runs"]] == ["run000"]
    tab.wait(f"{NAMES}.startsWith('run000-renamed,run001')")
    shutil.rmtree(many / "many" / "run000")
    tab.wait(f"{NAMES}.startsWith('run001')")


def test_the_list_says_that_the_server_is_gone_and_that_it_is_back(
    sweep: Path, serve: Callable[..., Server], open_tab: Open
) -> None:
    port = free_port()  # none that the kernel gives to others while nobody listens on it
    server = serve(sweep, port=port)
    tab = open_tab()
    tab.page.goto(f"{server.base}#/runs")
    tab.wait(f"{NAMES} !== ''")
    server.stop()
    gone = tab.page.get_by_text("Disconnected for")
    gone.wait_for()
    assert tab.page.evaluate(NAMES), "what is known stays"
    serve(sweep, port=port)
    gone.wait_for(state="detached")
