"""Prometheus remote write: for where nothing can scrape. Prometheus, VictoriaMetrics, Mimir, Thanos take it.

Every interval all series are written to the spool, and from there sent in order. A server that is away, busy (429)
or broken (5xx) is tried again; one that refuses (other 4xx: out of order, too old) is believed, and that is counted.
"""

from __future__ import annotations

import base64
import http.client
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric

from trainvitals.exporters import wire
from trainvitals.exporters.labels import text_of
from trainvitals.exporters.spool import Spool

TIMEOUT = 15.0
BATCH = 2000
"""Series in one request."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
CLOCK_SLACK_MS = 60_000
"""A clock that was set back by less goes on from the last sample: a series must move forward."""


@dataclass(slots=True)
class Counts:
    """What became of the requests."""

    sent: int = 0
    rejected: int = 0
    failed: int = 0
    trouble: str | None = None


class RemoteWrite:
    """One server. `close` ends it within a moment; what was not sent is sent by the next one with the same spool."""

    def __init__(
        self,
        url: str,
        folder: Path,
        collect: Callable[[], Iterable[Metric]],
        *,
        interval: float = 15.0,
        token: str | None = None,
        most_bytes: int = 64 << 20,
        labels: dict[str, str] | None = None,
        tell: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._request = _prepare(url, token)
        self._collect = collect
        self._interval = interval
        self._labels = labels or {}
        self._tell = tell
        self._clock = clock
        self._spool = Spool(folder, most_bytes)
        self.counts = Counts()
        self._encoded: dict[tuple[str, str], bytes] = {}
        self._last_ms = 0
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._news = threading.Event()
        self._threads = [
            threading.Thread(target=self._gather, name="remote write: gather", daemon=True),
            threading.Thread(target=self._send, name="remote write: send", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending_bytes(self) -> int:
        return self._spool.pending_bytes

    @property
    def dropped(self) -> int:
        """Requests given up because the spool was full."""
        return self._spool.dropped

    def close(self) -> None:
        """One last look at everything, kept in the spool."""
        self._ending.set()
        self._news.set()
        self._threads[0].join(2.0)

    def write_now(self) -> int:
        """Put all series into the spool. Returns how many."""
        with self._writing:  # a later moment must not get in before an earlier one
            return self._write()

    def _write(self) -> int:
        now = int(self._clock() * 1000)
        if self._last_ms - CLOCK_SLACK_MS < now <= self._last_ms:
            now = self._last_ms + 1
        self._last_ms = now
        seen: dict[tuple[str, str], bytes] = {}
        series: list[bytes] = []
        for family in self._collect():
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                key = (sample.name, text_of(sample.labels))
                labels = self._encoded.get(key)
                if labels is None:
                    labels = wire.encode_labels({"__name__": sample.name, **self._labels, **sample.labels})
                seen[key] = labels
                series.append(wire.encode_series(labels, float(sample.value), now))
        series += [wire.encode_series(labels, None, now) for key, labels in self._encoded.items() if key not in seen]
        self._encoded = seen
        for start in range(0, len(series), BATCH):
            self._spool.put(wire.encode_request(series[start : start + BATCH]))
        self._news.set()
        return len(series)

    # -- threads

    def _gather(self) -> None:
        due = time.monotonic()
        while True:
            try:
                self.write_now()
            except OSError as error:
                self._say(f"remote write: the spool cannot be written: {error.strerror or error}")
            if self._ending.is_set():
                return
            due = max(due + self._interval, time.monotonic())
            self._ending.wait(due - time.monotonic())

    def _send(self) -> None:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            waiting = self._spool.oldest()
            if waiting is None:
                self._news.wait(1.0)
                self._news.clear()
                continue
            name, body = waiting
            asked = self._post(body)
            if asked is None:
                self._spool.done(name)
                pause = FIRST_PAUSE
            else:
                self._ending.wait(max(asked, pause))
                pause = min(pause * 2, LONGEST_PAUSE)

    def _post(self, body: bytes) -> float | None:
        """None when the request is dealt with, else for how many seconds to wait at least."""
        request = urllib.request.Request(
            self._request.full_url, data=body, headers=dict(self._request.header_items()), method="POST"
        )
        try:
            with _OPENER.open(request, timeout=TIMEOUT) as response:
                response.read(1 << 16)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(1 << 10).decode("utf-8", "replace").strip()
            if error.code == 429 or error.code >= 500 or error.code in (401, 403, 404):
                # Refused at the door is a wrong setting, which somebody may put right; nothing is lost by waiting.
                return self._fail(
                    f"answers {error.code} {error.reason}", _parse_pause(error.headers.get("Retry-After"))
                )
            self.counts.rejected += 1
            self._say(
                f"remote write: the server refuses samples ({error.code}): {text.splitlines()[0] if text else ''}"
            )
            return None
        except (OSError, http.client.HTTPException) as error:
            return self._fail(
                f"cannot be reached: {getattr(error, 'reason', None) or error or type(error).__name__}", 0.0
            )
        self.counts.sent += 1
        self.counts.trouble = None
        return None

    def _fail(self, what: str, pause: float) -> float:
        self.counts.failed += 1
        self._say(
            f"remote write: {urllib.parse.urlsplit(self._request.full_url).netloc} {what}; it is kept and tried again"
        )
        return pause

    def _say(self, text: str) -> None:
        if text != self.counts.trouble:  # once, not with every try
            self.counts.trouble = text
            self._tell(text)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: object) -> None:
        """None: a redirect would carry the token to somewhere else."""


_OPENER = urllib.request.build_opener(_NoRedirect())


def _prepare(url: str, token: str | None) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    headers = {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
        "User-Agent": "trainvitals",
    }
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    elif at:
        headers["Authorization"] = f"Basic {base64.b64encode(urllib.parse.unquote(user).encode()).decode()}"
    return urllib.request.Request(
        urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, "")), headers=headers
    )


def _parse_pause(text: str | None) -> float:
    """Seconds of a Retry-After; 0 for a date or nothing."""
    try:
        return min(max(float(text or 0.0), 0.0), 600.0)
    except ValueError:
        return 0.0
