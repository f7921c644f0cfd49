"""Who may read the page, and what does not stop it from being read."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme
import yaml
from prometheus_client.metrics_core import Metric
from servers import Server, fetch
from waiting import PATIENCE, free_port, wait_until

from trainvitals.errors import SettingError
from trainvitals.exporters.families import FamilySeries
from trainvitals.exporters.page import SharedPage
from trainvitals.exporters.server import MOST_CONNECTIONS, PageServer, ServedAddress
from trainvitals.guessing import MOST_WRONG, UNGUESSABLE, WRONG_SECONDS


@pytest.fixture
def serve() -> Iterator[object]:
    started: list[PageServer] = []

    def start(**address: object) -> PageServer:
        server = PageServer(ServedAddress(**{"port": 0, **address}), lambda accept: (b"page 1\n", "text/plain"))
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def url(server: PageServer, path: str = "/metrics") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def test_loopback_is_open(serve) -> None:
    assert fetch(url(serve()))[:2] == (200, "page 1\n")


@pytest.mark.promise("/metrics on another address than loopback", "a token or password is required")
def test_any_other_address_needs_a_token_or_a_password() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(SettingError, match="token or a password"):
            PageServer(ServedAddress(host=host, port=0), lambda accept: (b"", ""))


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


@pytest.mark.promise("the password or a short token of /metrics is guessed", "ten attempts per minute")
def test_a_password_and_a_short_token_are_not_guessed(serve) -> None:
    def show(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    def guess(server: PageServer, wrong: str) -> int:
        return fetch(url(server), {"Authorization": wrong})[0]

    for secret, wrong, right in (
        ({"password": "joe:secret1"}, show("joe:secret2"), show("joe:secret1")),
        ({"token": "secret1"}, "Bearer secret2", "Bearer secret1"),
        ({"token": "t" * UNGUESSABLE, "password": "joe:secret1"}, show("joe:x"), show("joe:secret1")),
    ):
        server = serve(host="0.0.0.0", **secret)
        with ThreadPoolExecutor(20) as guessers:
            answers = list(guessers.map(guess, [server] * 20, [wrong] * 20))
        assert sorted(answers) == [401] * MOST_WRONG + [429] * (20 - MOST_WRONG)
        status, text, headers = fetch(url(server), {"Authorization": right})
        assert status == 429 and "page" not in text and 0 < int(headers["Retry-After"]) <= WRONG_SECONDS
        assert fetch(url(server))[0] == 401, "what shows nothing is no guess"
        assert fetch(url(server, "/-/healthy"))[0] == 200


def test_guesses_of_a_long_token_lock_nobody_out(serve) -> None:
    server = serve(host="0.0.0.0", token="t" * UNGUESSABLE)
    assert {fetch(url(server), {"Authorization": "Bearer wrong"})[0] for _ in range(2 * MOST_WRONG)} == {401}
    assert fetch(url(server), {"Authorization": f"Bearer {'t' * UNGUESSABLE}"})[0] == 200


def test_a_password_without_a_user_is_refused_at_the_start() -> None:
    with pytest.raises(SettingError, match="user:password"):
        ServedAddress(password="secret").check()


def issue(folder: Path) -> tuple[ssl.SSLContext, dict[str, Path]]:
    """(what a client trusts, the files for the server)."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {"certificate": folder / "cert.pem", "key": folder / "key.pem"}
    issued.private_key_pem.write_to_path(files["key"])
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    authority.cert_pem.write_to_path(folder / "authority.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context, files


def fetch_securely(port: int, context: ssl.SSLContext) -> bytes:
    """The page; empty when nobody answers."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    except OSError:
        return b""
    finally:
        connection.close()


def test_tls(serve, tmp_path: Path) -> None:
    context, files = issue(tmp_path)
    server = serve(**files)
    assert fetch_securely(server.port, context) == b"page 1\n"
    assert fetch(url(server))[0] == 0


def test_a_new_certificate_and_a_new_token_are_taken_without_a_restart(tmp_path: Path) -> None:
    _, files = issue(tmp_path)
    token = tmp_path / "token"
    token.write_text("first")

    def read() -> ServedAddress:
        return ServedAddress(port=0, token=token.read_text(), files=(*files.values(), token), **files)

    server = PageServer(read(), lambda accept: (b"page\n", "text/plain"), read)

    def ask(context: ssl.SSLContext, given: str) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {given}"})
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    files["certificate"].unlink()  # half of a replacement: what was valid stays in force
    context, _ = issue(tmp_path)
    token.write_text("second")
    wait_until(lambda: ask(context, "second") == 200, "the new certificate and token")
    assert ask(context, "first") == 401
    server.close()


def test_a_client_without_a_certificate_of_the_authority_is_refused(serve, tmp_path: Path) -> None:
    context, files = issue(tmp_path)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    server = serve(**files, client_ca=tmp_path / "clients.pem")
    assert fetch_securely(server.port, context) == b""
    trustme.CA().issue_cert("stranger").configure_cert(context)
    assert fetch_securely(server.port, context) == b""
    authority.issue_cert("prometheus").configure_cert(context)
    assert fetch_securely(server.port, context) == b"page 1\n"


def test_a_certificate_that_is_none_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate")
    for key in ("cert.pem", "missing.pem"):
        with pytest.raises(SettingError):
            PageServer(
                ServedAddress(port=0, certificate=tmp_path / "cert.pem", key=tmp_path / key), lambda accept: (b"", "")
            )
    with pytest.raises(SettingError, match="both"):
        ServedAddress(certificate=tmp_path / "cert.pem").check()


@pytest.mark.promise("DNS rebinding against /metrics", "nothing is served")
def test_another_sites_name_for_loopback_reads_nothing(serve) -> None:
    server = serve()
    for host, status in (
        ("evil.example", 421),
        (f"127.0.0.1:{server.port}", 200),
        ("localhost", 200),
        ("[::1]:1", 200),
        ("[::1]", 200),
        ("localhost.", 200),
        ("localhost@evil.example", 421),
    ):
        assert fetch(url(server), {"Host": host})[0] == status, host


def test_a_taken_port_is_an_os_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            PageServer(ServedAddress(port=other.getsockname()[1]), lambda accept: (b"", ""))


def test_the_port_is_given_back() -> None:
    port = free_port()
    for _ in range(3):
        server = PageServer(ServedAddress(port=port), lambda accept: (b"x", "text/plain"))
        assert fetch(f"http://127.0.0.1:{port}/metrics")[0] == 200
        server.close()


class Loris:
    """Clients that each say a letter now and then and never the whole request."""

    def __init__(self, port: int, count: int) -> None:
        self._ending = threading.Event()
        self._clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def _talk(self) -> None:
        for letter in itertools.cycle(b"GET /metrics HTTP/1.1\r\nX-Slow: "):
            for client in self._clients:
                with contextlib.suppress(OSError):  # it was hung up on
                    client.sendall(bytes([letter]))
            if self._ending.wait(0.05):
                return

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        for client in self._clients:
            client.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.exporters.server.SILENCE", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.promise("half-sent requests to /metrics", "others are served")
def test_clients_that_never_finish_their_request_do_not_keep_others_out(serve) -> None:
    server = serve()
    loris = Loris(server.port, 2 * MOST_CONNECTIONS)
    # The request itself may be taken for a silent one on a busy machine; what must not be is that nobody gets through.
    for _ in range(3):
        wait_until(lambda: fetch(url(server))[0] == 200, "an answer")
    loris.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.promise("clients that never finish the TLS handshake", "others are served")
def test_clients_that_never_shake_hands_do_not_keep_others_out(serve, tmp_path: Path) -> None:
    context, files = issue(tmp_path)
    server = serve(**files)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2 * MOST_CONNECTIONS)]
    assert wait_until(lambda: fetch_securely(server.port, context), "an answer") == b"page 1\n"
    for client in silent:
        client.close()


def test_a_client_that_does_not_read_keeps_nobody_out_and_does_not_hold_up_the_end() -> None:
    server = PageServer(ServedAddress(port=0), lambda accept: (b"x" * (64 << 20), "text/plain"))
    with socket.create_connection(("127.0.0.1", server.port)) as idle:
        idle.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert fetch(url(server, "/-/healthy"))[0] == 200
        server.close()
    assert fetch(url(server, "/-/healthy"))[0] == 0


def test_a_hundred_at_once_all_get_the_page(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.exporters.server.SILENCE", 60.0)  # a hundred threads may be slow to speak
    server = serve()
    with ThreadPoolExecutor(100) as clients:
        answers = list(clients.map(lambda _: fetch(url(server))[:2], range(300)))
    assert answers == [(200, "page 1\n")] * 300


def test_who_is_being_answered_when_the_server_is_closed_gets_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainvitals.exporters.server.GRACE", PATIENCE)  # a busy machine may need more than a second
    begun, page = threading.Event(), b"x" * 500_000

    def render(accept: str) -> tuple[bytes, str]:
        begun.set()
        time.sleep(0.2)  # the server is closed meanwhile
        return page, "text/plain"

    server = PageServer(ServedAddress(port=0), render)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(fetch, url(server))
        assert begun.wait(PATIENCE)
        server.close()
        assert answer.result()[:2] == (200, page.decode())


def test_prometheus_itself_reads_any_name(start_prometheus: Callable[..., Server]) -> None:
    names = ["".join(map(chr, range(start, start + 64))) for start in range(0, 0xD800, 64)]

    def collect() -> list[Metric]:
        series = FamilySeries("named", "By anything", ("name",))
        for place, name in enumerate(names):
            series.add((name,), place)
        return [series.family]

    page = PageServer(ServedAddress(port=0), SharedPage(collect))
    scrape = {"job_name": "any", "static_configs": [{"targets": [f"127.0.0.1:{page.port}"]}]}
    prometheus = start_prometheus({"global": {"scrape_interval": "500ms"}, "scrape_configs": [scrape]})
    found = wait_until(lambda: prometheus.query("named"), "the page to be scraped")
    page.close()
    assert {series["metric"]["name"]: float(series["value"][1]) for series in found} == {
        name: float(place) for place, name in enumerate(names)
    }


def test_prometheus_scrapes_with_the_printed_configuration_by_token_password_and_certificate(
    serve, start_prometheus: Callable[..., Server], tmp_path: Path
) -> None:
    _, files = issue(tmp_path)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    mine = authority.issue_cert("prometheus")
    mine.private_key_pem.write_to_path(tmp_path / "prometheus.key")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "prometheus.pem")
    clients = tmp_path / "clients.pem"
    token, password = "s3cret" * 4, "pa:ss" * 5  # too long to be guessed: of wrong ones, no number locks the others out
    server = serve(host="0.0.0.0", token=token, password=f"joe:{password}", **files, client_ca=clients)
    (tmp_path / "token").write_text(f"{token}\n")
    flags = [
        "--token-file", tmp_path / "token", "--interval", "1", "--tls-ca", tmp_path / "authority.pem",
        "--tls-certificate", tmp_path / "prometheus.pem", "--tls-key", tmp_path / "prometheus.key",
    ]  # fmt: skip
    command = (sys.executable, "-m", "trainvitals", "prometheus", "scrape-config", f"127.0.0.1:{server.port}", *flags)
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (by_token,) = yaml.safe_load(printed)["scrape_configs"]
    by_password = {name: value for name, value in by_token.items() if name != "authorization"}
    by_password |= {"job_name": "password", "basic_auth": {"username": "joe", "password": password}}
    by_nothing = {**by_password, "job_name": "nothing", "basic_auth": {"username": "joe", "password": "wrong"}}
    trusting = {"ca_file": str(tmp_path / "authority.pem")}
    anonymous = {**by_token, "job_name": "anonymous", "tls_config": trusting}
    prometheus = start_prometheus({"scrape_configs": [by_token, by_password, by_nothing, anonymous]})

    def found() -> dict[str, str]:
        return {series["metric"]["job"]: series["value"][1] for series in prometheus.query("up")}

    # Whoever is let in may be late on a busy machine; whoever is not never is.
    expected = {"trainvitals": "1", "password": "1", "nothing": "0", "anonymous": "0"}
    wait_until(lambda: found() == expected, lambda: f"all four to be tried: {found()}")
    assert prometheus.value('max(max_over_time(up{job=~"nothing|anonymous"}[1h]))') == 0


def test_other_paths_and_methods(serve) -> None:
    server = serve()
    assert fetch(url(server, "/secret"))[0] == 404
    assert fetch(url(server, "/metrics?name[]=x"))[0] == 200
    assert fetch(url(server), data=b"x")[0] == 501
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("HEAD", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.getheader("Content-Length")) == (200, b"", "7")
