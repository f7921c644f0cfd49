"""Requests to a gateway, and what is made of every answer."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from honest_gateway import HonestGateway
from waiting import free_port

from trainvitals.certificates import ClientTls
from trainvitals.errors import SettingError
from trainvitals.fleet import gateway_client, wire
from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess, GatewayRefused, NotNow, RunNotNow, TooLarge
from trainvitals.fleet.wire import FileRange
from trainvitals.settings import resolve

FRAMES = [FileRange("run.json", "document", b"{}")]
NOBODY = "env:TRAINVITALS_TOKEN"


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[HonestGateway]:
    gateway = HonestGateway(tmp_path / "gateway")
    yield gateway
    gateway.close()


def test_settings_say_where_it_is(tmp_path: Path) -> None:
    assert GatewayAccess.find(resolve({}, environ={}, folder=tmp_path), {}) is None
    environ = {"TRAINVITALS_GATEWAY": "https://gw.example/", "TRAINVITALS_TOKEN": "s3cret"}
    settings = resolve({}, environ=environ, folder=tmp_path)
    assert settings.unknown_environment == (), "TRAINVITALS_TOKEN is known"
    access = GatewayAccess.find(settings, environ)
    assert access is not None and access.address == "https://gw.example" and access.read_token() == "s3cret"
    assert "s3cret" not in f"{access} {settings.as_json()}"
    hidden = resolve({"gateway": "env:PLACE"}, environ={}, folder=tmp_path)
    found = GatewayAccess.find(hidden, {"PLACE": "http://user:word@there"})
    assert found is not None and "word" not in found.shown
    with pytest.raises(SettingError, match="PLACE"):
        GatewayAccess.find(hidden, {})


def test_a_token_is_read_again_when_it_was_replaced(honest: HonestGateway, tmp_path: Path) -> None:
    honest.token = "right"
    secret = tmp_path / "token"
    gateway = FarGateway(GatewayAccess(honest.address, f"file:{secret}"))
    with pytest.raises(NotNow, match="cannot read the secret"):
        gateway.ask("p", "r")
    secret.write_text("wrong\n")
    began = time.monotonic()
    with pytest.raises(NotNow, match=r"token is refused.*no such token"):
        gateway.ask("p", "r")
    assert gateway._again >= began + gateway_client.CLOSED_PAUSE, "it is tried rarely"
    secret.write_text("right\n")
    assert gateway.ask("p", "r") == {} and gateway.trouble == ""


def test_a_missing_token_is_called_missing(honest: HonestGateway) -> None:
    honest.token = "right"
    with pytest.raises(NotNow, match="TRAINVITALS_TOKEN is not set"):
        FarGateway(GatewayAccess(honest.address, NOBODY)).ask("p", "r")


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "trouble", "least", "most"),
    [
        (503, {"Retry-After": "7"}, b"full", NotNow, "HTTP 503 .*: full", 6, 7),
        (429, {"Retry-After": "1e9"}, b"", NotNow, "HTTP 429", 500, 600),
        (429, {"Retry-After": "soon"}, b"", NotNow, "HTTP 429", 0, 1),
        (500, {}, b"", NotNow, "HTTP 500", 0, 1),
        (500, {}, b'{"error": "the engine is full"}', NotNow, "Error: the engine is full$", 0, 1),
        (302, {"Location": "http://elsewhere"}, b"", NotNow, "HTTP 302", 0, 1),
        (426, {}, b"", NotNow, "does not know version 1", 500, 600),
        (401, {}, b"", NotNow, "token", 50, 60),
        (413, {}, b"", TooLarge, None, 0, 0),
        (400, {}, b"\x1b[31mred", GatewayRefused, "red", 0, 0),
        (200, {}, b"<html>", NotNow, "makes no sense", 0, 1),
        (200, {}, b'{"files": []}', NotNow, "makes no sense", 0, 1),
        (200, {wire.VERSION_HEADER: ""}, b'{"files": {}}', NotNow, "no trainvitals gateway", 50, 60),
    ],
)
def test_every_answer_means_something(
    honest: HonestGateway,
    status: int,
    headers: dict[str, str],
    body: bytes,
    error: type[Exception],
    trouble: str | None,
    least: float,
    most: float,
) -> None:
    honest.misbehave = lambda *_: (status, headers, body)
    gateway = FarGateway(GatewayAccess(honest.address, NOBODY))
    began = time.monotonic()
    with pytest.raises(error, match=trouble) as caught:
        gateway.send("p", "r", FRAMES)
    assert "\x1b" not in str(caught.value)
    assert gateway.wait <= most and (not least or gateway._again >= began + least)
    assert bool(gateway.trouble) == (error is NotNow)


def test_a_quota_is_for_one_run_and_not_for_the_gateway(honest: HonestGateway) -> None:
    gateway = FarGateway(GatewayAccess(honest.address, NOBODY))
    for headers, seconds in (({"Retry-After": "30"}, 30), ({}, 600), ({"Retry-After": "90000"}, 600)):
        honest.misbehave = lambda *_, headers=headers: (429, headers, b'{"error": "full \\u001b[31m", "quota": true}')  # type: ignore[misc]
        with pytest.raises(RunNotNow, match="full") as caught:
            gateway.send("p", "r", FRAMES)
        assert caught.value.seconds == seconds and "\x1b" not in str(caught.value)
        assert gateway.wait == 0 and gateway.trouble == ""


def test_a_token_of_another_project_is_refused_for_that_run_and_not_for_the_gateway(honest: HonestGateway) -> None:
    gateway = FarGateway(GatewayAccess(honest.address, "env:HOME", environment={"HOME": "t"}))
    honest.misbehave = lambda *_: (403, {}, b'{"error": "this token may not write in project \'p\'"}')
    with pytest.raises(RunNotNow, match=r"refused .* may not write in project 'p'") as caught:
        gateway.send("p", "r", FRAMES)
    assert caught.value.seconds == gateway_client.CLOSED_PAUSE
    assert gateway.wait == 0 and gateway.trouble == ""


def test_pauses_grow_and_end_with_success(honest: HonestGateway) -> None:
    gateway = FarGateway(GatewayAccess(f"http://127.0.0.1:{free_port()}", NOBODY))
    began = time.monotonic()
    for _ in range(12):
        with pytest.raises(NotNow, match="refused"):
            gateway.ask("p", "r")
    assert gateway._again >= began + gateway_client.LONGEST_PAUSE / 2 and gateway.wait <= gateway_client.LONGEST_PAUSE
    honest.misbehave = lambda *_: (500, {}, b"")
    gateway = FarGateway(GatewayAccess(honest.address, NOBODY))
    for _ in range(12):
        with pytest.raises(NotNow):
            gateway.ask("p", "r")
    honest.misbehave = lambda *_: None
    gateway.ask("p", "r")
    honest.misbehave = lambda *_: (500, {}, b"")
    with pytest.raises(NotNow):
        gateway.ask("p", "r")
    assert gateway.wait <= gateway_client.FIRST_PAUSE


def test_names_are_quoted(honest: HonestGateway) -> None:
    FarGateway(GatewayAccess(honest.address, NOBODY)).send("a project / ü?", "r#1", FRAMES)
    assert "run.json" in honest.copy("a project / ü?", "r#1").find_all()


@pytest.mark.promise("a gateway with the wrong certificate", "nothing is sent to it")
def test_both_ends_show_certificates(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    mine, ours, theirs = tmp_path / "mine.pem", tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.issue_cert("agent@example.org").private_key_and_cert_chain_pem.write_to_path(mine)
    authority.cert_pem.write_to_path(ours)
    other.cert_pem.write_to_path(theirs)
    honest = HonestGateway(tmp_path / "gateway", context=context)
    try:
        assert FarGateway(GatewayAccess(honest.address, NOBODY, ClientTls(mine, None, ours))).ask("p", "r") == {}
        for access in (
            GatewayAccess(honest.address, NOBODY, ClientTls(authority=ours)),
            GatewayAccess(honest.address, NOBODY, ClientTls(mine, None, theirs)),
        ):
            with pytest.raises(NotNow):
                FarGateway(access).ask("p", "r")
        assert len(honest.requests) == 1
        gateway = FarGateway(GatewayAccess(honest.address, NOBODY, ClientTls(mine, None, theirs)))
        with pytest.raises(NotNow, match=r"certificate is not trusted: .* [(]gateway_ca: "):
            gateway.ask("p", "r")
        theirs.write_bytes(ours.read_bytes())
        assert gateway.ask("p", "r") == {}, "a certificate that was replaced is read again"
    finally:
        honest.close()
