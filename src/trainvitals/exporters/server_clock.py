"""How far this machine's clock is ahead of a server's, by the date of its answers.

Prometheus that has taken one sample of the future refuses those of the present, of every machine. So a server is asked
for its time before anything is pushed. Tested in tests/exporters/test_remote_write.py.
"""

from __future__ import annotations

import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping

from trainvitals import http_client
from trainvitals.http_client import Answer

SLACK = 60.0
"""A clock that is ahead by more is wrong. A date has whole seconds, and an answer takes its time."""


class ServerClock:
    """Of one server, beside this machine's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.ahead: float | None = None
        """Seconds; None until a server has answered."""

    @property
    def is_wrong(self) -> bool:
        """Whether nothing may be sent."""
        return self.ahead is not None and self.ahead > SLACK

    def is_future(self, moment: float) -> bool:
        """Whether something was written while this clock was wrong."""
        return moment > self._clock() + SLACK

    def read(self, answer: Answer) -> None:
        """A server that does not tell its time is believed to have ours."""
        self.ahead = self._clock() - answer.date if answer.date is not None else 0.0

    def ask(self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None, seconds: float) -> None:
        """The server of this address; raises OSError."""
        parts = urllib.parse.urlsplit(url)
        place = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "/", "", ""))
        request = urllib.request.Request(place, headers={**headers, "Cache-Control": "no-cache"}, method="HEAD")
        self.read(http_client.send(request, seconds, context=context))
