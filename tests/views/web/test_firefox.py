"""Every page in Debian's Firefox: drawn, without an error, read and zoomed with the mouse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from made_fleet import make_fleet
from waiting import wait_until

from .conftest import Server
from .firefox import Firefox
from .made_pages import PAGES, MadePages, make_pages

# How many canvases have something else on them than one color.
DRAWN = """[...document.querySelectorAll('canvas')].filter((canvas) => {
  if (!canvas.width || !canvas.height) return false;
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return data.some((value, at) => value !== data[at % 4]);
}).length"""
BOX = "document.querySelector('[data-chart=Loss] .u-over').getBoundingClientRect()"


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    made = Firefox(tmp_path_factory.mktemp("firefox"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadePages:
    return make_pages(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def base(made: MadePages) -> Iterator[str]:
    server = Server(made.root)
    yield server.base
    server.stop()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn(made: MadePages, base: str, firefox: Firefox, name: str) -> None:
    page = PAGES[name]
    firefox.open(made.find(page, base))
    firefox.wait(f"document.querySelector({json.dumps(page.until)}) !== null")
    if page.press:
        firefox.evaluate(f"document.querySelector({json.dumps(page.press)}).click()")
    if "canvas" in page.until and "svg" not in page.until:
        firefox.wait(DRAWN)
    assert firefox.problems == []


@pytest.mark.parametrize(
    ("address", "until"),
    [
        ("#/fleet", ".racks .node"),
        ("#/fleet?view=use", ".facts + div table"),
        ("#/fleet?view=faults", ".faulty table"),
        ("#/machines", ".machine-state.critical"),
    ],
)
def test_the_pages_of_a_fleet_are_drawn(fleet_base: str, firefox: Firefox, address: str, until: str) -> None:
    firefox.open(f"{fleet_base}{address}")
    firefox.wait(f"document.querySelector({json.dumps(until)}) !== null")
    assert firefox.problems == []


@pytest.fixture(scope="module")
def fleet_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("fleet")
    # What was heard in an hour from now is fresh, however long this takes.
    make_fleet(root, 3, time.time() + 3600)
    server = Server(root, "--host", "local", "--host", "http://127.0.0.1:1")
    yield server.base
    server.stop()


def test_a_chart_is_read_and_zoomed_with_the_mouse(server: Server, keys: list[str], firefox: Firefox) -> None:
    firefox.open(f"{server.base}#/run/{keys[0]}/training")
    firefox.wait(f"{DRAWN} > 0 && document.querySelector('[data-chart=Loss] .u-over') !== null")
    place = {}

    def is_read() -> bool:
        # Looked up anew each time: what is drawn above it later moves it.
        place.update(firefox.wait(BOX))
        firefox.move(place["x"] + place["width"] * 0.5, place["y"] + place["height"] / 2)
        tip = firefox.evaluate("document.querySelector('[data-chart=Loss] .tip').innerText")
        return (tip or "").startswith("step ")

    wait_until(is_read, "the values under the mouse")
    middle = place["y"] + place["height"] / 2
    firefox.drag(place["x"] + place["width"] * 0.25, middle, place["x"] + place["width"] * 0.5)
    firefox.wait("location.hash.includes('zx=step')")
    assert firefox.problems == []
