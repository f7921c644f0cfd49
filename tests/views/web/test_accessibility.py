"""Every page in Chromium, judged by axe-core: nothing on it may keep people who use other means from reading it. And
each at the widths of desks and phones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report

from .conftest import Server, Tab, make_run
from .made_pages import CHART, PAGES, MadePages, make_pages

Open = Callable[..., Tab]
GRAVE = ("serious", "critical")
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadePages:
    return make_pages(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def base(made: MadePages) -> Iterator[str]:
    server = Server(made.root, "--allow-edit")
    yield server.base
    server.stop()


@pytest.fixture(scope="module")
def report(made: MadePages) -> str:
    """The address of one of a training, a policy and a model."""
    folders = [made.root / "p" / made.keys[name] for name in ("RUN", "POLICY", "MODEL")]
    path: Path = made.root / "report.html"
    path.write_bytes(draw_report(name_runs(folders), "html", resolve({})))
    return path.as_uri()


def judge(tab: Tab) -> list[str]:
    """What axe-core finds grave, and where."""
    found = [item for item in Axe().run(tab.page).response["violations"] if item["impact"] in GRAVE]
    return [f"{item['id']}: {node['html']}: {node['failureSummary']}" for item in found for node in item["nodes"]]


def judge_in_both_themes(tab: Tab) -> list[str]:
    found = []
    for theme in THEMES:
        turn(tab, theme)
        found += judge(tab)
    return found


def turn(tab: Tab, theme: str) -> None:
    tab.page.emulate_media(color_scheme=theme)
    tab.wait(f"document.documentElement.dataset.theme === {theme!r}")


@pytest.mark.parametrize("name", PAGES)
def test_no_page_keeps_anybody_out(made: MadePages, base: str, open_tab: Open, name: str) -> None:
    page = PAGES[name]
    tab = open_tab(reduced_motion="reduce")  # a color on its way to another one is not judged
    tab.page.goto(made.find(page, base))
    tab.page.wait_for_selector(page.until)
    if page.press:
        tab.page.click(page.press)
    assert judge_in_both_themes(tab) == []
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.wait_for_selector(page.until)
    assert judge(tab) == []


# What is drawn beyond the edge, but for what scrolls in a box of its own; and canvases on which nothing is drawn.
OUTSIDE = """[...document.querySelectorAll('main *')].filter((item) => {
  const place = item.getBoundingClientRect();
  if (!place.width || place.right <= innerWidth + 1) return false;
  for (let box = item.parentElement; box; box = box.parentElement) {
    if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(box).overflowX)) return false;
  }
  return true;
}).map((item) => item.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_on_desks_and_phones_in_both_themes(
    made: MadePages, base: str, open_tab: Open, name: str
) -> None:
    page = PAGES[name]
    for width, height in ((1920, 1080), (1440, 900), (390, 844)):
        tab = open_tab(width=width, height=height, reduced_motion="reduce")
        tab.page.goto(made.find(page, base))
        for theme in THEMES:
            turn(tab, theme)
            tab.page.wait_for_selector(page.until)
            if page.press and theme == THEMES[0]:
                tab.page.click(page.press)
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{width}: scrolls sideways"
            assert tab.page.evaluate(OUTSIDE) == [], f"{width}, {theme}: beyond the edge"


@pytest.mark.parametrize("name", ["overview", "findings", "training", "system", "rl", "benchmark", "alerts", "events"])
def test_no_page_of_a_report_does(made: MadePages, report: str, open_tab: Open, name: str) -> None:
    page = PAGES[name]
    tab = open_tab(reduced_motion="reduce")
    tab.page.goto(made.find(page, report))
    tab.page.wait_for_selector(page.until)
    assert judge_in_both_themes(tab) == []


def test_the_list_of_keys_does_not(made: MadePages, base: str, open_tab: Open) -> None:
    tab = open_tab(reduced_motion="reduce")
    tab.page.goto(made.find(PAGES["overview"], base))
    tab.page.wait_for_selector(CHART)
    tab.page.keyboard.press("?")
    tab.page.wait_for_selector("dialog[open]")
    assert judge_in_both_themes(tab) == []


def test_the_page_of_machines_keeps_nobody_out(serve: Callable[..., Server], tmp_path: Path, open_tab: Open) -> None:
    make_run(tmp_path, "baseline")
    server = serve(tmp_path, "--host", "local", "--host", "http://127.0.0.1:1")
    tab = open_tab(reduced_motion="reduce")
    tab.page.goto(f"{server.base}#/machines")
    tab.page.wait_for_selector(".facts")
    tab.page.wait_for_selector(".machine-state.critical")
    assert judge_in_both_themes(tab) == []
    tab.page.goto(f"{server.base}#/runs")
    tab.page.wait_for_selector(".machine-trouble")
    assert judge_in_both_themes(tab) == []
