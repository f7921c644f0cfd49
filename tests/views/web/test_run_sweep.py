"""The sweep view of all runs that the table's filter finds, in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_sweep import make_sweep

from .conftest import Server, Tab

Open = Callable[..., Tab]
IMPORTANCES = "[...document.querySelectorAll('.importance-name')].map(one => one.innerText).join()"


@pytest.fixture(scope="module")
def sweep_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A thousand runs."""
    root: Path = tmp_path_factory.mktemp("sweep")
    make_sweep(root, 1000)
    made = Server(root)
    yield made
    made.stop()


def test_the_parameter_that_decides_comes_first_and_the_best_run_is_a_link(
    sweep_server: Server, open_tab: Open
) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs")
    tab.page.get_by_role("button", name="Sweep", exact=True).click()
    tab.wait(f"{IMPORTANCES}.startsWith('lr,optimizer,')")
    tab.page.get_by_label("metric").select_option("train/loss")
    tab.wait("location.hash.includes('of=train') && document.querySelector('.best-run a')")
    tab.page.locator(".importances button", has_text="optimizer").click()
    tab.page.get_by_role("heading", name="train/loss by optimizer").wait_for()
    name = tab.page.inner_text(".best-run a")
    tab.page.locator(".best-run a").click()
    tab.wait(f"document.querySelector('h1').innerText.includes('{name}')")


def test_a_range_is_dragged_along_an_axis_and_kept_in_the_address(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440, theme="light")
    tab.page.goto(f"{sweep_server.base}#/runs?view=sweep&of=train/loss")
    tab.wait(f"{IMPORTANCES}.startsWith('lr,')")
    box = tab.point_at(".parallel")
    x = box["x"] + 52  # the first axis
    tab.page.mouse.move(x, box["y"] + 120)
    tab.page.mouse.down()
    tab.page.mouse.move(x, box["y"] + 200, steps=4)
    tab.page.mouse.up()
    tab.page.get_by_text("of 1,000 runs chosen").wait_for()
    tab.wait("location.hash.includes('brush=')")
    tab.page.reload()
    tab.page.get_by_text("of 1,000 runs chosen").wait_for()
    tab.page.get_by_role("button", name="clear ranges").click()
    tab.wait("!location.hash.includes('brush=')")


def test_an_axis_is_brushed_and_moved_with_the_keyboard(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=sweep&of=train/loss")
    heads = "[...document.querySelectorAll('.axis-head')].map(one => one.innerText).join()"
    tab.wait(f"{heads}.startsWith('lr,optimizer,')")
    tab.page.get_by_label("axis lr").focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.get_by_text("of 1,000 runs chosen").wait_for()
    tab.page.keyboard.press("Shift+ArrowUp")
    tab.wait("location.hash.includes('brush=0.05%3A0.95%3Aconfig.lr')")
    tab.page.keyboard.press("ArrowRight")
    tab.wait(f"{heads}.startsWith('optimizer,lr,')")
    tab.wait("document.activeElement.innerText === 'lr'")
    tab.page.keyboard.press("Delete")
    tab.wait("!location.hash.includes('brush=')")
    tab.page.reload()
    tab.wait(f"{heads}.startsWith('optimizer,lr,')")


def test_an_axis_is_dragged_to_another_place_and_others_are_chosen(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=sweep&of=train/loss")
    heads = "[...document.querySelectorAll('.axis-head')].map(one => one.innerText).join()"
    tab.wait(f"{heads}.startsWith('lr,optimizer,') && {heads}.endsWith(',train/loss')")
    first = tab.page.get_by_label("axis lr").bounding_box()
    last = tab.page.get_by_label("axis train/loss").bounding_box()
    assert first is not None and last is not None
    tab.page.mouse.move(first["x"] + first["width"] / 2, first["y"] + 8)
    tab.page.mouse.down()
    tab.page.mouse.move(last["x"] + last["width"] / 2, last["y"] + 8, steps=5)
    tab.page.mouse.up()
    tab.wait(f"{heads}.endsWith(',train/loss,lr')")
    tab.page.get_by_text("axes", exact=True).click()
    tab.page.get_by_role("checkbox", name="val/acc").check()
    tab.wait(f"{heads}.endsWith(',train/loss,lr,val/acc')")


def test_a_metric_or_a_parameter_is_on_either_axis_of_the_scatter(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=sweep&of=train/loss")
    tab.page.get_by_role("heading", name="train/loss by lr").wait_for()
    tab.page.get_by_label("x", exact=True).select_option("summary.val/acc")
    tab.page.get_by_role("heading", name="train/loss by val/acc").wait_for()
    tab.page.get_by_label("y", exact=True).select_option("config.optimizer")
    tab.page.get_by_role("img", name="optimizer by val/acc of 1000 runs").wait_for()


def test_keys_go_from_run_to_run_and_enter_opens_it(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=1440)
    tab.page.goto(f"{sweep_server.base}#/runs?view=sweep&of=train/loss&across=config.lr")
    tab.wait(f"{IMPORTANCES}.startsWith('lr,')")
    tab.page.locator(".sweep-halves canvas").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.wait("document.querySelector('.sweep-tip').innerText.startsWith('run-')")
    first = tab.page.inner_text(".sweep-tip")
    tab.page.keyboard.press("ArrowRight")
    tab.wait(f"document.querySelector('.sweep-tip').innerText !== {first!r}")
    tab.page.keyboard.press("Enter")
    tab.wait("location.hash.startsWith('#/run/')")


def test_few_runs_are_said_to_be_too_few_also_on_a_phone(sweep_server: Server, open_tab: Open) -> None:
    tab = open_tab(width=390)
    tab.page.goto(f"{sweep_server.base}#/runs?view=sweep&q=name~run-000")
    tab.wait("[...document.querySelectorAll('.importance-why')].some(one => one.innerText === 'not enough runs')")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
