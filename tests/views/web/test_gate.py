"""Who may come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE

from trainvitals.views.web.gate import Door, split_host

from .conftest import Server


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
    assert split_host("Node7.:80") == "node7"


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


def test_the_token_leaves_the_address_for_a_cookie_that_scripts_cannot_read(
    serve: Callable[..., Server], root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery")
    server = serve(root, "--token-file", str(file))
    assert server.url.endswith("/?token=correct-horse-battery")
    first = httpx.get(server.url, timeout=PATIENCE)
    assert first.status_code == 303 and "token" not in first.headers["location"]
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    with httpx.Client(follow_redirects=True, timeout=PATIENCE) as client:
        assert client.get(server.url).status_code == 200
        assert client.get(f"{server.base}api/v1/runs").status_code == 200


def test_any_address_but_loopback_gets_a_token_by_itself(serve: Callable[..., Server], root: Path) -> None:
    server = serve(root, "--host", "0.0.0.0")
    token = server.url.partition("?token=")[2]
    assert len(token) >= 24
    address = f"http://127.0.0.1:{server.port}/api/v1/runs"
    assert httpx.get(address, timeout=PATIENCE).status_code == 401
    assert httpx.get(address, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE).status_code == 200
