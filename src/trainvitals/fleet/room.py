"""Bounds for requests that are held in memory. Tested in tests/fleet/test_gateway.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainvitals.errors import TrainvitalsError
from trainvitals.fleet import wire


class Busy(TrainvitalsError):
    """There is no room now."""


class RequestRoom:
    """For requests that are being received or worked on. Used in their loop."""

    def __init__(self, most_bytes: int, most_requests: int) -> None:
        self._most_bytes = most_bytes
        self._most_requests = most_requests
        self._bytes = self._requests = 0

    @contextmanager
    def hold(self, announced: str) -> Iterator[None]:
        """For one request, by its `Content-Length`; raises Busy."""
        # Of one that does not say how long it is, the most that will be read.
        size = min(int(announced), wire.MOST_BYTES) if announced.isdecimal() else wire.MOST_BYTES
        if self._bytes + size > self._most_bytes or self._requests >= self._most_requests:
            raise Busy("too many concurrent requests: the memory limit is reached")
        self._bytes += size
        self._requests += 1
        try:
            yield
        finally:
            self._bytes -= size
            self._requests -= 1
