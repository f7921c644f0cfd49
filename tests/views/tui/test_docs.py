"""docs/top.md names every key and page. `UPDATE_DOCS=1 pytest tests/views/tui/test_docs.py` rewrites the keys."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trainvitals.views.tui.keys import KEYS
from trainvitals.views.tui.palette import PALETTES
from trainvitals.views.tui.view import MACHINES, PAGES

PAGE = Path(__file__).parents[3] / "docs" / "top.md"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->"


def draw_keys() -> str:
    lines = ["| key | where | what |", "|---|---|---|"]
    lines += [f"| `{key.shown}` | {key.where} | {key.help} |" for key in KEYS if key.shown]
    return "\n".join(lines) + "\n"


def test_every_key_is_documented_as_it_is() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    found, _, after = rest.partition(END)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(before + BEGIN + draw_keys() + END + after)
        found = draw_keys()
    assert found == draw_keys()


def test_every_page_and_theme_is_documented() -> None:
    text = PAGE.read_text()
    for number, (_, title) in enumerate((*PAGES, MACHINES), 1):
        assert f"| `{number}` | {title} |" in text
    for palette in PALETTES:
        assert f"`{palette.name}`" in text


def test_every_picture_is_there() -> None:
    for name in re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / name).read_text().startswith("<svg"), name
