"""One server for many tenants: what a viewer sees is decided by the token, and each has a server of its own within it.

A token is for projects (`trainvitals.fleet.tokens`). Behind it is a whole application whose runs are those of these
projects: there is no question that could be asked about others, and nothing that is remembered for one tenant is given
to another. The file of tokens is read again when it changes, and who is no longer in it is out at once, cookie or not.
Who started the server sees everything, with its own link. Who did what can be written down (`trainvitals.fleet.audit`).
Tested in tests/fleet/test_tenants.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from trainvitals.views.web import login
from trainvitals.views.web.app import PREFIX
from trainvitals.views.web.gate import (
    ENTRANCE,
    SAFE,
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
    from trainvitals.fleet.audit import Audit
    from trainvitals.fleet.tokens import Access, Tokens
    from trainvitals.journal.contracts import Runs

OWNER = "owner"
"""Who started the server, in the audit."""
OWNERS_ONLY = frozenset({f"{PREFIX}/machine"})
"""About the machine that the server is on: no run of a tenant's need be there."""
EXPORTS = frozenset({"export", "report"})
REFUSALS = frozenset({401, 403, 421, 429})

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

    def __init__(
        self, tokens: Tokens, find_runs: FindRuns, make_app: MakeApp, door: Door, audit: Audit | None = None
    ) -> None:
        self._tokens = tokens
        self._audit = audit
        self._find_runs = find_runs
        self._make_app = make_app
        self._door = door = replace(door, has_viewers=True)
        self._apps: dict[str, tuple[Access, TenantDoor, App]] = {}
        assert door.token is not None
        self._secret = door.token
        self._owner = make_app(find_runs(None), door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._owner(scope, receive, send)
            return
        access, app = self._choose(scope)

        async def send_audited(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._note(access, scope, message["status"])
            elif access is not None and access not in self._tokens.list().values():
                raise OSError("the token was removed")  # a stream ends with it
            await send(message)

        if access is not None and scope["path"] in OWNERS_ONLY:
            await _refuse_tenant(send_audited)
        else:
            await app(scope, receive, send_audited)

    def _note(self, access: Access | None, scope: Scope, status: int) -> None:
        if self._audit is None:
            return
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
        about = {
            "who": OWNER if access is None else access.name,
            "from": scope["client"][0] if scope.get("client") else "",
        }
        if status in REFUSALS:
            if access is None:
                about["who"] = ""  # its door was shut: somebody else
            self._audit.count("refused", **about, what=scope["path"], status=status)
        elif not scope["path"].startswith(f"{PREFIX}/"):
            if any(name in ENTRANCE for name, _ in query):
                self._audit.note("logged in", **about)
        else:
            kind, run, what = [*scope["path"].removeprefix(f"{PREFIX}/").split("/"), "", ""][:3]
            runs = [run] if kind == "runs" and run else [value for name, value in query if name == "run"]
            did = "exported" if what in EXPORTS else "read" if scope["method"] in SAFE else "changed"
            note = self._audit.count if did == "read" else self._audit.note
            note(did, **about, run=",".join(runs), what=what or kind, status=status)

    def _choose(self, scope: Scope) -> tuple[Access | None, App]:
        """None for the owner, whose door lets nobody else in."""
        headers = read_headers(scope)
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        offered = [value for name, value in query if name == "token"] or list(list_bearers(headers))
        host = headers.get("host", [""])[0]
        cookies = list(list_cookies(headers, cookie_name(host)))
        for access, door, app in self._refresh().values():
            if any(door.accepts(text) for text in offered):
                return access, app
            if not offered and any(login.is_cookie(door.token or "", value) for value in cookies):
                return access, app
        return None, self._owner

    def _refresh(self) -> dict[str, tuple[Access, TenantDoor, App]]:
        known = {digest: access for digest, access in self._tokens.list().items() if access.role in ("read", "admin")}
        for digest in [digest for digest, (access, _, _) in self._apps.items() if known.get(digest) != access]:
            del self._apps[digest]
        for digest, access in known.items():
            if digest not in self._apps:
                key = hmac.new(self._secret.encode(), digest.encode(), "sha256").hexdigest()
                about = (self._door.hosts, self._door.any_address, self._door.port, self._door.begun)
                door = TenantDoor(key, *about, how_to_enter=self._door.how_to_enter, has_viewers=True, digest=digest)
                self._apps[digest] = (access, door, self._make_app(self._find_runs(access.readable), door))
        return self._apps


async def _refuse_tenant(send: Send) -> None:
    body = json.dumps({"error": {"message": "only for who started this server", "hint": ""}}).encode()
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
