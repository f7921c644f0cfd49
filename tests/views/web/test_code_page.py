"""The code of a run in a browser: its git patch on the overview, and what differs between runs on Compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.patches import write_patch
from trainvitals.journal.reader import RunReader
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report

from .conftest import HOSTILE, Server, Tab, make_run

Open = Callable[..., Tab]
COMMITS = ("0123456789abcdef" * 3)[:40], ("fedcba9876543210" * 3)[:40]
PATCH = f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-lr = 1\n+lr = 2\n {HOSTILE}\n".encode()


def find(root: Path, key: str) -> Path:
    return next(root.glob(f"*/{key}"))


def change(root: Path, key: str, **about: Any) -> None:
    folder = find(root, key)
    run_folder.write_run(folder, replace(run_folder.read_run(folder), **about))


def section(tab: Tab, title: str) -> Any:
    return tab.page.locator("section.section").filter(has=tab.page.get_by_role("heading", name=title, exact=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_patch_unfolds_on_the_overview(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path, theme: str
) -> None:
    key = make_run(tmp_path, "changed", steps=3)
    write_patch(find(tmp_path, key), PatchFile(commit=COMMITS[0]), PATCH + b"+password = 'hunter22'\n", ["new.py"])
    tab = open_tab(theme=theme)
    tab.page.goto(f"{serve(tmp_path).base}#/run/{key}/overview")
    shown = section(tab, "Uncommitted changes")
    shown.get_by_role("button", name="Uncommitted changes").click()
    tab.wait("document.querySelector('pre.patch') !== null")
    lines = {name: shown.locator(f"pre.patch .{name}") for name in ("added", "removed", "hunk")}
    assert lines["added"].all_inner_texts() == ["+lr = 2\n", "+password = '[redacted]'\n"]
    assert lines["removed"].all_inner_texts() == ["-lr = 1\n"]
    colors = [line.first.evaluate("(line) => getComputedStyle(line).color") for line in lines.values()]
    assert len(set(colors)) == 3
    said = shown.inner_text()
    assert "+2 -1 in 1 file" in said and "redacted in 1 line" in said and "not in the patch: new.py" in said
    assert f"commit {COMMITS[0][:10]}:" in said and f"runs show {key} --patch | git apply" in said
    assert HOSTILE in said
    shown.get_by_role("button", name="Uncommitted changes").click()
    tab.wait("document.querySelector('pre.patch') === null")


def test_a_patch_that_was_not_kept_is_said(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    key, other = make_run(tmp_path, "large", steps=3), make_run(tmp_path, "without", steps=3)
    write_patch(find(tmp_path, key), PatchFile(missing="too_large", limit_kb=256))
    server = serve(tmp_path)
    tab = open_tab()
    tab.page.goto(f"{server.base}#/run/{key}/overview")
    assert "patch not kept: larger than 256 KB" in section(tab, "Uncommitted changes").inner_text()
    tab.page.goto(f"{server.base}#/run/{other}/overview")
    tab.wait("document.querySelector('h1')?.innerText.includes('without') && document.querySelector('.details')")
    assert section(tab, "Uncommitted changes").count() == 0


def test_a_report_has_the_patch(open_tab: Open, tmp_path: Path) -> None:
    key = make_run(tmp_path, "changed", steps=3)
    write_patch(find(tmp_path, key), PatchFile(commit=COMMITS[0]), PATCH)
    report = tmp_path / "report.html"
    runs = [(key, RunReader(find(tmp_path, key)))]
    report.write_bytes(draw_report(runs, "html", resolve({}, environ={}, folder=Path("/"))))
    tab = open_tab()
    tab.page.goto(report.as_uri())
    tab.page.get_by_role("button", name="Uncommitted changes").click()
    tab.wait("document.querySelector('pre.patch .added')?.textContent === '+lr = 2\\n'")


def test_compare_shows_what_else_differs(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    keys = [make_run(tmp_path, name, steps=20) for name in ("one", "two")]
    for place, key in enumerate(keys):
        change(
            tmp_path,
            key,
            git={"commit": COMMITS[place], "branch": "main", "dirty": True},
            command=f"python train.py --wide {place}",
            packages={"numpy": "2.0", "torch": f"2.{place}"},
            host={"name": f"node-{place}"},
        )
        write_patch(find(tmp_path, key), PatchFile(), PATCH + b"+more\n" * place)
    tab = open_tab()
    tab.page.goto(f"{serve(tmp_path).base}#/compare?run={keys[0]}&run={keys[1]}")

    def rows(title: str) -> list[list[str]]:
        found = section(tab, title).locator("tbody tr")
        found.first.wait_for()
        return [found.nth(at).locator("th, td").all_inner_texts() for at in range(found.count())]

    code = {row[0]: row[1:] for row in rows("Code differences")}
    assert code["commit"] == [commit[:10] for commit in COMMITS]
    assert [text.split(" (")[0] for text in code["patch"]] == ["+1 -1 in 1 file", "+2 -1 in 1 file"]
    assert set(code) == {"commit", "patch"}
    hints = (
        section(tab, "Code differences").locator("[title]").evaluate_all("(cells) => cells.map((cell) => cell.title)")
    )
    assert set(COMMITS) <= set(hints)
    assert rows("Command differences") == [["command", "python train.py --wide 0", "python train.py --wide 1"]]
    assert rows("Package differences") == [["torch", "2.0", "2.1"]]
    assert rows("Machine differences") == [["host", "node-0", "node-1"]]
    assert section(tab, "Environment differences").count() == 0
