"""How a project is shown, kept with its runs: the API with several writers, and the page in Chromium."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from waiting import PATIENCE, free_port, wait_until

from .conftest import HOSTILE, Server, Tab, make_run

Open = Callable[..., Tab]
PANEL = {"id": "a", "title": "Gap", "items": ["val/loss - loss"], "x": ""}


class Client:
    """The API of one project."""

    def __init__(self, server: Server, project: str = "p") -> None:
        self.address = f"{server.base}api/v1/projects/{quote(project, safe='')}/view"

    def get(self) -> httpx.Response:
        return httpx.get(self.address, timeout=PATIENCE)

    def put(self, tag: str | None = None, **view: Any) -> httpx.Response:
        headers = {"if-match": self.get().headers["etag"] if tag is None else tag}
        return httpx.put(self.address, json=view, headers=headers, timeout=PATIENCE)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_run(tmp_path, "one", steps=40)
    return tmp_path


def kept(place: Path) -> dict[str, Any]:
    path = place / "p" / "view.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def test_it_is_read_replaced_and_guarded_by_its_etag(serve: Callable[..., Server], place: Path) -> None:
    client = Client(serve(place, "--allow-edit"))
    first = client.get()
    assert first.json()["is_kept"] is False and first.json()["columns"] is None
    put = client.put(panels=[PANEL], pins=["loss"], columns=[])
    assert put.status_code == 200 and put.json() == client.get().json()
    assert put.headers["etag"] == client.get().headers["etag"]
    assert put.json()["panels"] == [PANEL] and put.json()["columns"] == [] and put.json()["is_kept"]
    late = client.put(first.headers["etag"], pins=["mine"])
    assert late.status_code == 412 and "changed meanwhile" in late.json()["error"]["message"]
    assert kept(place)["pins"] == ["loss"]
    assert client.put(log=["Loss"]).json()["pins"] == [], "what is missing is empty"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"panels": 3}, "must be a list"),
        ({"panels": [3]}, "not a JSON object"),
        ({"panels": [{"id": "a"}]}, "'items' is missing"),
        ({"panels": [{**PANEL, "html": "<b>"}]}, "unknown field 'html'"),
        ({"panels": [{**PANEL, "id": ""}]}, "'id' is empty"),
        ({"panels": [{**PANEL, "title": "x" * 201}]}, "longer than 200"),
        ({"panels": [{**PANEL, "items": ["x"] * 101}]}, "at most 100"),
        ({"panels": [{**PANEL, "id": str(at)} for at in range(101)]}, "at most 100"),
        ({"pins": ["x" * 501]}, "longer than 500"),
        ({"pins": ["x" * 400] * 400}, "larger than"),
        ({"order": []}, "unknown field 'order'"),
    ],
)
@pytest.mark.promise("a view of a project that is too large or not one", "400 with the reason; no file changes")
def test_what_is_no_view_is_refused(serve: Callable[..., Server], place: Path, body: dict[str, Any], why: str) -> None:
    client = Client(serve(place, "--allow-edit"))
    answer = client.put(**body)
    assert answer.status_code == 400 and why in answer.json()["error"]["message"], answer.text
    assert httpx.put(client.address, json={}, timeout=PATIENCE).status_code == 400, "without If-Match"
    assert kept(place) == {}


def test_two_panels_of_one_id_are_a_conflict(serve: Callable[..., Server], place: Path) -> None:
    answer = Client(serve(place, "--allow-edit")).put(panels=[PANEL, PANEL])
    assert answer.status_code == 409 and "same id" in answer.json()["error"]["message"]


def test_a_read_only_server_shows_and_does_not_write(serve: Callable[..., Server], place: Path) -> None:
    (place / "p" / "view.json").write_text(json.dumps({"format": 1, "pins": ["loss"]}))
    client = Client(serve(place))
    assert client.get().json()["pins"] == ["loss"]
    answer = client.put(pins=[])
    assert answer.status_code == 403 and "--allow-edit" in answer.json()["error"]["hint"]


@pytest.mark.parametrize("name", ["../other", "..", "nothing", "/etc", "p/../p", "x" * 400, "p\0"])
@pytest.mark.promise("a view of a project named like a path", "refused; nothing is read or written there")
def test_only_projects_with_runs_have_one(serve: Callable[..., Server], place: Path, name: str) -> None:
    before = sorted(place.rglob("*"))
    client = Client(serve(place, "--allow-edit"), name)
    assert client.get().status_code in (400, 404)
    assert client.put('"x"', pins=["loss"]).status_code in (400, 404)
    assert sorted(place.rglob("*")) == before


def test_a_project_with_a_hostile_name_has_one(serve: Callable[..., Server], tmp_path: Path) -> None:
    make_run(tmp_path, "one", steps=2, project=HOSTILE)
    client = Client(serve(tmp_path, "--allow-edit"), HOSTILE)
    assert client.put(pins=["loss"]).json()["project"] == HOSTILE
    assert [path.name for path in tmp_path.glob("*/view.json")] == ["view.json"]


def test_a_project_whose_runs_lie_elsewhere_has_one(serve: Callable[..., Server], place: Path) -> None:
    (place / "p").rename(place / "moved")
    client = Client(serve(place, "--allow-edit"))
    assert client.get().status_code == 200
    assert client.put(pins=["loss"]).status_code == 200 and kept(place)["pins"] == ["loss"]


def test_a_damaged_one_is_reported_and_stays(serve: Callable[..., Server], open_tab: Open, place: Path) -> None:
    (place / "p" / "view.json").write_text('{"pins": ')
    server, tab = serve(place, "--allow-edit"), open_tab()
    client = Client(server)
    assert "cannot read" in client.get().json()["problem"] and client.get().json()["pins"] == []
    answer = client.put(pins=["loss"])
    assert answer.status_code == 409 and "view.json" in answer.json()["error"]["message"]
    tab.page.goto(training(server, place))
    tab.page.get_by_label("pin loss", exact=True).first.click()
    tab.wait("document.querySelector('.kept-problem')?.innerText.includes('view.json')")
    tab.wait("document.body.innerText.includes('saved in this browser only')")
    assert (place / "p" / "view.json").read_text() == '{"pins": '


# -- the page


def training(server: Server, place: Path, query: str = "") -> str:
    return f"{server.base}#/run/{quote(next(place.glob('*/*/run.json')).parent.name)}/training{query}"


def pins(tab: Tab) -> Any:
    """What is drawn as pinned, at the top: what nobody has scrolled to is not drawn."""
    tab.page.evaluate("scrollTo(0, 0)")
    code = "[...document.querySelectorAll('.section')].find((item) => item.querySelector('h2')?.innerText === 'Pinned')"
    return tab.page.evaluate(f"[...({code})?.querySelectorAll('.chart') ?? []].map((item) => item.dataset.chart)")


IS_LOG = "document.querySelector('[data-chart=epoch] button[title=\"logarithmic axis\"]')?.ariaPressed"
HEADS = "[...document.querySelectorAll('table.runs th')].map((one) => one.innerText)"


def test_everybody_sees_what_one_has_changed(serve: Callable[..., Server], open_tab: Open, place: Path) -> None:
    server, tab = serve(place, "--allow-edit"), open_tab()
    tab.page.goto(training(server, place))
    tab.page.get_by_label("pin accuracy", exact=True).first.click()
    tab.page.get_by_label("pin epoch", exact=True).first.click()
    wait_until(lambda: kept(place).get("pins") == ["accuracy", "epoch"])
    tab.wait("document.body.innerText.includes('saved with the runs of p')")
    wait_until(lambda: pins(tab) == ["Accuracy", "epoch"])
    tab.page.get_by_label("move epoch forward").click()
    wait_until(lambda: kept(place)["pins"] == ["epoch", "accuracy"])
    tab.page.locator("[data-chart=epoch]").first.get_by_role("button", name="log").click()
    wait_until(lambda: kept(place).get("log") == ["epoch"])
    tab.page.get_by_role("button", name="add panel").click()
    tab.page.get_by_label("metrics and expressions").fill("loss\nval/loss")
    tab.page.get_by_role("textbox", name="title").fill("Both")
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("!document.querySelector('.panel-form')")
    tab.page.locator("[data-chart=Both] .legend button", has_text="val/loss").click()
    wait_until(lambda: kept(place).get("hide") == ["Both: val/loss"])
    assert [panel["title"] for panel in kept(place)["panels"]] == ["Both"]

    other = open_tab()
    other.page.goto(training(server, place))
    wait_until(lambda: pins(other) == ["epoch", "Accuracy"])
    other.wait(
        "document.querySelector('[data-chart=epoch] button[title=\"logarithmic axis\"]')?.ariaPressed === 'true'"
    )
    other.wait("document.querySelectorAll('[data-chart=Both] .legend .off').length === 1")
    # The address comes first: of the scale, and of the pins.
    other.page.goto(training(server, place, "?linear=epoch&pin=loss&pin=epoch"))
    wait_until(lambda: pins(other) == ["Loss", "epoch"])
    other.wait(
        "document.querySelector('[data-chart=epoch] button[title=\"logarithmic axis\"]')?.ariaPressed === 'false'"
    )


def test_two_people_edit_at_once_and_both_are_kept(serve: Callable[..., Server], open_tab: Open, place: Path) -> None:
    server = serve(place, "--allow-edit")
    Client(server).put(panels=[PANEL])
    tab = open_tab()
    tab.page.goto(training(server, place))
    tab.page.get_by_label("edit Gap").click()
    # Another panel and a pin of somebody else: no conflict.
    Client(server).put(panels=[PANEL, {**PANEL, "id": "b", "title": "Theirs"}], pins=["loss"])
    tab.page.get_by_role("textbox", name="title").fill("Mine")
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("!document.querySelector('.panel-form') && document.querySelector('[data-chart=Theirs]')")
    assert [panel["title"] for panel in kept(place)["panels"]] == ["Mine", "Theirs"] and kept(place)["pins"] == ["loss"]
    # The same panel: said, and replaced only by who has seen that.
    tab.page.get_by_label("edit Mine").click()
    view = Client(server).get().json()
    Client(server).put(panels=[{**view["panels"][0], "title": "Changed"}, view["panels"][1]])
    tab.page.get_by_role("textbox", name="title").fill("Again")
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("document.querySelector('.panel-form .problem')?.innerText.includes('someone else has changed Changed')")
    assert [panel["title"] for panel in kept(place)["panels"]] == ["Changed", "Theirs"]
    tab.page.get_by_role("button", name="save", exact=True).click()
    tab.wait("!document.querySelector('.panel-form')")
    assert [panel["title"] for panel in kept(place)["panels"]] == ["Again", "Theirs"]


@pytest.mark.parametrize("is_alone", [False, True], ids=["chosen", "the only one"])
def test_columns_of_a_project_are_kept_with_it(
    serve: Callable[..., Server], open_tab: Open, place: Path, is_alone: bool
) -> None:
    if not is_alone:
        make_run(place, "two", steps=3, project="other")
    address = "#/runs" if is_alone else "#/runs?project=p"
    server, tab = serve(place, "--allow-edit"), open_tab()
    tab.page.goto(f"{server.base}{address}")
    tab.wait(f"{HEADS}.includes('loss') && !{HEADS}.includes('lr')")
    tab.page.get_by_text("columns", exact=True).click()
    tab.page.locator(".menu-name", has_text="lr").click()
    wait_until(lambda: "config.lr" in (kept(place).get("columns") or ()))
    assert "summary.loss" in kept(place)["columns"]
    tab.wait("location.hash.includes('column=config.lr')")
    other = open_tab()
    other.page.goto(f"{server.base}{address}")
    other.wait(f"{HEADS}.includes('lr')")


def test_without_allow_edit_it_stays_in_the_browser_and_goes_along_later(
    serve: Callable[..., Server], open_tab: Open, place: Path
) -> None:
    port = free_port()  # none that the kernel gives to others while nobody listens on it
    server, tab = serve(place, port=port), open_tab()
    tab.page.goto(training(server, place))
    tab.page.get_by_label("pin accuracy", exact=True).first.click()
    tab.wait("document.body.innerText.includes('saved in this browser only')")
    tab.page.goto(training(server, place))
    wait_until(lambda: pins(tab) == ["Accuracy"])
    assert kept(place) == {}
    server.stop()
    again = serve(place, "--allow-edit", port=port)
    tab.page.goto("about:blank")
    tab.page.goto(training(again, place))
    wait_until(lambda: pins(tab) == ["Accuracy"])
    tab.page.get_by_label("pin loss", exact=True).first.click()
    wait_until(lambda: kept(place).get("pins") == ["accuracy", "loss"])


def test_nothing_in_it_becomes_markup(serve: Callable[..., Server], open_tab: Open, place: Path) -> None:
    server, tab = serve(place, "--allow-edit"), open_tab()
    hostile = [{"id": HOSTILE[:40], "title": HOSTILE, "items": [HOSTILE, "((((", "__proto__"], "x": ""}]
    assert Client(server).put(panels=hostile, pins=[HOSTILE, "__proto__"], hide=[f"{HOSTILE}: x"]).status_code == 200
    tab.page.goto(training(server, place))
    tab.wait("document.querySelector('.panel-place .problem')?.innerText.includes('((((')")
    assert "owned" not in tab.page.title()
    assert tab.page.evaluate("document.querySelectorAll('#main img').length") == 0
