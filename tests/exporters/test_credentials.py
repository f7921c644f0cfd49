"""Pushes to a server that wants to know who pushes, while what they show is replaced."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from servers import Answering
from waiting import free_port, wait_until

from trainvitals.errors import SettingError
from trainvitals.exporters import otlp, pushgateway, remote_write
from trainvitals.exporters.contracts import Order, Output
from trainvitals.settings import resolve

EXPORTERS = {"remote_write": remote_write, "otlp": otlp, "pushgateway": pushgateway}


def families() -> list[Metric]:
    loss = GaugeMetricFamily("training_loss", "Loss", labels=("run",))
    loss.add_metric(("first",), 0.5)
    return [loss]


def start(kind: str, url: str, folder: Path, **settings: object) -> Output:
    given = {f"prometheus_{name}": value for name, value in {"push_interval": 1.0, **settings}.items()}
    order = Order(
        url,
        resolve(given, environ={}, folder=Path("/")),
        lambda options: families(),
        "box",
        0.0,
        folder / kind,
        lambda text: None,
    )
    made: Output = EXPORTERS[kind].start(order)
    return made


class Guarded:
    """A server with TLS that takes only clients with a certificate of one authority, and remembers who they were."""

    def __init__(self, server: trustme.LeafCert, clients: trustme.CA) -> None:
        self.seen: list[str] = []
        outer = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                subject = dict(pair for part in self.connection.getpeercert()["subject"] for pair in part)
                outer.seen.append(subject["organizationalUnitName"])
                self.send_response(200)
                self.send_header("X-Prometheus-Remote-Write-Samples-Written", "1000")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_PUT = do_POST

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """Refused: that is what it is for."""

        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = ssl.CERT_REQUIRED
        server.configure_cert(self.context)
        clients.configure_trust(self.context)
        self._server = Server(("127.0.0.1", 0), Request)
        self._server.socket = self.context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Files:
    """The certificates of a client, as files that can be replaced."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.clients = trustme.CA(), trustme.CA()
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, authority: trustme.CA) -> None:
        issued = authority.issue_cert("box", organization_unit_name=name)
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        issued.private_key_pem.write_to_path(self.key)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "push_tls_certificate": str(self.certificate),
            "push_tls_key": str(self.key),
            "push_tls_ca": str(self.ca),
        }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def guarded(files: Files) -> Iterator[Guarded]:
    server = Guarded(files.authority.issue_cert("127.0.0.1"), files.clients)
    yield server
    server.close()


@pytest.mark.parametrize("kind", EXPORTERS)
def test_a_push_shows_its_certificate_and_takes_a_new_one_without_a_restart(
    kind: str, files: Files, guarded: Guarded, tmp_path: Path
) -> None:
    files.issue("first", files.clients)
    output = start(kind, guarded.url, tmp_path, **files.settings)
    wait_until(lambda: "first" in guarded.seen, "a push with the first certificate")
    files.certificate.unlink()  # half of a replacement: what was valid stays in force
    count = len(guarded.seen)
    wait_until(lambda: len(guarded.seen) > count, "a push in the meantime")
    files.issue("second", files.clients)
    wait_until(lambda: "second" in guarded.seen, "a push with the second certificate")
    output.close()


def test_without_a_certificate_of_the_authority_nothing_is_taken_and_everything_kept(
    files: Files, guarded: Guarded, tmp_path: Path
) -> None:
    files.issue("stranger", trustme.CA())
    output = start("remote_write", guarded.url, tmp_path, **files.settings)
    wait_until(lambda: output.counts.failed, "a push that is refused")
    assert guarded.seen == [] and output.pending_bytes > 0
    files.issue("known", files.clients)
    wait_until(lambda: output.counts.sent, "what was kept")
    assert set(guarded.seen) == {"known"}
    output.close()


def test_a_server_of_another_authority_gets_nothing(files: Files, guarded: Guarded, tmp_path: Path) -> None:
    files.issue("first", files.clients)
    trustme.CA().cert_pem.write_to_path(files.ca)
    output = start("remote_write", guarded.url, tmp_path, **files.settings)
    wait_until(lambda: output.counts.failed, "a push that is not made")
    assert "certificate" in output.counts.trouble
    output.close()
    assert guarded.seen == []


def test_the_pushgateway_gets_headers_too_and_those_in_files_are_read_again(
    answering: Answering, tmp_path: Path
) -> None:
    tenant = tmp_path / "tenant"
    tenant.write_text("vision")
    headers = {"X-Scope-OrgID": f"${{file:{tenant}}}"}
    for kind in EXPORTERS:
        answering.received.clear()
        output = start(kind, answering.url, tmp_path, push_headers=headers)
        wait_until(lambda: answering.received, f"a push by {kind}")
        assert answering.received[0][1]["x-scope-orgid"] == "vision"
        tenant.unlink()
        tenant.write_text("speech")
        wait_until(lambda: answering.received[-1][1]["x-scope-orgid"] == "speech", f"the other tenant by {kind}")
        output.close()
        tenant.write_text("vision")


def test_files_that_are_missing_or_something_else_are_said_at_once(files: Files, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{free_port()}"
    with pytest.raises(SettingError, match="cannot read the TLS files for pushes"):
        start("remote_write", url, tmp_path, **files.settings)
    files.issue("first", files.clients)
    with pytest.raises(SettingError, match="push_tls_key needs"):
        start("remote_write", url, tmp_path, push_tls_key=str(files.key))
    files.key.write_text("not a key")
    with pytest.raises(SettingError, match="invalid TLS certificate or key for pushes"):
        start("remote_write", url, tmp_path, **files.settings)
