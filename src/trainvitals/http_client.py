"""HTTP requests to foreign servers, which may be slow, broken or hostile.

The time limit is for the whole request, whereas the timeout of a socket restarts with every byte. No redirect is
followed: it would send a password elsewhere, or turn a POST into a GET.
"""

from __future__ import annotations

import functools
import http.client
import math
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from trainvitals.safe_text import one_line

MOST_OF_AN_ANSWER = 1 << 16
LONGEST_ASKED_PAUSE = 600.0
"""Seconds for which a server may ask us to stay away."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server, whatever its status."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    """Its beginning, or as much as arrived in time."""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> float | None:
        """Seconds from now, if the server asks to wait."""
        return parse_retry_after(self.headers.get("Retry-After"))

    @property
    def date(self) -> float | None:
        """By the server's clock, in seconds since 1970, to the second; None if it does not say."""
        try:
            return parsedate_to_datetime(self.headers.get("Date") or "").timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            return None

    @property
    def text(self) -> str:
        """The first line of the body, safe to print."""
        return one_line(self.body[:1024].decode("utf-8", "replace").strip().partition("\n")[0])


class UnknownAuthority(OSError):
    """The server's certificate was signed by nobody that the client trusts."""


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes for it: self-signed, and three of an issuer that is not there."""


def send(
    request: urllib.request.Request,
    seconds: float,
    *,
    most: int = MOST_OF_AN_ANSWER,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """The answer to a request over HTTP or HTTPS, up to `most` bytes of it; raises OSError if there is none, with the
    reason. `context` has the certificates for HTTPS, by default those that the system trusts."""
    watch = _Watch(seconds)
    opener = urllib.request.OpenerDirector()  # not the usual one, which follows redirects and reads files
    for handler in (urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), _Handler(watch, context)):
        opener.add_handler(handler)
    with watch:
        try:
            response = opener.open(request, timeout=seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            if watch.is_over or isinstance(reason, TimeoutError):
                raise TimeoutError(f"no response within {seconds:g} s") from None
            if isinstance(reason, ssl.SSLCertVerificationError):
                kind = UnknownAuthority if reason.verify_code in _UNKNOWN_AUTHORITY else OSError
                raise kind(f"its certificate is not trusted: {reason.verify_message}") from error
            raise OSError(str(reason) or type(error).__name__) from error
        with response:
            if watch.is_over:  # a truncated status line looks like a complete one
                raise TimeoutError(f"no response within {seconds:g} s")
            body = bytearray()
            try:
                while len(body) < most and (piece := response.read1(most - len(body))):
                    body += piece
            except (OSError, http.client.HTTPException, ValueError):
                pass  # the status is known, the rest is not worth waiting for
            return Answer(response.status, response.reason or "", response.headers, bytes(body))


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from now; the header is a number of them or a date. None if it is neither."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


class _Watch:
    """Cuts off a connection when its time is over."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def guard(self, connected: socket.socket) -> None:
        self._socket = connected
        if self.is_over:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            try:
                # Not the method of a TLS socket: another thread reads from it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already


class _Connection(http.client.HTTPConnection):
    """A connection that `watch` can cut off."""

    def __init__(self, watch: _Watch, host: str, **more: Any) -> None:
        super().__init__(host, **more)
        self._watch = watch

    def connect(self) -> None:
        super().connect()
        self._watch.guard(self.sock)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens such connections."""

    def __init__(self, watch: _Watch, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._watch = watch
        self._certificates = context

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_Connection, self._watch), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_SecureConnection, self._watch), request, context=self._certificates)
