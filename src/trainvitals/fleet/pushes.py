"""Pushes of hardware metrics on their way through a gateway to the metrics storage.

They have threads and memory of their own: while that storage hangs, runs are taken as before. Tested in
tests/fleet/test_gateway.py.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from trainvitals import http_client
from trainvitals.fleet.room import RequestRoom
from trainvitals.fleet.tokens import Access

MOST_REQUESTS, MOST_BYTES = 128, 64 << 20
"""Held at once; from there on agents are asked to come back later."""
THREADS = 32
ANSWER_SECONDS = 30.0
TENANT = "x-scope-orgid"
_PASSED = ("content-type", "content-encoding", "x-prometheus-remote-write-version")
_TOLD = ("content-type", "retry-after", "x-prometheus-remote-write-")


class Pushes:
    """To one address that takes Prometheus' remote write."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.room = RequestRoom(MOST_BYTES, MOST_REQUESTS)
        self._threads = ThreadPoolExecutor(THREADS, "pushes")

    async def send(self, body: bytes, headers: Mapping[str, str], access: Access) -> http_client.Answer:
        """As it came, but for whom it names; raises OSError."""
        passed = {name: value for name in _PASSED if (value := headers.get(name)) is not None}
        if (tenant := access.find_metrics_tenant(headers.get(TENANT))) is not None:
            passed[TENANT] = tenant
        push = urllib.request.Request(self._address, body, passed, method="POST")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, http_client.send, push, ANSWER_SECONDS)

    def close(self) -> None:
        """What was not answered is pushed again."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def pick_told(headers: Mapping[str, str]) -> dict[str, str]:
    """What an agent has to know of an answer."""
    return {name: value for name, value in headers.items() if name.lower().startswith(_TOLD)}
