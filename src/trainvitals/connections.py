"""Limits for connections that occupy the server without sending a request.

A request whose head never ends costs a descriptor, of which there are about a thousand: before any token is checked,
half-sent requests could lock everybody out. So a request has to arrive within a time limit, an address gets a share of
the connections, and when there is no room the oldest idle connection is closed.
Tested in tests/views/web/test_server.py and tests/fleet/test_serving.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainvitals import runtime

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
    """uvicorn's protocol with a time limit for requests."""

    guests: Guests
    request_seconds: float
    _timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """No request has arrived yet, or none since the last answer."""
        return self.conn.their_state is h11.IDLE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        if not self.guests.admit(self, self.client[0] if self.client else ""):
            self.hang_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.guests.leave(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_timer()  # uvicorn's keep-alive timeout counts from here

    def hang_up(self) -> None:
        """Close it without an answer."""
        self.guests.leave(self)
        self.transport.abort()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.request_seconds, self.hang_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_protocol(request_seconds: float = REQUEST_SECONDS) -> Any:
    """A protocol class with a separate list of connections."""
    return type("Protocol", (GuardedProtocol,), {"guests": Guests(), "request_seconds": request_seconds})
