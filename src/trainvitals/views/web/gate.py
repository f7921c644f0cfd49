"""Access control: the Host header, the token, and the headers of every answer.

Another site's page must not reach this server through the user's browser: the Host header is checked against the names
of this server (DNS rebinding), and a request that changes something must come from our own page (Origin,
Sec-Fetch-Site), whether or not a token is required. A browser logs in with a link (`login`), a program with the token.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from trainvitals.guessing import WrongTokens
from trainvitals.host_names import is_address, is_loopback, split_host
from trainvitals.views.web import entrance, login

if TYPE_CHECKING:
    from trainvitals.trackers.intake.app import IntakeApp

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
CSP = b"content-security-policy"
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
SAFE = ("GET", "HEAD", "OPTIONS")
ENTRANCE = ("code", "token")
"""Query parameters that log a browser in."""


@dataclass(frozen=True)
class Door:
    """What is checked. `hosts` are the names, besides loopback and addresses, allowed in the Host header."""

    token: str | None = None
    hosts: frozenset[str] = field(default_factory=frozenset)
    any_address: bool = False
    """Bound to all addresses: a request may name any of them, but no unknown name."""
    port: int = 0
    begun: float = field(default_factory=time.time)
    how_to_enter: str = ""
    """The command that prints a link."""
    has_viewers: bool = False
    """Whether others have tokens of their own."""

    def knows(self, header: str) -> bool:
        """Whether the Host header names this server."""
        name = split_host(header)
        if name is None:
            return False
        if is_loopback(name) or name in self.hosts:
            return True
        return self.any_address and is_address(name)

    def accepts(self, token: str) -> bool:
        """Whether this is the token, in constant time."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())


class Gate:
    """ASGI: lets a request through or answers it itself."""

    def __init__(self, app: App, door: Door, intake: IntakeApp | None = None) -> None:
        """What `intake` receives it admits itself: clients of other trackers have ways of their own to show a token."""
        self._app = app
        self._door = door
        self._intake = intake
        self._codes = login.Codes(door.token, door.port, door.begun) if door.token is not None else None
        # Who guesses gets no more tries from two entrances than from one.
        self._wrong = intake.wrong_tokens if intake is not None else WrongTokens(door.token or "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if not any(name == CSP for name, _ in headers):
                    headers.append((CSP, POLICY.encode()))
                message["headers"] = [*headers, *HEADERS]
            await send(message)

        headers = read_headers(scope)
        host = headers.get("host", [])
        if len(host) != 1 or not self._door.knows(host[0]):
            shown = host[0][:80] if host else ""
            await _refuse(send_guarded, 421, f"unknown host name '{shown}'", _host_hint(shown))
            return
        if scope["method"] not in SAFE and not _is_own(headers, host[0]):
            await _refuse(send_guarded, 403, "cross-site requests may not change anything")
            return
        if self._intake is not None and self._intake.owns(scope["path"]):
            await self._intake(scope, receive, send_guarded)
            return
        if self._codes is not None and not await self._admit(self._codes, scope, headers, send_guarded):
            return
        await self._app(scope, receive, send_guarded)

    async def _admit(self, codes: login.Codes, scope: Scope, headers: dict[str, list[str]], send: Send) -> bool:
        """Whether the request may proceed; if not, it is answered."""
        token = self._door.token or ""
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        offered = {name: value for name, value in query if name in ENTRANCE} if scope["method"] == "GET" else {}
        name = cookie_name(headers["host"][0])
        knows_cookie = any(login.is_cookie(token, value) for value in list_cookies(headers, name))
        if knows_cookie and not offered:
            return True
        problem = "Authentication required"
        if knows_cookie or ("code" in offered and (problem := codes.spend(offered["code"]) or "") == ""):
            await _let_in(scope, headers, query, send, "" if knows_cookie else login.new_cookie(token))
            return False
        given = [offered["token"]] if "token" in offered else list(list_bearers(headers))
        if given:
            address = scope["client"][0] if scope.get("client") else ""
            wait = self._wrong.wait(address)
            if wait > 0:
                await _refuse(send, 429, "too many wrong tokens", "wait a minute", retry_after=wait)
                return False
            if any(self._door.accepts(text) for text in given):
                if not offered:
                    return True
                await _let_in(scope, headers, query, send, login.new_cookie(token))
                return False
            self._wrong.note(address)
            problem = "Wrong token"
        if scope["method"] == "GET" and any("text/html" in value for value in headers.get("accept", [])):
            host = headers.get("host", [""])[0].strip() if self._door.has_viewers else ""
            await _show(send, 401, entrance.draw_entrance(problem, self._door.how_to_enter, host))
        else:
            viewers = "; for viewers: ?token=TOKEN, with the role read or admin" if self._door.has_viewers else ""
            hint = f"for a browser link: {self._door.how_to_enter}{viewers}; for programs: Authorization: Bearer TOKEN"
            await _refuse(send, 401, problem[0].lower() + problem[1:], hint)
        return False


async def _let_in(
    scope: Scope, headers: dict[str, list[str]], query: list[tuple[str, str]], send: Send, cookie: str
) -> None:
    """Take the code or the token out of the address bar; the browser keeps `cookie` where scripts cannot read it."""
    rest = urlencode([(name, value) for name, value in query if name not in ENTRANCE])
    # A relative address: the path of a request never chooses another site.
    target = "./" + (f"?{rest}" if rest else "") if scope["path"] == "/" else f"?{rest}"
    cookies = []
    if cookie:
        name = cookie_name(headers["host"][0])
        text = f"{name}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={login.COOKIE_SECONDS}"
        cookies.append((b"set-cookie", text.encode()))
    if headers.get("sec-fetch-site", ["none"])[0] in ("cross-site", "same-site"):
        # A strict cookie is not sent along a redirect that began on another site, but from a page of ours it is.
        await _show(send, 200, entrance.draw_step(target), cookies)
        return
    headers_sent = [(b"location", target.encode("latin-1", "replace")), (b"cache-control", b"no-store"), *cookies]
    await send({"type": "http.response.start", "status": 303, "headers": headers_sent})
    await send({"type": "http.response.body", "body": b""})


def cookie_name(host: str) -> str:
    """By the port that the browser sees: it has one set of cookies for all servers of a host, also forwarded ones."""
    port = host.strip().rpartition("]")[2].rpartition(":")[2]
    return f"trainvitals_{port if port.isdecimal() else 80}"


def read_headers(scope: Scope) -> dict[str, list[str]]:
    """By name, in lower case."""
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def list_bearers(headers: dict[str, list[str]]) -> Iterator[str]:
    """Tokens of programs."""
    for value in headers.get("authorization", []):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()


def list_cookies(headers: dict[str, list[str]], wanted: str) -> Iterator[str]:
    """The values of the cookie of this name."""
    for value in headers.get("cookie", []):
        for part in value.split(";"):
            name, _, text = part.strip().partition("=")
            if name == wanted:
                yield text


def _is_own(headers: dict[str, list[str]], host: str) -> bool:
    """A request from our own page, or from a program other than a browser."""
    site = headers.get("sec-fetch-site", ["same-origin"])[0]
    if site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin[0].partition("://")[2].lower() == host.strip().lower()


def _host_hint(host: str) -> str:
    name = split_host(host) or "NAME"
    return f"to allow it: trainvitals serve --allow-host {name}"


async def _refuse(send: Send, status: int, message: str, hint: str = "", retry_after: float = 0.0) -> None:
    import orjson

    body = orjson.dumps({"error": {"message": message, "hint": hint}})
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="trainvitals"'))
    if retry_after:
        headers.append((b"retry-after", str(math.ceil(retry_after)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _show(send: Send, status: int, page: str, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A page for a browser that is not logged in: all of it in one answer."""
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (CSP, entrance.POLICY.encode()),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": page.encode()})
