"""Every page in Debian's Firefox: drawn, without an error, read and zoomed with the mouse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_sweep import make_sweep
from waiting import wait_until

from .conftest import Server
from .firefox import Firefox

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


@pytest.mark.parametrize(
    ("address", "drawn"),
    [
        ("#/runs", "document.querySelectorAll('table.runs tbody tr').length === 3"),
        ("#/run/RUN/overview", DRAWN),
        ("#/run/RUN/findings", "document.querySelector('.findings > li') !== null"),
        ("#/run/RUN/training", DRAWN),
        ("#/run/RUN/system", DRAWN),
        ("#/run/RUN/alerts", "document.querySelector('main table') !== null"),
        ("#/run/RUN/logs", "document.querySelector('main table') !== null"),
        ("#/run/RUN/export", "document.querySelector('main pre') !== null"),
        ("#/compare?run=RUN&run=OTHER", DRAWN),
    ],
)
def test_every_page_is_drawn(server: Server, keys: list[str], firefox: Firefox, address: str, drawn: str) -> None:
    firefox.open(server.base + address.replace("RUN", keys[0]).replace("OTHER", keys[1]))
    firefox.wait(drawn)
    assert firefox.problems == []


def test_a_sweep_is_drawn(tmp_path: Path, serve: Callable[..., Server], firefox: Firefox) -> None:
    make_sweep(tmp_path, 12, steps=20)
    base = serve(tmp_path).base
    for view in ("charts", "sweep"):
        firefox.open(f"{base}#/runs?view={view}")
        firefox.wait(DRAWN)
    assert firefox.problems == []


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
