"""The screen as SVG at three widths, against pictures that a person has looked at.

`UPDATE_PICTURES=1 pytest tests/views/tui/test_pictures.py` makes them anew: look at them before you commit.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE

from trainvitals.views.tui.app import TopApp
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.palette import BY_NAME

GOLDEN = Path(__file__).parent / "golden"
PICTURES = [
    ("overview-60", (60, 20), (), "dark"),
    ("overview-80", (80, 24), (), "dark"),
    ("overview-160", (160, 45), (), "dark"),
    ("charts-120", (120, 34), ("2",), "light"),
    ("ranks-100", (100, 20), ("4",), "terminal"),
]


def take_picture(feed: Feed, size: tuple[int, int], keys: tuple[str, ...], theme: str) -> str:
    app = TopApp(feed, palette=BY_NAME[theme])

    async def run() -> str:
        async with app.run_test(size=size) as pilot:
            deadline = time.monotonic() + PATIENCE
            await pilot.press(*keys)
            while app.snapshot.waiting or feed.request.page != app.view.page or not _settled(app):
                assert time.monotonic() < deadline
                await pilot.pause(0.02)
            app.draw()
            await pilot.pause()
            return app.export_screenshot()

    return asyncio.run(run())


def _settled(app: TopApp) -> bool:
    """Whether the feed has read what this size shows."""
    wanted = min(app.feed.request.charts, len(app.snapshot.panels))
    return len(app.snapshot.charts) == wanted


def content(svg: str) -> list[tuple[str, str, str, str]]:
    """What is to be seen: (y, x, colour, text) of every text, and every coloured field behind it."""
    colours = dict(re.findall(r"\.[\w-]+-(r\d+) \{ fill: ([^;}]+)", svg))
    texts = re.findall(r'<text class="[\w-]+-(r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg)
    seen = [(y, x, colours.get(style, ""), html.unescape(text)) for style, x, y, text in texts]
    fields = re.findall(r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', svg)
    return seen + [(y, x, colour, f"field {width}") for colour, x, y, width in fields]


@pytest.mark.parametrize(("name", "size", "keys", "theme"), PICTURES, ids=[row[0] for row in PICTURES])
def test_the_screen_looks_as_it_did(
    name: str,
    size: tuple[int, int],
    keys: tuple[str, ...],
    theme: str,
    make_feed: Callable[..., Feed],
    folder: Path,
) -> None:
    picture = take_picture(make_feed(run=folder), size, keys, theme)
    golden = GOLDEN / f"{name}.svg"
    if os.environ.get("UPDATE_PICTURES"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(picture)
    assert len(content(picture)) > size[1], "the picture could be read"
    assert content(picture) == content(golden.read_text())
