"""Panels of the user, axes of any metric, and a zoom that reaches every axis, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from made_runs import make_timed_run
from waiting import wait_until

import trainvitals
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report

from .conftest import Server, Tab, make_run, write_hardware

Open = Callable[..., Tab]
ITEMS = "metrics and expressions"


def link(server: Server, key: str, page: str, query: str = "") -> str:
    return f"{server.base}#/run/{quote(key)}/{page}{query}"


def legend_of(title: str) -> str:
    lines = f"document.querySelectorAll('[data-chart=\"{title}\"] .legend span')"
    return f"[...{lines}].map((item) => item.innerText).join('|')"


def test_a_panel_is_made_kept_changed_and_removed(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.page.get_by_role("button", name="add panel").click()
    tab.page.get_by_role("textbox", name="title").fill("Gap")
    tab.page.get_by_label(ITEMS).fill("loss -")
    tab.wait("document.querySelector('.panel-form .problem')?.innerText.includes('at character 7')")
    tab.page.get_by_label(ITEMS).fill("loss\nval/*\nval/loss - loss\nloss/2")
    tab.wait(f"{legend_of('Gap')} === 'loss|val/loss|val/loss - loss'")
    tab.wait("document.querySelector('.panel-form .note')?.innerText.includes('to divide, put spaces')")
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("!document.querySelector('.panel-form')")
    tab.page.reload()
    tab.wait(f"{legend_of('Gap')} === 'loss|val/loss|val/loss - loss'")
    tab.page.goto(link(server, keys[1], "training"))
    tab.wait(f"{legend_of('Gap')} === 'loss|val/loss|val/loss - loss'")

    tab.page.get_by_label("edit Gap").click()
    tab.page.get_by_label(ITEMS).fill("val/loss - loss")
    tab.page.locator(".panel-form select").select_option("epoch")
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("document.querySelector('[data-chart=Gap] .axis')?.innerText === 'by epoch'")
    tab.page.get_by_label("edit Gap").click()
    tab.page.get_by_role("button", name="remove").click()
    tab.wait("!document.querySelector('[data-chart=Gap]') && document.querySelector('.own-none')")


def test_escape_leaves_a_panel_as_it_was(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.page.get_by_role("button", name="add panel").click()
    tab.page.get_by_label(ITEMS).fill("loss")
    tab.page.keyboard.press("Escape")
    tab.wait("!document.querySelector('.panel-form') && document.querySelector('.own-none')")


def test_any_metric_is_an_axis(server: Server, open_tab: Open, keys: list[str]) -> None:
    tab = open_tab()
    tab.page.goto(link(server, keys[0], "training"))
    tab.page.get_by_label("x", exact=True).select_option("accuracy")
    tab.wait("document.querySelector('[data-chart=Loss] .axis')?.innerText === 'by accuracy'")


def test_a_zoom_by_step_moves_the_hardware_and_the_other_way_round(
    serve: Callable[..., Server], open_tab: Open, tmp_path: Path
) -> None:
    # A second for each step: of steps that were logged within a millisecond, none could be told from the others.
    reader, began = make_timed_run(tmp_path, {step: step - 100.0 for step in range(100)})
    write_hardware(reader.folder)
    server, tab = serve(tmp_path), open_tab()
    tab.page.goto(link(server, reader.folder.name, "system", "?zx=step&from=50&to=90"))
    wait_until(lambda: (round(began - 50, 3), round(began - 10, 3)) in zooms_of(tab, "gpu"))
    tab.page.goto(link(server, reader.folder.name, "training", f"?zx=time&from={began - 50}&to={began - 10}"))
    wait_until(lambda: (50, 90) in zooms_of(tab, "training"))
    charts = [request for request in tab.requests if "table=gpu" in request and "points=1000" in request]
    assert [request for request in charts if "start=" not in request] == [], "a chart was read whole, then zoomed"


def zooms_of(tab: Tab, table: str) -> list[tuple[float, float]]:
    """The ranges that series of a table were asked for."""
    tab.page.wait_for_timeout(50)  # the browser's messages are read while it waits
    queries = [parse_qs(urlsplit(request).query) for request in tab.requests if "/series?" in request]
    zoomed = [query for query in queries if query["table"] == [table] and "start" in query]
    return [(round(float(query["start"][0]), 3), round(float(query["end"][0]), 3)) for query in zoomed]


def test_a_live_panel_grows(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    run = trainvitals.init(project="p", name="live", dir=tmp_path, agent=False)
    run.log({"a": 1.0, "b": 3.0}, step=0)
    tab = open_tab()
    tab.page.goto(link(serve(tmp_path), Path(run.folder).name, "training"))
    tab.page.get_by_role("button", name="add panel").click()
    tab.page.get_by_label(ITEMS).fill("b - a")
    tab.page.get_by_role("button", name="save", exact=True).click()
    value = "document.querySelector('[data-chart=\"b - a\"] .plot')?.ariaLabel"
    tab.wait(f"{value}.startsWith('b - a: b - a 2.')")
    run.log({"a": 1.0, "b": 8.0}, step=1)
    tab.wait(f"{value}.startsWith('b - a: b - a 7.')")
    run.finish()


def test_own_panels_compare_runs_of_one_project(serve: Callable[..., Server], open_tab: Open, tmp_path: Path) -> None:
    keys = [make_run(tmp_path, name, steps=40, scale=scale) for name, scale in (("first", 1.0), ("second", 0.5))]
    view = {"format": 1, "panels": [{"id": "a", "title": "Gap", "items": ["val/loss - loss", "no/such"], "x": "epoch"}]}
    (tmp_path / "p" / "view.json").write_text(json.dumps(view))
    tab = open_tab(height=2400)
    tab.page.goto(f"{serve(tmp_path).base}#/compare?run={keys[0]}&run={keys[1]}")
    tab.wait(f"{legend_of('Gap')} === 'first|second'")
    assert tab.page.inner_text("[data-chart=Gap] .axis") == "by epoch"
    tab.wait("document.body.innerText.includes(\"second: no metric 'no/such'\")")


def test_a_report_has_the_panels_of_its_project(open_tab: Open, tmp_path: Path) -> None:
    folders = []
    for name, first in (("one", 1.0), ("two", 2.0)):
        run = trainvitals.init(project="p", name=name, dir=tmp_path / "runs", agent=False)
        for step in range(10):
            run.log({"a": first, "b": first + step}, step=step)
        run.finish()
        folders.append(Path(run.folder))
    panels = [{"id": "gap", "title": "Gap", "items": ["b - a", "a"]}, {"id": "none", "items": ["c"], "x": "b"}]
    (folders[0].parent / "view.json").write_text(json.dumps({"format": 1, "panels": panels, "pins": ["b"]}))
    report = tmp_path / "report.html"
    report.write_bytes(draw_report(name_runs(folders[:1]), "html", resolve({})))
    tab = open_tab()
    tab.page.goto(f"{report.as_uri()}#/run/{folders[0].name}/training")
    tab.wait("document.querySelector('[data-chart=Gap] .plot')?.ariaLabel.startsWith('Gap: b - a 9, a 1.')")
    tab.wait("document.body.innerText.includes(\"no metric 'c'\")")
    assert tab.page.get_by_role("button", name="add panel").count() == 0
    tab.page.get_by_label("x", exact=True).select_option("b")
    tab.wait("document.querySelector('[data-chart=Gap] .axis')?.innerText === 'by b'")

    report.write_bytes(draw_report(name_runs(folders), "html", resolve({})))
    tab.page.goto(f"{report.as_uri()}?#/compare")
    tab.wait("document.querySelector('[data-chart=Gap] .plot')?.ariaLabel.includes('one')")
