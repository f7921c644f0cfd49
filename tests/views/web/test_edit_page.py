"""Name, notes and tags, edited in a browser; notes as Markdown that stays text whatever is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainvitals.journal.edits import Edit, edit_run

from .conftest import HOSTILE, Server, Tab, make_run

Open = Callable[..., Tab]


def read(root: Path, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(root.glob(f"*/{key}/run.json")).read_text())
    return found


def test_name_notes_and_tags_are_edited_on_the_overview(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    key = make_run(tmp_path, "mine", steps=3)
    tab = open_tab()
    tab.page.goto(f"{serve(tmp_path, '--allow-edit').base}#/run/{key}/overview")
    tab.page.get_by_role("button", name="edit", exact=True).click()
    tab.page.get_by_label("name", exact=True).fill("renamed")
    tab.page.get_by_label("tags").fill("paper, final")
    tab.page.get_by_label("notes").fill("# Why\n\n- **warmup** was too short\n- see https://example.org/x")
    # Somebody else adds a tag meanwhile.
    edit_run(next(tmp_path.glob(f"*/{key}")), Edit(add_tags=("theirs",)))
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("document.querySelector('.markdown h3')?.innerText === 'Why'")
    assert tab.page.inner_text(".markdown li strong") == "warmup"
    link = tab.page.locator(".markdown a")
    assert link.get_attribute("href") == "https://example.org/x" and "noopener" in (link.get_attribute("rel") or "")
    tab.wait("document.querySelector('h1')?.innerText.includes('renamed')")
    found = read(tmp_path, key)
    assert (found["name"], sorted(found["tags"])) == ("renamed", ["final", "paper", "theirs"])
    tab.page.get_by_role("button", name="edit", exact=True).click()
    tab.page.get_by_label("name", exact=True).fill("thrown away")
    tab.page.keyboard.press("Escape")
    tab.wait("document.querySelector('form.edit') === null")
    assert read(tmp_path, key) == found


def test_runs_are_edited_and_tagged_in_the_table(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    first, second = (make_run(tmp_path, name, steps=2) for name in ("one", "two"))
    edit_run(next(tmp_path.glob(f"*/{first}")), Edit(add_tags=("old",)))
    tab = open_tab()
    tab.page.goto(f"{serve(tmp_path, '--allow-edit').base}#/runs")
    tab.page.get_by_label("select one").check()
    tab.page.get_by_role("button", name="edit", exact=True).click()
    tab.page.get_by_label("name", exact=True).fill("uno")
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("!document.querySelector('form.edit')")  # else the next one would stand beside it
    tab.page.get_by_label("select two").check()
    tab.page.get_by_role("button", name="tag", exact=True).click()
    tab.page.get_by_label("add tags").fill("new")
    tab.page.get_by_label("old").check()
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("document.querySelector('table.runs').innerText.split('new').length === 3")
    assert (read(tmp_path, first)["name"], read(tmp_path, first)["tags"]) == ("uno", ["new"])
    assert read(tmp_path, second)["tags"] == ["new"]


def test_hostile_notes_are_text(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    key = make_run(tmp_path, "mine", steps=2)
    link = "[x](javascript:document.title='owned')"
    notes = f"{HOSTILE}\n\n{link}\n\n`{HOSTILE}`\n\n```\n{HOSTILE}\n```\n\n| {HOSTILE} |\n|---|\n"
    edit_run(next(tmp_path.glob(f"*/{key}")), Edit(notes=notes, tags=(HOSTILE,)))
    tab = open_tab()
    tab.page.goto(f"{serve(tmp_path).base}#/run/{key}/overview")
    tab.wait("document.querySelector('.markdown pre') !== null")
    assert tab.page.inner_text(".markdown").count(HOSTILE) == 4
    assert tab.page.locator(".notes :is(img, script, a)").count() == 0
    assert "owned" not in tab.page.title()


def test_a_read_only_server_says_how_to_edit(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    key = make_run(tmp_path, "mine", steps=2)
    server = serve(tmp_path)
    tab = open_tab()
    for page in (f"run/{key}/overview", f"run/{key}/alerts", "runs"):
        tab.page.goto(f"{server.base}#/{page}")
        if page == "runs":
            tab.page.get_by_label("select mine").check()
        tab.wait("document.body.innerText.includes('trainvitals serve --allow-edit')")
        assert tab.page.get_by_role("button", name="edit", exact=True).count() == 0
