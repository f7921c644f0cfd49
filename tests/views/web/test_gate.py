"""Who may come in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE, free_port

from trainvitals.views.web.gate import Door

from .conftest import Server, Tab


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "localhost:8080", "[::1]", "[::1]:80", "LOCALHOST", "127.1.2.3"]
)
def test_loopback_is_known_by_all_its_names(host: str) -> None:
    assert Door().knows(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "localhost@evil",
        "[::1",
        "a b",
        "x:y",
    ],
)
def test_no_other_name_is(host: str) -> None:
    assert not Door().knows(host)


def test_bound_to_all_addresses_any_address_is_known_but_no_name() -> None:
    door = Door("secret", frozenset({"node7"}), any_address=True)
    assert door.knows("10.0.0.5:8080") and door.knows("node7:8080") and not door.knows("evil.example")


@pytest.mark.promise("DNS rebinding against the page", "421, nothing is shown")
def test_a_rebound_name_is_refused_and_told_how_to_allow_it(server: Server) -> None:
    answer = httpx.get(server.base, headers={"host": "evil.example"}, timeout=PATIENCE)
    assert answer.status_code == 421
    assert "--allow-host evil.example" in answer.json()["error"]["hint"]


def test_an_allowed_name_is_answered(serve: Callable[..., Server], root: Path) -> None:
    server = serve(root, "--allow-host", "monitor.lab")
    assert httpx.get(f"{server.base}api/v1/about", headers={"host": "monitor.lab"}, timeout=PATIENCE).status_code == 200


@pytest.mark.promise("a page of another site posts to the dashboard (CSRF)", "403")
def test_another_site_may_not_change_anything(serve: Callable[..., Server], root: Path, keys: list[str]) -> None:
    server = serve(root, "--allow-edit")
    address = f"{server.base}api/v1/runs/{keys[0]}"
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert httpx.patch(address, json={"tags": ["x"]}, headers=headers, timeout=PATIENCE).status_code == 403
    assert httpx.patch(address, content="tags=x", timeout=PATIENCE).status_code == 400


@pytest.mark.promise("script injection", "every answer has a strict content security policy")
def test_every_answer_has_a_policy_and_none_allows_other_sites(server: Server) -> None:
    for path in ("", "app.js", "api/v1/about", "api/v1/nowhere", "api/v1/runs/x/stream"):
        headers = httpx.get(server.base + path, timeout=PATIENCE).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert "server" not in httpx.get(server.base, timeout=PATIENCE).headers


@pytest.mark.promise("no token, or a wrong one", "401 for every path")
def test_a_server_with_a_token_shows_nothing_without_it(
    serve: Callable[..., Server], root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery\n")
    server = serve(root, "--token-file", str(file))
    for path in ("", "app.js", "api/v1/runs", "api/v1/runs/latest/stream"):
        assert httpx.get(server.base + path, timeout=PATIENCE).status_code == 401
        assert (
            httpx.get(server.base + path, headers={"authorization": "Bearer wrong"}, timeout=PATIENCE).status_code
            == 401
        )
    assert httpx.get(f"{server.base}?token=wrong", timeout=PATIENCE).status_code == 401
    assert httpx.get(
        f"{server.base}api/v1/runs", headers={"authorization": "Bearer correct-horse-battery"}, timeout=PATIENCE
    ).is_success


@contextmanager
def enter(server: Server) -> Iterator[httpx.Client]:
    """A browser that has followed the printed link."""
    with httpx.Client(follow_redirects=True, timeout=PATIENCE) as client:
        assert client.get(server.url).status_code == 200
        yield client


def make_link(server: Server, *flags: str) -> str:
    """Another link, from another process of the same user."""
    command = [sys.executable, "-m", "trainvitals", "serve", "--link", "--port", str(server.port), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd="/")
    return done.stdout.removeprefix("dashboard: ").strip()


@pytest.fixture
def guarded(serve: Callable[..., Server], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server as everybody gets it."""
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    # A restart needs a port that the kernel gives to nobody else meanwhile.
    return serve(root, "--allow-edit", asks_for_token=True, port=free_port())


@pytest.mark.promise("another user of the machine connects to the page", "401 for every path")
def test_nobody_on_this_machine_sees_or_changes_anything_without_the_link(guarded: Server, keys: list[str]) -> None:
    for path in ("", "app.js", "api/v1/runs", f"api/v1/runs/{keys[0]}/stream", "favicon.svg"):
        assert httpx.get(guarded.base + path, timeout=PATIENCE).status_code == 401
    edited = httpx.patch(f"{guarded.base}api/v1/runs/{keys[0]}", json={"tags": ["x"]}, timeout=PATIENCE)
    assert edited.status_code == 401


def test_the_link_lets_one_browser_in_with_a_cookie_that_scripts_cannot_read(guarded: Server) -> None:
    first = httpx.get(guarded.url, timeout=PATIENCE)
    assert first.status_code == 303 and first.headers["location"] == "./"
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"trainvitals_{guarded.port}=") and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    name, _, value = cookie.partition(";")[0].partition("=")
    for path in ("", "api/v1/runs"):
        assert httpx.get(guarded.base + path, cookies={name: value}, timeout=PATIENCE).status_code == 200
        wrong = value[:-1] + ("0" if value[-1] != "0" else "1")
        assert httpx.get(guarded.base + path, cookies={name: wrong}, timeout=PATIENCE).status_code == 401


@pytest.mark.promise("a link to the page is used twice", "the second use is refused, with the command for another")
def test_a_second_use_of_a_link_is_refused_with_a_page_that_tells_how_to_get_another(guarded: Server) -> None:
    with enter(guarded) as inside:
        again = httpx.get(guarded.url, headers={"accept": "text/html"}, timeout=PATIENCE)
        assert again.status_code == 401 and "set-cookie" not in again.headers
        assert "already used" in again.text and f"trainvitals serve --link --port {guarded.port}" in again.text
        assert inside.get(guarded.url).status_code == 200, "who is inside already may follow it again"
    with httpx.Client(follow_redirects=True, timeout=PATIENCE) as other:
        assert other.get(make_link(guarded)).status_code == 200


def test_a_link_to_a_run_leads_there(guarded: Server, root: Path, keys: list[str]) -> None:
    assert make_link(guarded, "--dir", str(root), keys[0]).endswith(f"#/run/{keys[0]}")


def test_an_open_page_goes_on_after_a_restart_and_an_old_link_does_not(guarded: Server) -> None:
    unused = make_link(guarded)
    with enter(guarded) as inside:
        guarded.restart()
        assert inside.get(f"{guarded.base}api/v1/runs").status_code == 200
    late = httpx.get(unused, headers={"accept": "text/html"}, timeout=PATIENCE)
    assert late.status_code == 401 and "before a restart" in late.text


def test_a_link_followed_on_another_site_goes_on_by_a_page_of_ours(guarded: Server) -> None:
    """A browser does not send a strict cookie along a redirect that began elsewhere."""
    answer = httpx.get(guarded.url, headers={"sec-fetch-site": "cross-site"}, timeout=PATIENCE)
    assert answer.status_code == 200 and "set-cookie" in answer.headers
    assert '<meta http-equiv="refresh" content="0;url=./">' in answer.text


def test_programs_use_the_token_of_the_file_which_only_this_user_can_read(guarded: Server, tmp_path: Path) -> None:
    file = tmp_path / "runtime" / "serve.token"
    assert file.stat().st_mode & 0o777 == 0o600
    headers = {"authorization": f"Bearer {file.read_text().strip()}"}
    assert httpx.get(f"{guarded.base}api/v1/runs", headers=headers, timeout=PATIENCE).status_code == 200
    assert file.read_text().strip() not in guarded.url


def test_the_page_of_a_closed_door_shows_its_style_in_a_real_browser(
    guarded: Server, open_tab: Callable[..., Tab]
) -> None:
    tab = open_tab()
    tab.page.goto(guarded.base)
    assert tab.page.inner_text("h1") == "Authentication required"
    assert tab.page.evaluate("getComputedStyle(document.querySelector('main')).borderRadius") == "8px"
    tab.page.goto(make_link(guarded))
    tab.page.wait_for_selector(".side")
    assert "code=" not in tab.page.url


def test_a_link_opened_from_another_site_comes_in_in_a_real_browser(
    guarded: Server, open_tab: Callable[..., Tab]
) -> None:
    tab = open_tab()
    tab.page.goto(f"data:text/html,<a id=x href='{make_link(guarded)}'>x</a>")
    tab.page.click("#x")
    tab.page.wait_for_selector(".side")


@pytest.mark.promise("a short token is guessed", "ten attempts per minute; logged-in users stay logged in")
def test_guessing_is_slowed_down_and_locks_nobody_out_who_is_in(
    serve: Callable[..., Server], root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("password1")
    server = serve(root, "--token-file", str(file))
    with enter(server) as inside:
        address = f"{server.base}api/v1/about"
        answers = [
            httpx.get(address, headers={"authorization": f"Bearer password{guess}"}, timeout=PATIENCE).status_code
            for guess in range(100, 120)
        ]
        assert answers == [401] * 10 + [429] * 10
        right = httpx.get(address, headers={"authorization": "Bearer password1"}, timeout=PATIENCE)
        assert right.status_code == 429 and 1 <= int(right.headers["retry-after"]) <= 60
        assert inside.get(address).status_code == 200
        link = make_link(server, "--token-file", str(file))
        assert httpx.get(link, timeout=PATIENCE).status_code == 303, "a link still works"


def test_a_server_for_other_machines_asks_for_the_token_whatever_the_settings_are(
    serve: Callable[..., Server], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_WEB_TOKEN", "false")
    server = serve(root, "--listen", "0.0.0.0")
    address = f"http://127.0.0.1:{server.port}/api/v1/runs"
    assert httpx.get(address, timeout=PATIENCE).status_code == 401
    token = (tmp_path / "runtime" / "serve.token").read_text().strip()
    assert httpx.get(address, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE).status_code == 200
    by_query = httpx.get(f"http://127.0.0.1:{server.port}/?token={token}", timeout=PATIENCE)
    assert by_query.status_code == 303 and "token" not in by_query.headers["location"]


def test_the_setting_opens_loopback_for_everybody(
    serve: Callable[..., Server], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_WEB_TOKEN", "false")
    server = serve(root, asks_for_token=True)
    assert server.url == server.base and httpx.get(server.base, timeout=PATIENCE).status_code == 200
