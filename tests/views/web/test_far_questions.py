"""A server that other machines ask, and a server that asks: the page shows the runs and the hardware of all."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, wait_until

from trainvitals.errors import MachineError
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.lab import messages
from trainvitals.lab.channels import HttpChannel
from trainvitals.lab.messages import Message

from .conftest import Server, Tab, make_run

Serve = Callable[..., Server]


def ask_server(method: str, address: str, **more: Any) -> httpx.Response:
    return httpx.request(method, address, timeout=PATIENCE, **more)


def answer_of(address: str) -> httpx.Response | None:
    """None while the machine that is asked takes so long that it is called slow."""
    answer = ask_server("get", address)
    return answer if answer.status_code != 503 else None


def read(channel: HttpChannel, asked: str, **more: Any) -> Message:
    return channel.ask({"ask": asked, **more}, 600)


def test_who_has_the_token_is_answered_and_nobody_else(
    root: Path, keys: list[str], serve: Serve, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("correct-horse-battery\n")
    server = serve(root, "--token-file", str(token))
    address = server.base.rstrip("/")
    channel = HttpChannel(address, "correct-horse-battery")
    assert read(channel, "hello").json["protocol"] == messages.PROTOCOL
    assert read(channel, "list", fresh=True).json["order"] == FolderRuns(root).list_keys()
    assert read(channel, "list").json["changed"] == [], "it remembers what it told"
    assert read(HttpChannel(address, "correct-horse-battery"), "list").json["changed"], "everybody is told all"
    for wrong in ("", "wrong-token"):
        with pytest.raises(MachineError, match="rejected the token"):
            read(HttpChannel(address, wrong), "hello")


def test_what_is_no_question_is_refused(root: Path, serve: Serve) -> None:
    address = f"{serve(root).base}api/v1/reader"
    assert ask_server("post", address, content=b"junk").status_code == 400
    assert ask_server("post", address, content=b"x" * 100_000).status_code == 413
    assert ask_server("get", address).status_code == 405
    evil = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert (
        ask_server("post", address, content=messages.encode(Message({"ask": "hello"})), headers=evil).status_code == 403
    )


def test_a_server_shows_the_runs_and_machines_of_others(
    root: Path, keys: list[str], serve: Serve, open_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    far = serve(root)
    other = tmp_path / "runs"
    make_run(other, "elsewhere")
    name = f"127.0.0.1:{far.port}"
    near = serve(other, "--host", far.base.rstrip("/"), "--host", "local", "--host", "http://127.0.0.1:1")
    api = f"{near.base}api/v1"

    def states() -> dict[str, str]:
        return {item["name"]: item["state"] for item in ask_server("get", f"{api}/machines").json()["machines"]}

    wait_until(lambda: states() == {name: "up", "local": "up", "127.0.0.1:1": "down"}, lambda: str(states()))
    wait_until(lambda: ask_server("get", f"{api}/runs").json()["total"] == len(keys) + 1, "all runs")
    assert ask_server("get", f"{api}/about").json()["machines"] == [name, "local", "127.0.0.1:1"]
    for key in keys:
        for question in ("", "/series?name=loss", "/events", "/alerts", "/diagnosis"):
            mine, theirs = (
                wait_until(functools.partial(answer_of, f"{base}api/v1/runs/{prefix}{key}{question}")).json()
                for base, prefix in ((near.base, f"{name}:"), (far.base, ""))
            )
            assert plain(mine) == plain(theirs), question
    with pytest.raises(MachineError, match="shows other machines itself"):
        read(HttpChannel(near.base.rstrip("/"), ""), "hello")
    assert ask_server("delete", f"{api}/runs/{name}:{keys[0]}").status_code == 403

    tab = open_tab()
    page = tab.page
    page.goto(f"{near.base}#/machines")
    page.get_by_role("heading", name="Machines").wait_for()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    page.get_by_role("alert").filter(has_text="Connection refused").wait_for()
    page.get_by_role("link", name=f"{len(keys)} runs").click()
    page.get_by_role("status").filter(has_text="127.0.0.1:1 is down").wait_for()
    page.locator("tbody tr").filter(has_text=name).first.wait_for()
    assert page.locator("tbody tr").filter(has_text="elsewhere").count() == 0, "of the other machine"
    for question, names in (("runs", "runs"), ("curves", "lines"), ("sweep", "runs")):
        found = ask_server("get", f"{api}/{question}", params={"machine": name}).json()
        assert len(found[names]) == len(keys) and name in str(found) and "local:" not in str(found[names]), question
    page.get_by_role("button", name="Charts").click()
    page.locator(".lines li").nth(len(keys) - 1).wait_for()
    assert page.locator(".lines li").filter(has_text="elsewhere").count() == 0
    page.get_by_role("button", name="Sweep").click()
    page.locator(".sweep-halves").wait_for()
    asked = [httpx.URL(url).params.get("machine") for url in tab.requests if "/sweep?" in url]
    assert set(asked) == {name}
    page.get_by_role("button", name="Table").click()
    page.get_by_role("link", name="baseline", exact=True).click()
    page.locator(".chart canvas").first.wait_for()

    far.stop()
    wait_until(lambda: states()[name] == "down", "it to be noticed")
    answer = ask_server("get", f"{api}/runs/{name}:{keys[0]}/events")
    assert answer.status_code == 503 and "is down" in answer.json()["error"]["message"]
    assert ask_server("get", f"{api}/runs").json()["total"] == len(keys) + 1, "what is known stays"
    assert ask_server("get", f"{api}/runs/local:{elsewhere(api)}").status_code == 200


def elsewhere(api: str) -> str:
    rows = ask_server("get", f"{api}/runs").json()["runs"]
    return next(row["key"].removeprefix("local:") for row in rows if row["name"] == "elsewhere")


def plain(value: Any) -> Any:
    """Without what names the machine."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in ("key", "folder", "now", "seconds")}
    return [plain(item) for item in value] if isinstance(value, list) else json.dumps(value)
