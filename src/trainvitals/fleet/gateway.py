"""The gateway: takes what agents ship, and keeps it in the engine. It has no state, so any number of them can stand
behind a balancer, and any of them can be killed.

A request is answered when its rows are in the engine. Requests that come at the same time are written together: an
engine wants few large inserts. Tested in tests/fleet/test_gateway.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainvitals.fleet import sealed, wire
from trainvitals.fleet.audit import Audit
from trainvitals.fleet.clickhouse import EngineAway, EngineError
from trainvitals.fleet.intake import End, Ends, RowBlocks, Taken, Weight, take, weigh
from trainvitals.fleet.pushes import Pushes, pick_told
from trainvitals.fleet.quotas import OverQuota, Quotas
from trainvitals.fleet.removal import RemovalWatch, RunRemoved, remove_runs
from trainvitals.fleet.room import Busy, RequestRoom
from trainvitals.fleet.store import Store
from trainvitals.fleet.tokens import EVERYTHING, Access, Role, Tokens
from trainvitals.fleet.wire import FileRange, TooLong, WireError
from trainvitals.journal import layout

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

GATHER_SECONDS = 0.2
"""How long the first of several requests waits for others."""
GOOD_BYTES = 16 << 20
"""Written without waiting for more."""
MOST_PENDING = 256 << 20
"""Bytes of rows in memory; from there on agents are asked to come back later. Their files are the queue."""
MOST_ARRIVING, MOST_REQUESTS = 128 << 20, 4096
"""Bytes of requests that are being received or understood, and how many."""
MOST_OF_REQUEST = sealed.MOST_MEMORY
"""Bytes of rows that one request may bring; the same in parts may pass."""
WRITERS = 2
REMEMBERED_RUNS = 10_000
BUSY_SECONDS, AWAY_SECONDS = 2, 5
"""What an agent is asked to wait."""
REMOTE_WRITE = "/api/v1/write"


@dataclass(slots=True)
class GatewayCounts:
    """What happened since the start, for /metrics."""

    requests: int = 0
    refused: int = 0
    over_quota: int = 0
    rows: int = 0
    bytes: int = 0
    pushes: int = 0
    writes: int = 0
    failed_writes: int = 0


class Writer:
    """Rows of many requests, written together."""

    def __init__(self, store: Store, counts: GatewayCounts) -> None:
        self._store = store
        self._counts = counts
        self._pending: list[tuple[RowBlocks, asyncio.Future[None]]] = []
        self._bytes = 0
        """Of rows that are being made, wait, or are written."""
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """In the loop of the requests."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(WRITERS)]

    async def stop(self) -> None:
        """What is pending was not acknowledged, and will come again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Room for rows until they are in the engine; raises Busy. There is always room for one request."""
        if self._bytes and self._bytes + size > MOST_PENDING:
            raise Busy("too many rows waiting: the memory limit is reached")
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    async def write(self, intake: RowBlocks) -> None:
        """Returns when these rows are in the engine; raises EngineError."""
        if not intake.blocks:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((intake, done))
        self._news.set()
        await done

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            if sum(intake.bytes for intake, _ in self._pending) < GOOD_BYTES:
                await asyncio.sleep(GATHER_SECONDS)
            batch, self._pending = self._pending, []
            self._news.clear()
            if batch:
                await self._write_all(batch)

    async def _write_all(self, batch: list[tuple[RowBlocks, asyncio.Future[None]]]) -> None:
        together = RowBlocks()
        for intake, _ in batch:
            together.merge(intake)
        try:
            await asyncio.to_thread(self._store.write, together.blocks)
        except EngineError as error:
            self._counts.failed_writes += 1
            if len(batch) > 1 and not isinstance(error, EngineAway):
                for item in batch:  # the rows of one of them are refused, whosoever: the others shall not suffer
                    await self._write_all([item])
                return
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        self._counts.writes += 1
        self._counts.rows += together.rows
        for _, done in batch:
            if not done.done():
                done.set_result(None)


class KnownEnds:
    """How far the files of runs are, as far as this gateway knows: it may be behind, never ahead."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: OrderedDict[tuple[str, str], dict[str, End]] = OrderedDict()

    async def get(self, project: str, run: str, *, fresh: bool = False) -> Ends:
        """Asked of the engine if it is not known, or is to be `fresh`. Raises RunRemoved."""
        key = project, run
        if fresh or key not in self._runs:
            self._runs[key] = await asyncio.to_thread(self._store.read_ends, project, run)
        self._runs.move_to_end(key)
        while len(self._runs) > REMEMBERED_RUNS:
            self._runs.popitem(last=False)
        if layout.REMOVED_FILE in self._runs[key]:
            raise RunRemoved(f"run {run!r} was removed from the store")
        return self._runs[key]

    def forget(self, key: tuple[str, str]) -> bool:
        """Ask the engine next time; whether anything was known."""
        return self._runs.pop(key, None) is not None

    def advance(self, project: str, run: str, ends: Ends) -> None:
        """These are in the engine now. Of a run that was forgotten meanwhile they would be all that is known."""
        known = self._runs.get((project, run), {})
        for path, end in ends.items():
            if path not in known or known[path].version < end.version:
                known[path] = end


class Gateway:
    """Answers the requests of `wire`."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens | None,
        metrics: str | None = None,
        audit: Audit | None = None,
        *,
        keep_days: int = 0,
    ) -> None:
        """Without tokens everybody who can connect may do everything. `metrics` is where pushes of hardware metrics go:
        an address that takes Prometheus' remote write. Runs of which nothing came for `keep_days` are removed."""
        self._store = store
        self._audit = audit
        self._quotas = Quotas(store, tokens) if tokens is not None else None
        self._tokens = tokens
        self._pushes = Pushes(metrics) if metrics is not None else None
        self.counts = GatewayCounts()
        self._writer = Writer(store, self.counts)
        self._ends = KnownEnds(store)
        self._removals = RemovalWatch(store, self._ends.forget, audit, days=keep_days)
        self._weighing = asyncio.Lock()
        self._arriving = RequestRoom(MOST_ARRIVING, MOST_REQUESTS)

    def make_app(self) -> Starlette:
        """The application."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self._writer.start()
            self._removals.start()
            if self._quotas is not None:
                self._quotas.start()
            yield
            if self._pushes is not None:
                self._pushes.close()
            await self._writer.stop()
            await self._removals.stop()
            if self._quotas is not None:
                await self._quotas.stop()
            if self._audit is not None:
                self._audit.close()

        place = f"{wire.PREFIX}/runs/{{project}}/{{run}}"
        routes = [
            Route(place, self._audited("asked", self._guarded(self._tell, "write")), methods=["GET"]),
            Route(place, self._audited("removed", self._guarded(self._remove, "admin")), methods=["DELETE"]),
            Route(place, self._audited("wrote", self._guarded(self._take, "write")), methods=["POST"]),
            Route(REMOTE_WRITE, self._audited("pushed", self._pass_on), methods=["POST"]),
            Route("/health", self._say_health),
            Route("/metrics", self._say_counts),
        ]
        return Starlette(routes=routes, lifespan=lifespan)

    # -- requests

    def _audited(self, did: str, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Who did it, of what run, and what was said."""

        async def audited(request: Request) -> Response:
            response: Response = await answer(request)
            if self._audit is not None:
                access = self._find_access(request)
                self._audit.count(
                    did if response.status_code not in (401, 403) else "refused",
                    who=access.name if access is not None else "",
                    **{"from": request.client.host if request.client is not None else ""},
                    project=request.path_params.get("project", ""),
                    run=request.path_params.get("run", ""),
                    status=response.status_code,
                )
            return response

        return audited

    def _guarded(self, answer: Callable[..., Any], role: Role) -> Callable[[Request], Any]:
        """Who may not do it learns nothing, and what goes wrong is said in JSON."""

        async def guarded(request: Request) -> Response:
            self.counts.requests += 1
            try:
                version = request.headers.get(wire.VERSION_HEADER, str(wire.VERSION))
                if version != str(wire.VERSION):
                    return _refuse(426, f"this gateway speaks version {wire.VERSION}, not {version[:20]}")
                access = self._find_access(request)
                if access is None:
                    return _refuse(401, "missing or unknown token")
                project = wire.check_key("project", request.path_params["project"])
                run = wire.check_key("run", request.path_params["run"])
                if not access.may(role, project):
                    return _refuse(403, f"this token may not {role} in project {project!r}")
                return _reply(await answer(request, access, project, run))
            except WireError as error:
                self.counts.refused += 1
                return _refuse(413 if isinstance(error, TooLong) else 422, error.message)
            except RunRemoved as error:
                return _refuse(410, error.message)
            except Busy as error:
                return _refuse(429, error.message, BUSY_SECONDS)
            except OverQuota as error:
                self.counts.over_quota += 1
                return _refuse(429, error.message, error.seconds, quota=True)
            except EngineAway as error:
                return _refuse(503, error.message, AWAY_SECONDS)
            except EngineError as error:
                self.counts.refused += 1
                return _refuse(500, error.message, AWAY_SECONDS)

        return guarded

    def _find_access(self, request: Request) -> Access | None:
        if self._tokens is None:
            return EVERYTHING
        return self._tokens.find(request.headers.get("authorization", ""))

    async def _tell(self, request: Request, access: Access, project: str, run: str) -> tuple[int, Ends]:
        return 200, await self._ends.get(project, run, fresh=True)

    async def _remove(self, request: Request, access: Access, project: str, run: str) -> tuple[int, Ends]:
        await asyncio.to_thread(remove_runs, self._store, [(project, run)], access.name)
        self._removals.expect((project, run))
        self._ends.forget((project, run))
        return 200, {}

    async def _take(self, request: Request, access: Access, project: str, run: str) -> tuple[int, Ends]:
        if self._quotas is None:
            return await self._take_some(request, access, project, run)
        is_new = not await self._ends.get(project, run)
        await self._quotas.check(access, project, run, is_new=is_new)
        try:
            return await self._take_some(request, access, project, run)
        finally:
            self._quotas.leave(project, run)

    async def _take_some(self, request: Request, access: Access, project: str, run: str) -> tuple[int, Ends]:
        with self._arriving.hold(request.headers.get("content-length", "")):
            return await self._take_body(request, access, project, run)

    async def _take_body(self, request: Request, access: Access, project: str, run: str) -> tuple[int, Ends]:
        body = await _read_body(request)
        self.counts.bytes += len(body)
        compressed = request.headers.get("content-encoding", "") == "gzip"
        day = int(time.strftime("%Y%m%d", time.gmtime()))

        def unpack() -> list[FileRange]:
            return list(wire.decode_frames(wire.decompress(body) if compressed else body))

        def work(frames: list[FileRange], known: Ends) -> Taken:
            return take(frames, known, project, run, day)

        frames = await asyncio.to_thread(unpack)
        # A file that begins replaces whatever another gateway has of that name, if this one knows of it or not.
        begins = any(frame.kind == "bytes" and frame.offset == 0 for frame in frames)
        weight = await self._weigh(frames)
        with self._writer.reserve(weight.memory):
            taken = await asyncio.to_thread(work, frames, await self._ends.get(project, run, fresh=begins))
            if taken.conflicts:  # another gateway may have more: ask before this is held against the agent
                taken = await asyncio.to_thread(work, frames, await self._ends.get(project, run, fresh=True))
            await self._writer.write(taken.intake)
        if self._quotas is not None and taken.intake.rows:
            self._quotas.add(access, project, run, weight.charged)
        self._ends.advance(project, run, {path: end for path, end in taken.ends.items() if end != End()})
        return (409 if taken.conflicts else 200), taken.ends

    async def _weigh(self, frames: Sequence[FileRange]) -> Weight:
        if any(frame.kind == "segment" for frame in frames):
            async with self._weighing:  # one at a time: how much memory that takes is not known before
                weight = await asyncio.to_thread(weigh, frames)
        else:
            weight = weigh(frames)
        if weight.memory > MOST_OF_REQUEST:
            raise TooLong(f"its rows take more than {MOST_OF_REQUEST >> 20} MB of memory")
        return weight

    async def _pass_on(self, request: Request) -> Response:
        """A push of hardware metrics, as it came: agents need one address and one token for everything."""
        from starlette.responses import Response

        self.counts.pushes += 1
        access = self._find_access(request)
        if access is None:
            return _refuse(401, "missing or unknown token")
        if access.role == "read":
            return _refuse(403, "this token may not write")
        if self._pushes is None:
            return _refuse(404, "this gateway does not accept metrics: it was started without --metrics")
        try:
            with self._pushes.room.hold(request.headers.get("content-length", "")):
                answer = await self._pushes.send(await _read_body(request), request.headers, access)
        except Busy as error:
            return _refuse(429, error.message, BUSY_SECONDS)
        except WireError as error:
            return _refuse(413, error.message)
        except (OSError, ValueError) as error:
            return _refuse(503, f"the metrics storage cannot be reached: {error}", AWAY_SECONDS)
        return Response(answer.body, answer.status, pick_told(answer.headers))

    async def _say_health(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            await asyncio.to_thread(self._store.engine.execute, "SELECT 1")
        except EngineError as error:
            return JSONResponse({"status": "engine away", "reason": error.message}, 503)
        return JSONResponse({"status": "ok"})

    async def _say_counts(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        counts = self.counts
        lines = []
        for name, value, help_text in (
            ("requests", counts.requests, "Requests of agents."),
            ("refused", counts.refused, "Requests rejected as invalid."),
            ("over_quota", counts.over_quota, "Requests delayed because a project or token is over its quota."),
            ("rows", counts.rows, "Rows written to the engine."),
            ("received_bytes", counts.bytes, "Bytes received, before decompression."),
            ("pushes", counts.pushes, "Pushes of metrics, forwarded or refused."),
            ("writes", counts.writes, "Inserts into the engine."),
            ("failed_writes", counts.failed_writes, "Failed inserts; their rows are sent again."),
        ):
            metric = f"trainvitals_gateway_{name}_total"
            lines += [f"# HELP {metric} {help_text}", f"# TYPE {metric} counter", f"{metric} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def _read_body(request: Request) -> bytes:
    """At most so much as may be sent; raises TooLong before more is in memory."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > wire.MOST_BYTES:
            raise TooLong(f"the body is longer than {wire.MOST_BYTES >> 20} MB")
        pieces.append(piece)
    return b"".join(pieces)


def _reply(answer: tuple[int, Ends]) -> Response:
    from starlette.responses import JSONResponse

    status, ends = answer
    files = {path: end.held.as_json() for path, end in ends.items()}
    return JSONResponse({"files": files}, status, {wire.VERSION_HEADER: str(wire.VERSION)})


def _refuse(status: int, reason: str, seconds: int = 0, *, quota: bool = False) -> Response:
    """`quota`: only this run has to wait."""
    from starlette.responses import JSONResponse

    headers = {wire.VERSION_HEADER: str(wire.VERSION), **({"Retry-After": str(seconds)} if seconds else {})}
    return JSONResponse({"error": reason, **({"quota": True} if quota else {})}, status, headers)
