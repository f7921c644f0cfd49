"""Who may read the page, and what does not stop it from being read."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from servers import fetch, free_port

from trainvitals.errors import SettingError
from trainvitals.exporters.server import MOST_CONNECTIONS, Address, PageServer


@pytest.fixture
def serve() -> Iterator[object]:
    started: list[PageServer] = []

    def start(**address: object) -> PageServer:
        server = PageServer(Address(**{"port": 0, **address}), lambda accept: (b"page 1\n", "text/plain"))
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def url(server: PageServer, path: str = "/metrics") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def test_loopback_is_open(serve) -> None:
    assert fetch(url(serve()))[:2] == (200, "page 1\n")


def test_any_other_address_needs_a_token_or_a_password() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(SettingError, match="token or a password"):
            PageServer(Address(host=host, port=0), lambda accept: (b"", ""))


def test_the_token_opens_and_nothing_else(serve) -> None:
    server = serve(host="0.0.0.0", token="s3cret")
    assert fetch(url(server), {"Authorization": "Bearer s3cret"})[0] == 200
    for wrong in (
        "",
        "Bearer",
        "Bearer S3cret",
        "Bearer s3cret2",
        "Basic s3cret",
        "Bearer s3cre",
        "s3cret",
        "Bearer é",
    ):
        status, text, headers = fetch(url(server), {"Authorization": wrong.encode("utf-8").decode("latin-1")})
        assert status == 401 and "page" not in text and headers["WWW-Authenticate"].startswith("Bearer")
    assert fetch(url(server, "/-/healthy"))[0] == 200


def test_basic_authentication(serve) -> None:
    server = serve(host="0.0.0.0", password="joe:pa:ss")
    good = base64.b64encode(b"joe:pa:ss").decode()
    assert fetch(url(server), {"Authorization": f"Basic {good}"})[0] == 200
    for wrong in (base64.b64encode(b"joe:pass").decode(), "%%%", ""):
        assert fetch(url(server), {"Authorization": f"Basic {wrong}"})[0] == 401


def test_a_password_without_a_user_is_refused_at_the_start() -> None:
    with pytest.raises(SettingError, match="user:password"):
        Address(password="secret").check()


def test_tls(serve, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    server = serve(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
    connection.request("GET", "/metrics")
    assert connection.getresponse().read() == b"page 1\n"
    assert fetch(url(server))[0] == 0


def test_a_certificate_that_is_none_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate")
    for key in ("cert.pem", "missing.pem"):
        with pytest.raises(SettingError):
            PageServer(Address(port=0, certificate=tmp_path / "cert.pem", key=tmp_path / key), lambda accept: (b"", ""))
    with pytest.raises(SettingError, match="both"):
        Address(certificate=tmp_path / "cert.pem").check()


def test_another_sites_name_for_loopback_reads_nothing(serve) -> None:
    server = serve()
    for host, status in (
        ("evil.example", 421),
        (f"127.0.0.1:{server.port}", 200),
        ("localhost", 200),
        ("[::1]:1", 200),
    ):
        assert fetch(url(server), {"Host": host})[0] == status, host


def test_a_taken_port_is_an_os_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            PageServer(Address(port=other.getsockname()[1]), lambda accept: (b"", ""))


def test_the_port_is_given_back() -> None:
    port = free_port()
    for _ in range(3):
        server = PageServer(Address(port=port), lambda accept: (b"x", "text/plain"))
        assert fetch(f"http://127.0.0.1:{port}/metrics")[0] == 200
        server.close()


def test_clients_that_hang_do_not_keep_others_out(serve) -> None:
    server = serve()
    hanging = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_CONNECTIONS // 2)]
    for client in hanging:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")  # and never the rest
    assert fetch(url(server))[0] == 200
    for client in hanging:
        client.close()


def test_many_at_once(serve) -> None:
    server = serve()
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(fetch(url(server))[0])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 16


def test_other_paths_and_methods(serve) -> None:
    server = serve()
    assert fetch(url(server, "/secret"))[0] == 404
    assert fetch(url(server, "/metrics?name[]=x"))[0] == 200
    assert fetch(url(server), data=b"x")[0] == 501
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("HEAD", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("Content-Length")) == (200, b"", "7")
