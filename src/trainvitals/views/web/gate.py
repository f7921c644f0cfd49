"""Who may come in: the Host header, the token, and the headers that every answer carries.

Loopback needs no token, but a page of somebody else's must not reach it through the user's browser: the Host header is
checked against the names this server answers to (DNS rebinding), and a request that changes something must come from
our own page (Origin, Sec-Fetch-Site). Anything but loopback needs the token, once in the address, then as a cookie.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "trainvitals_token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
SAFE = ("GET", "HEAD", "OPTIONS")


def new_token() -> str:
    """Long enough that nobody guesses it."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine only."""
    if host in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Door:
    """What is checked. `hosts` are the names besides loopback and addresses that may stand in the Host header."""

    token: str | None = None
    hosts: frozenset[str] = field(default_factory=frozenset)
    any_address: bool = False
    """Bound to all addresses: a request may name any of them, but still no foreign name."""

    def knows(self, header: str) -> bool:
        """Whether the Host header names this server."""
        name = split_host(header)
        if name is None:
            return False
        if is_loopback(name) or name in self.hosts:
            return True
        if not self.any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # a name can be made to point here by anybody, an address cannot

    def accepts(self, token: str) -> bool:
        """Whether this is the token, in constant time."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())


def split_host(header: str) -> str | None:
    """The name without its port, lower case; None if the header is no host."""
    text = header.strip().lower()
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and port[1:].isdecimal())):
            return None
        return name
    name, colon, port = text.partition(":")
    if not name or (colon and not port.isdecimal()) or any(character in name for character in "/\\@ \t"):
        return None
    return name.rstrip(".") or None


class Gate:
    """ASGI: lets a request through or answers it itself."""

    def __init__(self, app: App, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        headers = _headers(scope)
        host = headers.get("host", [])
        if len(host) != 1 or not self._door.knows(host[0]):
            shown = host[0][:80] if host else ""
            await _refuse(send_guarded, 421, f"this server does not answer to the name '{shown}'", _host_hint(shown))
            return
        if scope["method"] not in SAFE and not _is_own(headers, host[0]):
            await _refuse(send_guarded, 403, "a page of another site may not change anything here")
            return
        if self._door.token is not None and not await self._admit(scope, headers, send_guarded):
            return
        await self._app(scope, receive, send_guarded)

    async def _admit(self, scope: Scope, headers: dict[str, list[str]], send: Send) -> bool:
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        offered = [value for name, value in query if name == "token"]
        if offered and scope["method"] == "GET":
            if not self._door.accepts(offered[0]):
                await _refuse(send, 401, "this is not the token", "open the address that `trainvitals serve` printed")
                return False
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # The token leaves the address bar at once; the browser keeps it where scripts cannot read it.
            cookie = f"{COOKIE}={self._door.token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
            # A relative address: the path of a request never chooses another site.
            target = "./" + (f"?{rest}" if rest else "") if scope["path"] == "/" else f"?{rest}"
            location = (b"location", target.encode("latin-1", "replace"))
            await send(
                {
                    "type": "http.response.start",
                    "status": 303,
                    "headers": [location, (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")],
                }
            )
            await send({"type": "http.response.body", "body": b""})
            return False
        if any(self._door.accepts(token) for token in _tokens(headers)):
            return True
        await _refuse(send, 401, "a token is needed", "open the address that `trainvitals serve` printed")
        return False


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _tokens(headers: dict[str, list[str]]) -> Iterable[str]:
    for value in headers.get("authorization", []):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()
    for value in headers.get("cookie", []):
        for part in value.split(";"):
            name, _, token = part.strip().partition("=")
            if name == COOKIE:
                yield token


def _is_own(headers: dict[str, list[str]], host: str) -> bool:
    """A request from our own page, or from a program that is no browser."""
    site = headers.get("sec-fetch-site", ["same-origin"])[0]
    if site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin[0].partition("://")[2].lower() == host.strip().lower()


def _host_hint(host: str) -> str:
    name = split_host(host) or "NAME"
    return f"to allow it: trainvitals serve --allow-host {name}"


async def _refuse(send: Send, status: int, message: str, hint: str = "") -> None:
    import orjson

    body = orjson.dumps({"error": {"message": message, "hint": hint}})
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="trainvitals"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
