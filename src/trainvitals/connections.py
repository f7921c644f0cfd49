"""How our servers listen, and limits for connections that occupy one without sending a request.

A request whose head never ends costs a descriptor, of which there are about a thousand: before any token is checked,
half-sent requests could lock everybody out. So a request has to arrive within a time limit, an address gets a share of
the connections, and when there is no room the oldest idle connection is closed. With TLS that begins before the
handshake, of which uvicorn's own TLS would tell a protocol only the end.
Tested in tests/views/web/test_server.py and tests/fleet/test_serving.py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainvitals import runtime
from trainvitals.certificates import CurrentContext

REQUEST_SECONDS = 15.0
"""Time for a request to arrive in full, from its first byte, or from the start of the connection."""
PIECE_SECONDS = 60.0
"""The same where requests bring large pieces, perhaps over a slow line."""
AT_ONCE = 64
"""Connections accepted before the first of them is handled."""
KEPT_DESCRIPTORS = AT_ONCE + 128
"""For these, and for the files read to answer."""
MOST_CONNECTIONS = 4096


class Guests:
    """The open connections of one server, oldest first."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most or max(min(runtime.raise_descriptor_limit() - KEPT_DESCRIPTORS, MOST_CONNECTIONS), 16)
        self._open: dict[GuardedProtocol, str] = {}

    def admit(self, guest: GuardedProtocol, address: str) -> bool:
        """Whether there is room. An address gets three quarters of it at most, so that others can connect as well."""
        self._open[guest] = address
        mine = [other for other, known in self._open.items() if known == address]
        if len(mine) > self.most * 3 // 4:
            return self._make_way(mine, guest)
        return len(self._open) <= self.most or self._make_way(list(self._open), guest)

    def _make_way(self, among: list[GuardedProtocol], newcomer: GuardedProtocol) -> bool:
        idle = next((guest for guest in among if guest.is_waiting and guest is not newcomer), None)
        if idle is not None:
            idle.hang_up()
        return idle is not None

    def leave(self, guest: GuardedProtocol) -> None:
        """The connection is closed."""
        self._open.pop(guest, None)


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for requests, and for the handshake before them where there is TLS."""

    guests: Guests
    request_seconds: float
    context: CurrentContext | None
    _timer: asyncio.TimerHandle | None = None
    _below: asyncio.Transport | None = None
    """The connection without TLS, while hands are shaken."""
    _handshake: asyncio.Task[None] | None = None
    _early: bytes = b""
    """What came with the end of the handshake."""

    @property
    def is_waiting(self) -> bool:
        """No request has arrived yet, or none since the last answer."""
        return self.conn.their_state is h11.IDLE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._start_timer()
        if self.context is None:
            super().connection_made(transport)
        else:
            transport.pause_reading()
            self.connections.add(self)  # so that the server ends it with the others
            self._below = transport
            self._handshake = self.loop.create_task(self._shake_hands(transport, self.context.get()))
        peer = transport.get_extra_info("peername")
        if not self.guests.admit(self, str(peer[0]) if peer else ""):
            self.hang_up()

    async def _shake_hands(self, below: asyncio.Transport, context: ssl.SSLContext) -> None:
        secure = None
        if not below.is_closing():
            with suppress(OSError):  # no TLS, no certificate, too slow, gone: the connection is closed
                secure = await self.loop.start_tls(
                    below, self, context, server_side=True, ssl_handshake_timeout=REQUEST_SECONDS
                )
        self._below = None
        if secure is None:
            self._forget()
            return
        super().connection_made(secure)
        if self._early:
            self.data_received(self._early)
            self._early = b""

    def data_received(self, data: bytes) -> None:
        if self._below is not None:
            self._early += data
            return
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self.transport is not None:
            super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_timer()  # uvicorn's keep-alive timeout counts from here

    def shutdown(self) -> None:
        if self._below is not None:
            self.hang_up()
        else:
            super().shutdown()

    def hang_up(self) -> None:
        """Close it without an answer."""
        self.guests.leave(self)
        (self._below or self.transport).abort()

    def _forget(self) -> None:
        self._stop_timer()
        self.guests.leave(self)
        self.connections.discard(self)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.request_seconds, self.hang_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_protocol(request_seconds: float = REQUEST_SECONDS, context: CurrentContext | None = None) -> Any:
    """A protocol class with a separate list of connections; with a context they speak TLS, in a loop of asyncio."""
    about = {"guests": Guests(), "request_seconds": request_seconds, "context": context}
    return type("Protocol", (GuardedProtocol,), about)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(1024)
    except OSError:
        made.close()
        raise
    return made


def make_server(
    app: Any,
    *,
    grace_seconds: int,
    idle_seconds: int,
    request_seconds: float = REQUEST_SECONDS,
    context: CurrentContext | None = None,
    lifespan: Literal["auto", "off"] = "auto",
) -> uvicorn.Server:
    """A server within these limits. `grace_seconds` are for requests that it still answers when it is to end,
    `idle_seconds` how long a connection without one is kept."""
    config = uvicorn.Config(
        app,
        # uvloop reads from a connection before the protocol can say that TLS comes first.
        loop="auto" if context is None else "asyncio",
        lifespan=lifespan,
        log_level="warning",
        access_log=False,  # URLs may contain metric names and, once, a code or the token
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
        timeout_keep_alive=idle_seconds,
        http=make_protocol(request_seconds, context),
        ws="none",
        backlog=AT_ONCE,
        h11_max_incomplete_event_size=64 << 10,
    )
    return uvicorn.Server(config)
