"""The page Media in Chromium: served, live and in a report; on a phone, in both themes, by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainvitals
from trainvitals.journal.media import Media
from trainvitals.journal.reader import RunReader
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report

from .conftest import HOSTILE, Server, Tab

LOADED = "[...document.querySelectorAll('.picture img')].filter((image) => image.naturalWidth > 0).length"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = trainvitals.init(project="p", name="media", dir=tmp_path_factory.mktemp("media"), agent=False)
    for step in range(0, 50, 10):
        run.log({"loss": 1.0}, step=step)
        run.log_image("shades", np.full((8, 8), step * 5, dtype=np.uint8), caption=f"shade {step}")
        run.log_text(HOSTILE, f"text of step {step} {HOSTILE}")
        run.log_histogram("logits", range(100))
    run.log_table(
        "errors", [[n, HOSTILE if n == 3 else f"name {n}", n / 7] for n in range(150)], columns=["n", "who", "x"]
    )
    run.log_image("early", np.zeros((200, 3000, 3)), step=0)
    run.finish()
    return Path(run.folder)


@pytest.fixture(scope="module")
def base(folder: Path) -> Iterator[str]:
    server = Server(folder.parents[1])
    yield server.base
    server.stop()


@pytest.fixture
def show(base: str, open_tab: Callable[..., Tab], folder: Path) -> Callable[..., Tab]:
    def start(query: str = "", **more: Any) -> Tab:
        tab = open_tab(**more)
        tab.page.goto(f"{base}#/run/{folder.name}/media{query}")
        tab.wait(f"{LOADED} === 2")
        return tab

    return start


def card(name: str) -> str:
    return f"document.querySelector('[data-media=\"{name}\"]')"


def test_the_slider_of_the_page_moves_every_name_and_its_own_only_one(show: Callable[..., Tab]) -> None:
    tab = show()
    assert tab.wait(f"{card('shades')}.innerText.includes('step 40')")
    slider = tab.page.get_by_label("step of all")
    slider.focus()
    for _ in range(2):
        slider.press("ArrowLeft")
    tab.wait(f"{card('shades')}.innerText.includes('step 20') && {card('shades')}.innerText.includes('shade 20')")
    tab.wait("document.body.innerText.includes('text of step 20')")
    tab.wait("location.hash.includes('step=20')")
    own = tab.page.get_by_label("step of shades")
    own.focus()
    own.press("Home")
    tab.wait(f"{card('shades')}.innerText.includes('shade 0')")
    tab.wait(f"{card('shades')}.querySelector('img').naturalWidth === 8")
    assert tab.page.evaluate("document.body.innerText.includes('text of step 20')")
    slider.focus()
    slider.press("End")
    tab.wait(f"{card('shades')}.innerText.includes('shade 40')")


def test_an_address_leads_to_a_step_and_a_name(show: Callable[..., Tab]) -> None:
    tab = show("?step=10")
    tab.wait("document.body.innerText.includes('text of step 10')")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("shad")
    tab.wait("document.querySelectorAll('[data-media]').length === 1")
    tab.page.keyboard.press("Escape")
    tab.wait("document.querySelectorAll('[data-media]').length > 3")
    tab.page.get_by_label("kind").select_option("text")
    tab.wait("document.querySelectorAll('[data-media]').length === 1")


def test_hostile_names_and_contents_are_text(show: Callable[..., Tab]) -> None:
    tab = show()
    tab.wait("document.querySelector('.media-table')")
    assert tab.page.title() != "owned"
    assert tab.page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    assert HOSTILE in tab.page.inner_text(".media-table")


def test_a_table_is_sorted_by_any_column(show: Callable[..., Tab]) -> None:
    tab = show()
    first = "document.querySelector('.media-table tbody td').innerText"
    tab.wait(f"{first} === '0'")
    head = tab.page.locator(".media-table th button", has_text="n").first
    head.press("Enter")
    tab.wait(f"{first} === '149'")
    assert tab.page.get_attribute(".media-table th", "aria-sort") == "descending"
    head.press("Enter")
    tab.wait(f"{first} === '0'")
    tab.page.get_by_text("show more (50 hidden)").click()
    tab.wait("document.querySelectorAll('.media-table tbody tr').length === 150")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_phone_shows_everything_without_scrolling_sideways(show: Callable[..., Tab], theme: str) -> None:
    tab = show(width=390, height=844, theme=theme)
    tab.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    tab.wait("document.querySelectorAll('.heatmap canvas').length === 1")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_report_shows_the_newest_without_a_server(open_tab: Callable[..., Tab], folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(draw_report([(folder.name, RunReader(folder))], "html", resolve({})))
    tab = open_tab()
    tab.page.goto(f"{path.as_uri()}#/run/{folder.name}/media")
    tab.wait(f"{LOADED} === 2")
    tab.wait("document.body.innerText.includes('text of step 40')")
    tab.wait("document.querySelector('.media-table tbody tr')")
    tab.wait("document.body.innerText.includes('8 older items not in this report')")
    assert all(address.startswith(("file:", "data:")) for address in tab.requests)


def test_a_run_without_media_shows_how_to_log_some(
    serve: Callable[..., Server], open_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    run = trainvitals.init(project="p", dir=tmp_path, agent=False)
    run.log({"loss": 1.0})
    run.finish()
    server, tab = serve(tmp_path), open_tab()
    tab.page.goto(f"{server.base}#/run/{Path(run.folder).name}/overview")
    tab.wait("document.querySelector('.health')")
    tab.go_by_key("m", "location.hash.endsWith('/media')")
    tab.wait("document.body.innerText.includes('No media logged yet')")


def test_what_cannot_be_drawn_leaves_a_note(
    serve: Callable[..., Server], open_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    run = trainvitals.init(project="p", dir=tmp_path, agent=False)
    run.log({"loss": 1.0})
    run.finish()
    kept = Media(Path(run.folder))
    kept.write("image", "broken", b"\x89PNG\r\n\x1a\n and no more", "png", step=1)
    kept.write("image", "script", b"<svg/>", "svg", step=1)
    server, tab = serve(tmp_path), open_tab()
    tab.page.goto(f"{server.base}#/run/{Path(run.folder).name}/media")
    tab.wait("document.body.innerText.split('This image cannot be shown').length === 3")


def test_a_live_run_shows_what_was_just_logged(
    serve: Callable[..., Server], open_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    run = trainvitals.init(project="p", dir=tmp_path, agent=False)
    run.log({"loss": 1.0}, step=0)
    server, tab = serve(tmp_path), open_tab()
    tab.page.goto(f"{server.base}#/run/{Path(run.folder).name}/media")
    tab.wait("document.body.innerText.includes('No media logged yet')")
    run.log_text("answer", "forty-two", step=1)
    run.log({"loss": 1.0}, step=1)
    tab.wait("document.body.innerText.includes('forty-two')")
    run.finish()
