"""What remote write and OTLP share: every interval all series go into the spool, and from there out in order.

A server that is away, busy or broken is tried again; one that refuses is believed, and that is counted. When all
ends, the last values and the end of every series go the same way, with little patience: what is not sent by then stays
in the spool for the next agent. Tested in tests/exporters/test_remote_write.py.
"""

from __future__ import annotations

import base64
import math
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client.metrics_core import Metric

from trainvitals import http_client
from trainvitals.errors import SettingError
from trainvitals.exporters.contracts import Order
from trainvitals.exporters.credentials import Credentials
from trainvitals.exporters.families import FamilyOptions, FamilySeries, is_hardware
from trainvitals.exporters.hardware_claim import HardwareClaim
from trainvitals.exporters.server_clock import ServerClock
from trainvitals.exporters.spool import Spool
from trainvitals.http_client import LONGEST_ASKED_PAUSE, Answer

TIMEOUT = 15.0
PATIENCE = 2.5
"""Seconds for the last words when the agent ends; `trainvitals agent stop` waits for 5."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
CLOCK_SLACK_MS = 60_000
"""A clock that was set back by less continues from the last sample: a series must move forward."""
CLOCK_PAUSE = 30.0
"""Between two looks at a server's clock while ours is ahead of it."""
_NOT_NEWER = ("out of order", "duplicate sample")
"""What Prometheus says of a series that somebody else pushes, too."""
DOOR = (401, 403, 404)
"""Refused at the door is a wrong setting, which somebody may put right; nothing is lost by waiting."""


@dataclass(slots=True)
class PushCounts:
    """What became of the requests."""

    sent: int = 0
    rejected: int = 0
    failed: int = 0
    trouble: str | None = None


class PushRequest(NamedTuple):
    """A request."""

    body: bytes
    headers: Mapping[str, str]


class Dialect(Protocol):
    """What is sent. One for each server: it remembers which series there were."""

    @property
    def title(self) -> str:
        """As in warnings."""

    def prepare(self, body: bytes) -> PushRequest:
        """What of the spool is to be sent, as this server understands it."""

    def is_misunderstood(self, sent: PushRequest, answer: Answer) -> bool:
        """Whether the server does not understand this; then `prepare` says it differently."""

    def begin_again(self) -> None:
        """The server was away, and may be another one when it is back."""

    def encode(self, families: Iterable[Metric], moment_ms: int) -> list[bytes]:
        """Requests with all these series, and with the end of those that are gone."""

    def is_passing(self, status: int) -> bool:
        """Whether a server that answers so may take the same request later."""

    def find_complaint(self, sent: PushRequest, answer: Answer) -> str | None:
        """The complaint of a server that accepted the request."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where metrics are sent, and where they wait for it."""

    url: str
    spool: Path
    credentials: Credentials = field(default_factory=Credentials)
    read_url: Callable[[], str] | None = None
    """As it is now, where a password in it may be replaced."""
    spool_bytes: int = 64 << 20


class PushQueue:
    """One server. What was not sent is sent by the next one with the same spool."""

    def __init__(
        self,
        dialect: Dialect,
        destination: Destination,
        collect: Callable[[], Iterable[Metric]],
        collect_endings: Callable[[], Iterable[Metric]] = tuple,
        *,
        interval: float = 15.0,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interval = interval
        self.dialect = dialect
        self._url, self._own_headers = split_url(destination.url)
        self._read_url = destination.read_url
        self._credentials = destination.credentials
        self._collect = collect
        self._claim = HardwareClaim(destination.url)
        self._collect_endings = collect_endings
        self._warn = warn
        self._clock = clock
        self._spool = Spool(destination.spool, destination.spool_bytes)
        self.counts = PushCounts()
        self._last_ms = 0
        self._server_clock = ServerClock(clock)
        self._writing = threading.Lock()
        self._hurry = threading.Event()
        self._news = threading.Event()
        self._ending = threading.Event()
        self._written = threading.Event()
        """The last words are in the spool."""
        self._given_up = threading.Event()
        self._threads = [
            threading.Thread(target=self._gather, name=f"{self.dialect.title}: gather", daemon=True),
            threading.Thread(target=self._send, name=f"{self.dialect.title}: send", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def of(cls, order: Order, dialect: Dialect, options: FamilyOptions | None = None) -> PushQueue:
        """As the settings of whoever asked for it want it."""
        wanted = options or order.options
        return cls(
            dialect,
            Destination(order.target, order.folder, order.make_credentials(), order.read_target),
            lambda: order.collect(wanted),
            lambda: order.collect_endings(wanted),
            interval=order.settings.prometheus_push_interval,
            warn=order.warn,
        )

    @property
    def pending_bytes(self) -> int:
        return self._spool.pending_bytes

    @property
    def dropped(self) -> int:
        """Requests given up because the spool was full."""
        return self._spool.dropped

    def hurry(self) -> None:
        """Look now, not only after the interval; the next look is an interval later."""
        self._hurry.set()

    def close(self, patience: float | None = None) -> None:
        """The last values and the end of every series, sent if the server takes them within `patience` seconds."""
        deadline = time.monotonic() + (PATIENCE if patience is None else patience)
        self._ending.set()
        self._hurry.set()
        self._news.set()
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._given_up.set()
        self._claim.release()

    def write_now(self) -> None:
        """Put all series into the spool."""
        self._write(self._collect, self._clock() + self.interval)

    def _write(self, collect: Callable[[], Iterable[Metric]], next_push: float) -> None:
        if self._server_clock.is_wrong:
            return
        with self._writing:  # a later moment must not get in before an earlier one
            now = int(self._clock() * 1000)
            if self._last_ms - CLOCK_SLACK_MS < now <= self._last_ms:
                now = self._last_ms + 1
            self._last_ms = now
            families = [*collect(), _announce(next_push)]
            if not self._claim.hold():
                families = _without_hardware(families)
            for body in self.dialect.encode(families, now):
                self._spool.put(body, now / 1000)
        self._news.set()

    # -- threads

    def _gather(self) -> None:
        while True:
            ending = self._ending.is_set()
            began = time.monotonic()
            try:
                self.write_now()
                if ending:
                    # With us every series ends; how a run ended must be seen by rules that are evaluated later.
                    self._write(self._collect_endings, math.inf)
            except OSError as error:
                self._warn_once(f"{self.dialect.title}: cannot write the spool: {error.strerror or error}")
            if ending:
                self._written.set()
                self._news.set()
                return
            self._hurry.wait(max(self.interval - (time.monotonic() - began), 0.0))
            self._hurry.clear()

    def _send(self) -> None:
        pause = FIRST_PAUSE
        while not self._given_up.is_set():
            last_try = self._ending.is_set()
            asked = self._check_clock()
            if asked is None:
                waiting = self._spool.oldest()
                if waiting is None:
                    if self._written.is_set():
                        return
                    self._news.wait(1.0)
                    self._news.clear()
                    continue
                name, moment, body = waiting
                asked = self._post(body, moment)
                if asked is None:
                    self._spool.done(name)
            if asked is None:
                pause = FIRST_PAUSE
            elif last_try:
                return
            else:
                self._ending.wait(max(asked, pause))
                pause = min(pause * 2, LONGEST_PAUSE)

    def _post(self, body: bytes, moment: float) -> float | None:
        """None when the request is dealt with, else for how many seconds to wait at least."""
        if self._server_clock.is_future(moment):
            self.counts.rejected += 1
            self._warn_once(f"{self.dialect.title}: dropping samples of the future: this machine's clock was wrong")
            return None
        sent = self.dialect.prepare(body)
        try:
            answer = self._exchange(sent)
            if self.dialect.is_misunderstood(sent, answer):
                sent = self.dialect.prepare(body)
                answer = self._exchange(sent)
        except OSError as error:
            self.dialect.begin_again()
            return self._fail(f"is unreachable: {error}", 0.0)
        status = f"{answer.status} {answer.reason}"
        if not answer.is_good:
            if self.dialect.is_passing(answer.status) or answer.status in DOOR:
                pause = min(answer.retry_after or 0.0, LONGEST_ASKED_PAUSE)
                return self._fail(f"returned {status}", pause, answer.text)
            self._reject(status, answer.text)
            return None
        complaint = self.dialect.find_complaint(sent, answer)
        if complaint is not None:
            self._reject("partially", complaint)
            return None
        self.counts.sent += 1
        self.counts.trouble = None
        return None

    def _check_clock(self) -> float | None:
        """None if something may be sent, else for how many seconds to wait."""
        if self._server_clock.ahead is not None and not self._server_clock.is_wrong:
            return None
        self._refresh_url()
        agent = {"User-Agent": self._own_headers["User-Agent"]}
        try:
            self._server_clock.ask(self._url, agent, self._credentials.context, TIMEOUT)
        except OSError as error:
            return self._fail(f"is unreachable: {error}", 0.0)
        if not self._server_clock.is_wrong:
            return None
        self.counts.failed += 1
        told = f"{self.dialect.title}: this machine's clock is ahead of that of {self._address}"
        self._warn_once(told, f"{told} by {self._server_clock.ahead:,.0f} s; nothing is pushed until it is right")
        return CLOCK_PAUSE

    def _exchange(self, sent: PushRequest) -> Answer:
        credentials = self._credentials
        self._refresh_url()
        headers = {**credentials.headers, **sent.headers, **self._own_headers}
        token = credentials.token
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self._url, data=sent.body, headers=headers, method="POST")
        answer = http_client.send(request, TIMEOUT, context=credentials.context)
        self._server_clock.read(answer)
        return answer

    def _refresh_url(self) -> None:
        if self._read_url is not None:
            with suppress(SettingError):  # it is being replaced: the one before may still do
                self._url, self._own_headers = split_url(self._read_url())

    def _reject(self, how: str, text: str) -> None:
        self.counts.rejected += 1
        if any(words in text for words in _NOT_NEWER):
            text += " (if another machine has this name and user, set prometheus.host on one of them)"
        self._warn_once(f"{self.dialect.title}: {self._address} rejected samples ({how}){': ' if text else ''}{text}")

    def _fail(self, what: str, pause: float, words: str = "") -> float:
        self.counts.failed += 1
        text = f"{self.dialect.title}: {self._address} {what}; keeping the samples and retrying"
        self._warn_once(text, f"{text}: {words}" if words else text)
        return pause

    @property
    def _address(self) -> str:
        return urllib.parse.urlsplit(self._url).netloc

    def _warn_once(self, text: str, in_full: str | None = None) -> None:
        """Once, not with every try; `in_full` may be different with each."""
        if text != self.counts.trouble:
            self.counts.trouble = text
            self._warn(in_full or text)


def _announce(next_push: float) -> Metric:
    """Whoever falls silent without saying that he will can be missed, whatever his interval is."""
    due = FamilySeries(
        "trainvitals_next_push_timestamp_seconds",
        "When the next push is due; infinite from an agent that has ended as it should",
        unit="seconds",
    )
    due.add((), next_push)
    return due.family


def _without_hardware(families: Iterable[Metric]) -> list[Metric]:
    found = []
    for family in families:
        kept = [sample for sample in family.samples if not is_hardware(sample)]
        if kept:
            family.samples = kept
            found.append(family)
    return found


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """(the address without a password in it, the headers of every request)."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    headers = {"User-Agent": f"trainvitals/{version('trainvitals')}"}
    if at:
        headers["Authorization"] = f"Basic {base64.b64encode(urllib.parse.unquote(user).encode()).decode()}"
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, "")), headers
