"""The fleet page in Chromium: every GPU, who holds it, what it costs, and which nodes fail; wide and narrow, dark and
light, for everybody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from made_fleet import GPUS, make_fleet

from .conftest import Server, Tab
from .test_accessibility import judge, judge_in_both_themes

Open = Callable[..., Tab]
NODES = 5
VIEWS = {"": ".racks .node", "?view=use": ".facts + div table", "?view=faults": ".faulty table"}
"""What is drawn last in each."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("fleet")
    # What was heard in an hour from now is fresh, however long this takes.
    make_fleet(root, NODES, time.time() + 3600)
    found = Server(root)
    yield found
    found.stop()


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_keeps_anybody_out_and_nothing_is_passed_off_as_real(server: Server, open_tab: Open, view: str) -> None:
    tab = open_tab(width=1440, height=1000, reduced_motion="reduce")
    tab.page.goto(f"{server.base}#/fleet{view}")
    tab.page.wait_for_selector(VIEWS[view])
    assert judge_in_both_themes(tab) == []
    assert "SIMULATED" in tab.page.inner_text(".badge.simulated")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.wait_for_selector(VIEWS[view])
    assert judge(tab) == []
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no line is cut"


def test_a_gpu_is_found_by_mouse_and_by_keys(server: Server, open_tab: Open) -> None:
    tab = open_tab()
    tab.page.goto(f"{server.base}#/runs")
    tab.page.click(".side a:has-text('Fleet')")
    tab.page.wait_for_selector(".racks .node")
    assert tab.page.locator(".racks .node").count() == NODES
    assert tab.page.locator(".cells i").count() == NODES * GPUS
    tab.point_at(".node[data-node='node-001'] i")
    tab.wait("/node-001 GPU 0: .+ · .* use · .* memory/.test(document.querySelector('.fleet-tip').textContent)")
    tab.page.focus(".node[data-node='node-001']")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".node-panel:has-text('node-002') tr:has-text('lost')")
    assert tab.page.locator(".node-panel tbody tr").count() == GPUS and "node=node-002" in tab.page.url
    assert tab.page.locator(".node[data-node='node-002'] .gpu-down").count() == 1
    tab.page.select_option("select[aria-label='color by']", "state")
    tab.page.wait_for_selector(".racks .gpu-busy")
    tab.page.select_option("select[aria-label='color by']", "power_draw_watts")
    tab.page.select_option("select[aria-label='over']", "week")
    tab.page.wait_for_selector("h2:has-text('Power, mean')")
    tab.page.click(".node-panel p a")
    tab.page.wait_for_selector(".health-word")


def test_use_is_shown_by_whom_it_is_asked_for(server: Server, open_tab: Open) -> None:
    tab = open_tab()
    tab.page.goto(f"{server.base}#/fleet?view=use")
    tab.page.wait_for_selector("td:has-text('user-')")
    tab.page.select_option("select[aria-label='by']", "project")
    tab.page.wait_for_selector("td:has-text('vision')")
    tab.page.click("button[aria-label='earlier']")
    tab.page.wait_for_function("/until=/.test(location.hash)")
    tab.page.click("button[aria-label='later']")
    tab.page.wait_for_function("!/until=/.test(location.hash)")
    tab.page.click("button:has-text('Faulty nodes')")
    tab.page.wait_for_selector(".faulty li:first-child:has-text('Xid')")
