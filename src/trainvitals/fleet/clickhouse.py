"""ClickHouse over plain HTTP: the same for a server of 2018 and for today's.
Tested in tests/fleet/test_clickhouse.py."""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainvitals.errors import TrainvitalsError
from trainvitals.fleet import native

SCHEMES = {"clickhouse": False, "clickhouses": True}
DEFAULT_PORT = {False: 8123, True: 8443}
ANSWER_SECONDS = 120.0


class EngineError(TrainvitalsError):
    """The engine refused a query."""


class EngineAway(EngineError):
    """The engine cannot be reached, or not now: worth another try."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """`clickhouse://[user[:password]@]host[:port]/database`, or `clickhouses://` for TLS."""

    host: str
    port: int
    secure: bool
    database: str
    user: str = ""
    password: str = ""

    @property
    def shown(self) -> str:
        """Without its password."""
        user = f"{self.user}@" if self.user else ""
        scheme = "clickhouses" if self.secure else "clickhouse"
        return f"{scheme}://{user}{self.host}:{self.port}/{self.database}"


def parse_address(text: str) -> EngineAddress:
    """Raises EngineError, which never quotes a password."""
    example = "for example clickhouse://localhost:8123/trainvitals"
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise EngineError(
            f"a store is an address like clickhouse://HOST:8123/DATABASE, not {parts.scheme or text!r}", hint=example
        )
    try:
        port = parts.port
    except ValueError:
        port = -1
    if not parts.hostname or port == -1:
        raise EngineError("the store's address has no host, or no valid port", hint=example)
    database = parts.path.strip("/") or "trainvitals"
    if not database.replace("_", "").isalnum() or not database.isascii():
        raise EngineError(f"{database!r} is not the name of a database", hint=example)
    secure = SCHEMES[parts.scheme]
    user, password = (urllib.parse.unquote(item or "") for item in (parts.username, parts.password))
    return EngineAddress(parts.hostname, port or DEFAULT_PORT[secure], secure, database, user, password)


class ClickHouse:
    """One database. Every thread has a connection of its own."""

    def __init__(self, address: EngineAddress, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.address = address
        self._answer_seconds = answer_seconds
        self._mine = threading.local()

    def execute(self, query: str) -> bytes:
        """A statement; its answer as it came. Raises EngineError."""
        return self._post({}, query.encode("utf-8", "surrogatepass"))

    def select(self, query: str) -> dict[str, Any]:
        """The columns of the answer: arrays, or lists of bytes; empty if there is no row."""
        return native.decode(self.execute(f"{query} FORMAT Native"))

    def insert_blocks(self, table: str, types: Mapping[str, str], blocks: Sequence[bytes]) -> None:
        """Blocks of rows, as `native.encode_block` makes them; sent one after the other, for together they are
        large."""
        query = f"INSERT INTO {table} ({', '.join(types)}) FORMAT Native"
        # Of a distributed table: when this returns the rows are on their shards, not in a queue of this server.
        self._post({"query": query, "insert_distributed_sync": "1"}, blocks)

    def execute_anywhere(self, query: str) -> bytes:
        """A statement that names its database itself: it need not exist yet."""
        return self._post({"database": "default"}, query.encode())

    def _post(self, parameters: Mapping[str, str], body: bytes | Sequence[bytes]) -> bytes:
        path = "/?" + urllib.parse.urlencode({"database": self.address.database, **parameters})
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        headers = {"Content-Length": str(size)}
        if self.address.user:
            # Not basic authentication: a password may hold any character.
            headers |= {"X-ClickHouse-User": self.address.user, "X-ClickHouse-Key": self.address.password}
        for last in (False, True):
            connection = self._connect()
            reused = getattr(self._mine, "used", False)
            try:
                connection.request("POST", path, body, headers)
                self._mine.used = True
                answer = connection.getresponse()
                found = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A connection that was left open may have been closed by the other side meanwhile. Whatever is
                # inserted may come twice: see `schema`.
                if reused and not last:
                    continue
                raise EngineAway(f"cannot reach {self.address.shown}: {error or type(error).__name__}") from error
            if answer.status == 200:
                return found
            raise _explain(answer.status, found)
        raise AssertionError

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            where = self.address.host, self.address.port
            if self.address.secure:
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(*where, timeout=self._answer_seconds, context=context)
            else:
                connection = http.client.HTTPConnection(*where, timeout=self._answer_seconds)
            self._mine.connection, self._mine.used = connection, False
        return connection

    def close(self) -> None:
        """The connection of this thread."""
        connection = getattr(self._mine, "connection", None)
        if connection is not None:
            connection.close()
            self._mine.connection = None


_DISK_IS_FULL = ("No space left on device", "Cannot write file")
"""However an engine puts it: some of its errors on the way have no code of their own."""


def _explain(status: int, answer: bytes) -> EngineError:
    text = answer.decode("utf-8", "replace").strip().splitlines()
    first = text[0][:300] if text else f"status {status}"
    # Too many parts, memory limit, no space, read only, shutting down, too many queries: these pass.
    passing = any(
        f"Code: {code}," in first
        for code in (75, 159, 164, 202, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 319, 999)
    ) or any(words in first for words in _DISK_IS_FULL)
    if status in (502, 503, 504) or passing:
        return EngineAway(f"the engine cannot do that now: {first}")
    return EngineError(f"the engine refused: {first}")


def literal(text: str | bytes) -> str:
    """Text as part of a query, whatever it contains."""
    plain = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
    return "'" + plain.replace("\\", "\\\\").replace("'", "\\'").replace("\x00", "\\0") + "'"
