"""Servers that never answer, answer for ever or answer with something else: a request ends all the same."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme
from waiting import PATIENCE, free_port

from trainvitals.http_client import MOST_OF_AN_ANSWER, Answer, UnknownAuthority, parse_retry_after, send

Reply = Callable[[socket.socket], None]
BODY = b"x"
SHORT = 1.0
"""Seconds for a request that will not be answered."""


class Hostile:
    """A server that handles each connection as it is told, once the request has come."""

    def __init__(self, reply: Reply, *, reads: bool = True) -> None:
        self._reply = reply
        self._reads = reads
        self.ended = threading.Event()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = b""
            while self._reads and not request.endswith(b"\r\n\r\n" + BODY):  # it comes in pieces
                piece = connection.recv(1 << 16)
                if not piece:
                    return
                request += piece
            self._reply(connection)

    def close(self) -> None:
        self.ended.set()
        self._listener.close()


@pytest.fixture
def hostile() -> Iterator[Callable[..., Hostile]]:
    started: list[Hostile] = []

    def start(reply: Reply, **options: bool) -> Hostile:
        started.append(Hostile(reply, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


def say(text: bytes) -> Reply:
    return lambda connection: connection.sendall(text)


def post(url: str, seconds: float = PATIENCE) -> Answer:
    return send(urllib.request.Request(url, data=BODY, headers={"Authorization": "Bearer s3cret"}), seconds)


def drip(beginning: bytes, byte: bytes, pause: float = 0.05) -> Reply:
    def reply(connection: socket.socket) -> None:
        connection.sendall(beginning)
        stop = threading.Event()
        while not stop.wait(pause):
            connection.sendall(byte)

    return reply


def flood(beginning: bytes, piece: bytes) -> Reply:
    def reply(connection: socket.socket) -> None:
        connection.sendall(beginning)
        while True:
            connection.sendall(piece)

    return reply


def keep_silent(connection: socket.socket) -> None:
    connection.recv(1)


NEVER = {
    "never answers": keep_silent,
    "a byte of the status at a time": drip(b"HTTP/1.1 200 ", b"O"),
    "a byte of a header at a time": drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "one header after the other": drip(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n", 0.1),
    "continue without end": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("reply", NEVER.values(), ids=NEVER)
@pytest.mark.promise(
    "a server that never answers, or a byte at a time", "the request ends in its time; samples wait in the spool"
)
def test_a_server_that_does_not_come_to_its_answer_is_not_waited_for(
    hostile: Callable[..., Hostile], reply: Reply
) -> None:
    with pytest.raises(TimeoutError, match="no response within 1 s"):
        post(hostile(reply).url, SHORT)


def test_a_server_that_never_shakes_hands_is_not_waited_for(hostile: Callable[..., Hostile]) -> None:
    server = hostile(drip(b"\x16\x03\x03\x40\x00", b"\x00"), reads=False)
    with pytest.raises(OSError):
        post(server.url.replace("http:", "https:"), SHORT)


@pytest.mark.promise("an endless answer", "64 KB of it are read")
def test_of_an_endless_answer_the_beginning_is_read(hostile: Callable[..., Hostile]) -> None:
    for head in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"):
        answer = post(hostile(flood(head, b"x" * 4096)).url)
        assert answer.is_good and len(answer.body) <= MOST_OF_AN_ANSWER


def test_a_good_answer_whose_body_does_not_end_is_a_good_answer(
    hostile: Callable[..., Hostile], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[threading.Timer] = []

    class Timer(threading.Timer):
        """Begins with the body: on a busy machine the time could be over before the head has come."""

        def __init__(self, _: float, end: Callable[[], None]) -> None:
            super().__init__(SHORT, end)

        def start(self) -> None:
            waiting.append(self)

    def read1(response: http.client.HTTPResponse, size: int = -1) -> bytes:
        while waiting:
            threading.Thread.start(waiting.pop())
        return read_piece(response, size)

    read_piece = http.client.HTTPResponse.read1
    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(http.client.HTTPResponse, "read1", read1)
    server = hostile(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"))
    assert post(server.url).is_good


@pytest.mark.promise("an answer that is a gzip bomb", "it is not unpacked")
def test_a_packed_answer_is_not_unpacked(hostile: Callable[..., Hostile]) -> None:
    bomb = gzip.compress(bytes(50 << 20))
    server = hostile(say(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + bomb))
    assert post(server.url).body == bomb[:MOST_OF_AN_ANSWER]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[", "//", "", "itself", "other"])
@pytest.mark.promise("redirects to files, other hosts or in a circle", "none is followed")
def test_no_redirect_is_followed(hostile: Callable[..., Hostile], status: int, target: str) -> None:
    other = hostile(say(b"HTTP/1.1 200 OK\r\n\r\n"))
    location = {"itself": "/", "other": other.url}.get(target, target)
    server = hostile(say(f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()))
    assert post(server.url).status == status
    assert (server.connections, other.connections) == (1, 0)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "http://", "http://[::"])
def test_only_servers_are_asked(url: str) -> None:
    with pytest.raises((OSError, ValueError)):
        post(url)


@pytest.mark.parametrize(
    "reply",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000],
)
def test_garbage_is_an_error_of_the_network(hostile: Callable[..., Hostile], reply: bytes) -> None:
    with pytest.raises(OSError):
        post(hostile(say(reply)).url)


def test_a_text_of_the_server_cannot_write_on_a_terminal(hostile: Callable[..., Hostile]) -> None:
    server = hostile(say(b"HTTP/1.1 500 No\r\n\r\n\x1b]0;owned\x07no room\nmore"))
    assert post(server.url).text == "·]0;owned·no room"


@pytest.mark.promise("a server with a wrong certificate", "nothing is sent to it")
def test_tls_is_checked(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(100)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(UnknownAuthority, match="its certificate is not trusted: "):
            post(f"https://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None), ("", None), ("5", 5.0), ("-1", 0.0), ("1e9", 1e9), ("nan", None), ("inf", None), ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Fri, 31 Dec 9999 23:59:59 -9999", None), ("1" * 400, None),
    ],
)  # fmt: skip
def test_the_pause_that_a_server_asks_for(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text) == seconds


def test_a_date_is_a_pause_until_then() -> None:
    found = parse_retry_after(formatdate(2_000_000_000, usegmt=True))
    assert found is not None and found > 0
