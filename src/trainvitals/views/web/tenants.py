"""One server for many tenants: what a viewer sees is decided by the token, and each has a server of its own within it.

A token is for projects (`trainvitals.fleet.tokens`). Behind it is a whole application whose runs are those of these
projects: there is no question that could be asked about others, and nothing that is remembered for one tenant is given
to another. The file of tokens is read again when it changes, and who is no longer in it is out at once, cookie or not.
Who started the server sees everything, with its own link. Tested in tests/fleet/test_tenants.py.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from trainvitals.views.web import login
from trainvitals.views.web.gate import (
    App,
    Door,
    Receive,
    Scope,
    Send,
    cookie_name,
    list_bearers,
    list_cookies,
    read_headers,
)

if TYPE_CHECKING:
    from trainvitals.fleet.tokens import Access, Tokens
    from trainvitals.journal.contracts import Runs

MakeApp = Callable[["Runs", Door], App]
"""The application for these runs, behind this door."""
FindRuns = Callable[["frozenset[str] | None"], "Runs"]
"""The runs of these projects; of all for None."""


@dataclass(frozen=True)
class TenantDoor(Door):
    """Opened by a token of which only the hash is known. `token`, which signs the cookies, is made from that and from a
    secret of the server: who reads the file of hashes cannot make one."""

    digest: str = ""

    def accepts(self, token: str) -> bool:
        given = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return hmac.compare_digest(given, self.digest)


class Tenants:
    """ASGI: hands each request to the application of the tenant who asks."""

    def __init__(self, tokens: Tokens, find_runs: FindRuns, make_app: MakeApp, door: Door) -> None:
        self._tokens = tokens
        self._find_runs = find_runs
        self._make_app = make_app
        self._door = door
        self._apps: dict[str, tuple[Access, TenantDoor, App]] = {}
        assert door.token is not None
        self._secret = door.token
        self._owner = make_app(find_runs(None), door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._choose(scope) if scope["type"] == "http" else self._owner
        await app(scope, receive, send)

    def _choose(self, scope: Scope) -> App:
        headers = read_headers(scope)
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        offered = [value for name, value in query if name == "token"] or list(list_bearers(headers))
        host = headers.get("host", [""])[0]
        cookies = list(list_cookies(headers, cookie_name(host)))
        for _, door, app in self._refresh().values():
            if any(door.accepts(text) for text in offered):
                return app
            if not offered and any(login.is_cookie(door.token or "", value) for value in cookies):
                return app
        return self._owner  # whose door lets nobody else in

    def _refresh(self) -> dict[str, tuple[Access, TenantDoor, App]]:
        known = {digest: access for digest, access in self._tokens.list().items() if access.role in ("read", "admin")}
        for digest in [digest for digest, (access, _, _) in self._apps.items() if known.get(digest) != access]:
            del self._apps[digest]
        for digest, access in known.items():
            if digest not in self._apps:
                key = hmac.new(self._secret.encode(), digest.encode(), "sha256").hexdigest()
                about = (self._door.hosts, self._door.any_address, self._door.port, self._door.begun)
                door = TenantDoor(key, *about, how_to_enter=self._door.how_to_enter, digest=digest)
                self._apps[digest] = (access, door, self._make_app(self._find_runs(access.readable), door))
        return self._apps
