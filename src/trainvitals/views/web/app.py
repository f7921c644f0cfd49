"""The ASGI application: routes, errors, compression, the page itself."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from trainvitals.conditions import Conditions
from trainvitals.errors import MachineError, TrainvitalsError
from trainvitals.journal.contracts import Runs
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.plain_json import is_too_deep
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.views.data.page import read_assets
from trainvitals.views.data.wire import encode
from trainvitals.views.web.api import ENDPOINTS, DrawReport, File, Web
from trainvitals.views.web.endpoints import BadRequest, Conflict, Endpoint, Forbidden, NotFound, Outdated, tag_of
from trainvitals.views.web.far_questions import FarQuestions, MakeFarSide
from trainvitals.views.web.gate import App, Door, Gate
from trainvitals.views.web.live import Hub
from trainvitals.views.web.shared_runs import SharedRuns

if TYPE_CHECKING:
    from trainvitals.lab.runs import MachineRuns
    from trainvitals.trackers.intake.app import IntakeApp

PREFIX = "/api/v1"
MAX_BODY = 64 << 10
MIN_COMPRESSED = 1024
THREADS = 16
STATUS = {BadRequest: 400, Forbidden: 403, NotFound: 404, Conflict: 409, Outdated: 412, MachineError: 503}

log = logging.getLogger("trainvitals.web")


def make_app(
    runs: Runs,
    draw_report: DrawReport,
    *,
    door: Door | None = None,
    editable: FolderRuns | None = None,
    prices: Prices = NO_PRICES,
    conditions: Conditions | None = None,
    intake: IntakeApp | None = None,
    machines: MachineRuns | None = None,
    far: MakeFarSide | None = None,
) -> App:
    """The application for these runs; viewers may change those that are `editable`, clients of other trackers log to
    `intake`, and other machines ask what `far` makes."""
    web = Web(SharedRuns(runs), draw_report, editable, prices, conditions or Conditions(), machines)
    hub = Hub()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # Reading is numpy and DuckDB, which use cores themselves: more threads would only wait.
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        warm = asyncio.create_task(asyncio.to_thread(_warm_up, web.runs))
        yield
        warm.cancel()
        await hub.close()
        if intake is not None:
            await intake.close()

    routes = [_route(web, endpoint) for endpoint in ENDPOINTS]
    routes.append(Route(f"{PREFIX}/runs/{{run}}/stream", functools.partial(_stream, web, hub), methods=["GET"]))
    routes.append(Route(f"{PREFIX}/reader", FarQuestions(far).answer, methods=["POST"]))
    if intake is not None:
        routes.append(Route("/experiments/{experiment}", functools.partial(_lead_to_experiment, intake)))
        routes.append(Route("/experiments/{experiment}/runs/{run}", functools.partial(_lead_to_mlflow_run, intake)))
        routes.append(Route("/{entity}/{project}/runs/{run}", functools.partial(_lead_to_run, intake)))
    routes += _page_routes()
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _refuse_http, Exception: _refuse_crash},
    )
    return Gate(app, door or Door(), intake)


async def _lead_to_run(intake: IntakeApp, request: Request) -> Response:
    """The address that a W&B client prints leads to the page of its run."""
    names = [request.path_params[name] for name in ("entity", "project", "run")]
    folder = await intake.find_folder(*names)
    if folder is None:
        return _complain(404, f"no run '{names[-1][:80]}' of a W&B client", "the dashboard is at /")
    return _lead_to(f"run/{quote(folder.name, safe='')}")


async def _lead_to_mlflow_run(intake: IntakeApp, request: Request) -> Response:
    """What follows the # in the address that an MLflow client prints: the page asks for it here."""
    folder = await intake.find_mlflow_folder(request.path_params["run"])
    if folder is None:
        # An entity of W&B may be called experiments.
        path = request.path_params
        folder = await intake.find_folder("experiments", path["experiment"], path["run"])
    return _lead_to(f"run/{quote(folder.name, safe='')}" if folder is not None else "runs")


async def _lead_to_experiment(intake: IntakeApp, request: Request) -> Response:
    """The same, of the other address that it prints."""
    project = await intake.find_mlflow_project(request.path_params["experiment"])
    return _lead_to(f"runs?project={quote(project, safe='')}" if project is not None else "runs")


def _lead_to(page: str) -> Response:
    return RedirectResponse(f"/#/{page}", 303, headers={"cache-control": "no-store"})


def _warm_up(runs: SharedRuns) -> None:
    """Load what the first requests need, while nobody waits yet: the table of runs, then what draws charts."""
    from trainvitals.journal import parquet

    runs.listing()
    parquet.connect().execute("SELECT 1").fetchall()


def _route(web: Web, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        try:
            body = await _read_body(request) if request.method in ("POST", "PATCH", "PUT") else None
            values = endpoint.read(request.path_params, request.query_params.multi_items(), request.headers, body)
            if endpoint.edits:
                web.require_editable()
            made = await anyio.to_thread.run_sync(_make, web, endpoint, values, request)
        except TrainvitalsError as error:
            return _complain(STATUS.get(type(error), 404), error.message, error.hint)
        if isinstance(made, File):
            headers = {"content-disposition": f'attachment; filename="{made.name}"', "cache-control": made.cache}
            return StreamingResponse(iterate_in_threadpool(made.chunks), media_type=made.media_type, headers=headers)
        return made

    return Route(PREFIX + endpoint.path, answer, methods=[endpoint.method], name=endpoint.call.__name__)


def _make(web: Web, endpoint: Endpoint, values: Mapping[str, Any], request: Request) -> Response | File:
    """In a thread: the answer, encoded, compressed, and not sent again if the browser has it."""
    try:
        made = endpoint.call(web, values)
    except OSError as error:
        # The folder is gone or unreadable; any other operating system error is reported likewise.
        raise NotFound(f"the run cannot be read: {error.strerror or type(error).__name__}") from error
    if isinstance(made, File):
        return made
    body = encode(made)
    tag = tag_of(body)
    headers = {"cache-control": "no-cache", "etag": tag, "vary": "accept-encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if len(body) >= MIN_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = _compress(body), "gzip"
    return Response(body, media_type="application/json", headers=headers)


async def _read_body(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("the body is not JSON", hint="send it with Content-Type: application/json")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise BadRequest(f"the body is larger than {MAX_BODY:,} bytes")
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not valid JSON") from None
    if is_too_deep(data, found):
        raise BadRequest("the body is nested too deeply")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(word)


async def _stream(web: Web, hub: Hub, request: Request) -> Response:
    try:
        if request.query_params:
            raise BadRequest("the stream takes no parameters")
        key = request.path_params["run"]
        if "\0" in key or len(key) > 300:
            raise BadRequest("'run' is not a valid run key")
        key = await anyio.to_thread.run_sync(web.runs.find, key)
        channel = hub.find(key) or hub.begin(key, await anyio.to_thread.run_sync(web.runs.open, key))
    except TrainvitalsError as error:
        return _complain(STATUS.get(type(error), 404), error.message, error.hint)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        channel.view(request.headers.get("last-event-id")), media_type="text/event-stream", headers=headers
    )


def _compress(body: bytes) -> bytes:
    """gzip; level 3 is within a tenth of the best size for a third of the time."""
    return gzip.compress(body, 3, mtime=0)


def _page_routes() -> list[Route]:
    assets = read_assets()
    compressed = {name: _compress(body) for name, (body, _) in assets.items()}

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in assets:
            return _complain(404, f"page not found: '{name[:80]}'", "the dashboard is at /")
        body, kind = assets[name]
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers = {"cache-control": "no-cache", "etag": tag, "vary": "accept-encoding"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = compressed[name], "gzip"
        return Response(body, media_type=kind, headers=headers)

    async def icon(request: Request) -> Response:
        return Response(ICON, media_type="image/svg+xml", headers={"cache-control": "max-age=86400"})

    return [Route("/", page), Route("/favicon.svg", icon), Route("/favicon.ico", icon), Route("/{name}", page)]


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#14202b"/>'
    '<path d="M4 18h6l3-9 5 15 4-11 2 5h4" fill="none" stroke="#4fb3ff" stroke-width="2.6" stroke-linejoin="round" '
    'stroke-linecap="round"/></svg>'
)


def _complain(status: int, message: str, hint: str | None = None) -> Response:
    body = encode({"error": {"message": message, "hint": hint or ""}})
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        made = _complain(405, f"{request.method} is not allowed here", f"allowed: {allowed}")
        made.headers["allow"] = allowed
        return made
    return _complain(error.status_code, "not found", "see /api/v1/openapi.json for the API")


async def _refuse_crash(request: Request, error: Exception) -> Response:
    """The last boundary: a bug of ours is logged in full and answered in one sentence."""
    if not isinstance(error, ClientDisconnect):
        log.error("a request failed: %s", request.url.path, exc_info=error)
    return _complain(500, "internal error; see the server's log")
