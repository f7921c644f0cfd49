"""Text from anywhere, where it is shown."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trainvitals.safe_text import csv_cell, json_text, one_line


def test_text_from_anywhere_cannot_move_the_cursor_or_turn_the_line_around() -> None:
    hostile = "a\x1b[2Jb\nc\u202ed\u200be\x07\ud800f"
    clean = one_line(hostile)
    assert clean == "a·[2Jb c·de··f"
    assert one_line("שלום") == "שלום", "letters stay as they are"


@given(st.text())
def test_any_text_becomes_one_harmless_line(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


@given(st.text(st.characters(codec="utf-8")))
def test_json_for_a_terminal_has_the_same_content_and_is_harmless(text: str) -> None:
    shown = json_text(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]} and shown.isprintable()


def test_a_cell_that_looks_like_a_formula_is_text_in_a_spreadsheet() -> None:
    assert [csv_cell(text) for text in ("=1+1", "@x", "-1", "loss", "")] == ["'=1+1", "'@x", "'-1", "loss", ""]
