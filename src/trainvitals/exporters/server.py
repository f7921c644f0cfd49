"""The page over HTTP. Loopback is open; any other address needs a token or a password, and may have TLS.

A request is answered from what is known at that moment: nothing here waits for a GPU, a run or a disk.
"""

from __future__ import annotations

import base64
import gzip
import hmac
import ipaddress
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trainvitals.certificates import make_server_context, stamp
from trainvitals.errors import SettingError
from trainvitals.guessing import WrongTokens
from trainvitals.host_names import is_loopback, split_host
from trainvitals.settings import Settings
from trainvitals.settings.secrets import find_file, read_secret

TIMEOUT = 10.0
"""Seconds that a client may take between two words, and for the whole answer."""
MOST_CONNECTIONS = 32
SILENCE = 2.0
"""Seconds after which a client that has not sent its request makes room for another, where there is none left."""
GRACE = 1.0
"""Seconds for an answer that is under way when the server is closed."""

Render = Callable[[str], tuple[bytes, str]]
"""From an Accept header to (page, content type)."""

_INDEX = b"""<!doctype html><title>trainvitals</title><h1>trainvitals</h1><p><a href="/metrics">metrics</a></p>
"""


@dataclass(frozen=True, slots=True)
class ServedAddress:
    """Where to serve and who may ask."""

    host: str = "127.0.0.1"
    port: int = 9090
    token: str | None = None
    password: str | None = None
    """`user:password` for basic authentication."""
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    """Who signs the certificates of clients, where they must have one."""
    files: tuple[Path, ...] = ()
    """What of this is in files, and may be replaced by newer ones."""

    @classmethod
    def of(cls, settings: Settings) -> ServedAddress:
        """Where these settings want the page; a SettingError for a secret that cannot be looked up."""
        token, password = settings.prometheus_token, settings.prometheus_password
        certificates = (
            settings.prometheus_tls_certificate,
            settings.prometheus_tls_key,
            settings.prometheus_tls_client_ca,
        )
        secrets = (find_file(item) for item in (token, password) if item is not None)
        return cls(
            host=settings.prometheus_address,
            port=settings.prometheus_port or 0,
            token=None if token is None else read_secret(token),
            password=None if password is None else read_secret(password),
            certificate=settings.prometheus_tls_certificate,
            key=settings.prometheus_tls_key,
            client_ca=settings.prometheus_tls_client_ca,
            files=tuple(path for path in (*certificates, *secrets) if path is not None),
        )

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def weakest(self) -> str:
        """What is guessed first of the token and the password; empty if there is neither."""
        known = [] if self.token is None else [self.token]
        if self.password is not None:
            known.append(self.password.partition(":")[2])
        return min(known, key=len, default="")

    def check(self) -> None:
        """SettingError for an address that must not be served like this."""
        if not self.is_loopback and self.token is None and self.password is None:
            raise SettingError(
                f"serving metrics on {self.host} needs a token or a password",
                hint="pass one: --prometheus-token file:/etc/trainvitals/token, or env:NAME",
            )
        if self.password is not None and ":" not in self.password:
            raise SettingError("prometheus.password must be user:password")
        if (self.certificate is None) != (self.key is None):
            raise SettingError("TLS needs both prometheus.tls_certificate and prometheus.tls_key")
        if self.client_ca is not None and self.certificate is None:
            raise SettingError("prometheus.tls_client_ca needs prometheus.tls_certificate and prometheus.tls_key")

    def make_context(self) -> ssl.SSLContext | None:
        """For TLS; None without."""
        if self.certificate is None or self.key is None:
            return None
        return make_server_context(self.certificate, self.key, self.client_ca)


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to a number; then the longest idle one is closed."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: ServedAddress, render: Render, read_again: Callable[[], ServedAddress]) -> None:
        self.address = address
        self.render = render
        self._read_again = read_again
        self._stamps = stamp(address.files)
        self.slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.silent: dict[socket.socket, float] = {}
        """Connections without a request yet, and since when."""
        self.ending = False
        self.guesses = threading.Lock()
        self.wrong = WrongTokens(address.weakest)
        self.context = address.make_context()
        try:
            self.address_family = socket.AF_INET6 if ipaddress.ip_address(address.host).version == 6 else socket.AF_INET
        except ValueError:
            self.address_family = socket.AF_INET
        super().__init__((address.host, address.port), _Request)

    def service_actions(self) -> None:
        """Called twice a second: certificates and tokens that were replaced are taken from the next connection on."""
        stamps = stamp(self.address.files)
        if stamps == self._stamps:
            return
        try:
            address = self._read_again()
            context = address.make_context()
        except (OSError, SettingError):
            return  # not all of them are there yet: what was valid stays in force until they are
        if address.weakest != self.address.weakest:
            self.wrong = WrongTokens(address.weakest)
        self.address, self.context, self._stamps = address, context, stamps

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        while not self.slots.acquire(timeout=0.1):
            if self.ending:
                self.shutdown_request(request)
                return
            self.hang_up(SILENCE)
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        request.settimeout(TIMEOUT)
        connection = request
        if self.context is not None:
            # The handshake is in the thread of this connection: a client that never shakes hands holds up nobody else.
            connection = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with connection:
            self.silent[connection] = time.monotonic()
            try:
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                super().finish_request(connection, client_address)
            finally:
                self.silent.pop(connection, None)

    def hang_up(self, silence: float) -> None:
        """On all that have been silent for so long; their threads end and give back their places."""
        now = time.monotonic()
        for connection, since in list(self.silent.items()):
            if now - since >= silence:
                with suppress(OSError):  # it has gone by itself
                    # Not as TLS would do it: that is the business of the thread that reads.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnects in the middle is not worth a log line."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "trainvitals"
    sys_version = ""
    timeout = TIMEOUT

    def do_GET(self) -> None:
        self.server.silent.pop(self.connection, None)
        self._respond()
        self.server.silent[self.connection] = time.monotonic()
        self.close_connection |= self.server.ending

    do_HEAD = do_GET

    def _respond(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/-/healthy", "/-/ready"):
            self._answer(200, b"ok\n")
        elif not self._is_host_known():
            self._answer(421, b"unknown host name\n")
        elif (wait := self._wait_after_guesses()) > 0:
            self._answer(429, b"too many wrong tokens\n", {"Retry-After": str(math.ceil(wait))})
        elif not self._is_allowed():
            scheme = "Bearer" if self.server.address.token is not None else "Basic"
            self._answer(401, b"authentication required\n", {"WWW-Authenticate": f'{scheme} realm="trainvitals"'})
        elif path == "/metrics":
            body, kind = self.server.render(self.headers.get("Accept", ""))
            headers = {"Content-Type": kind}
            if "gzip" in self.headers.get("Accept-Encoding", "") and not self.server.address.is_loopback:
                # On loopback packing costs more than it saves.
                body = gzip.compress(body, 1)
                headers["Content-Encoding"] = "gzip"
            self._answer(200, body, headers)
        elif path == "/":
            self._answer(200, _INDEX, {"Content-Type": "text/html; charset=utf-8"})
        else:
            self._answer(404, b"not found, see /metrics\n")

    def _is_host_known(self) -> bool:
        """On loopback only its own names: a page of some site must not read this through a name of that site."""
        header = self.headers.get("Host", "")  # HTTP/1.0 has none
        return not self.server.address.is_loopback or not header or is_loopback(split_host(header) or "")

    def _wait_after_guesses(self) -> float:
        """Seconds until this address may show a token or password again; 0 if it may."""
        if "Authorization" not in self.headers:
            return 0.0
        server, client = self.server, str(self.client_address[0])
        with server.guesses:  # of guesses that come at the same time, none is made before the others are counted
            wait = server.wrong.wait(client)
            if wait <= 0 and not self._is_allowed():
                server.wrong.note(client)
        return wait

    def _is_allowed(self) -> bool:
        address = self.server.address
        if address.token is None and address.password is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and address.token is not None:
            return hmac.compare_digest(given.strip().encode(), address.token.encode())
        if scheme.lower() == "basic" and address.password is not None:
            try:
                decoded = base64.b64decode(given.strip(), validate=True)
            except ValueError:
                return False
            return hmac.compare_digest(decoded, address.password.encode())
        return False

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape a second is not worth a log line."""


class PageServer:
    """Serves until `close`. Raises OSError when the port is taken, SettingError when it must not be served."""

    def __init__(
        self, address: ServedAddress, render: Render, read_again: Callable[[], ServedAddress] | None = None
    ) -> None:
        """`read_again` gives the address with what its files hold now."""
        address.check()
        self.address = address
        try:
            self._server = _Server(address, render, read_again or (lambda: address))
        except ssl.SSLError as error:
            raise SettingError(f"invalid TLS certificate: {error.reason}") from error
        except FileNotFoundError as error:
            raise SettingError("TLS certificate or key not found") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics page", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port in use, also where any was asked for with 0."""
        return int(self._server.server_address[1])

    def hurry(self) -> None:
        """Whoever scrapes decides when."""

    def close(self) -> None:
        """End within a moment; who is being answered gets the whole answer, if he takes it."""
        self._server.ending = True
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up(0.0)
        deadline = time.monotonic() + GRACE
        for _ in range(MOST_CONNECTIONS):
            self._server.slots.acquire(timeout=max(deadline - time.monotonic(), 0.0))
