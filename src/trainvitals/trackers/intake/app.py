"""The protocols over HTTP, as an ASGI application: who may log, how large a request may be, and back-pressure.

A client shows the token as its W&B key, as MLflow's tracking token or password, or as a bearer token. Requests are
answered in threads; the bodies that wait for one are bounded together, and beyond that a client is asked to wait (429),
which all of these clients understand.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
import math
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from trainvitals import runtime
from trainvitals.guessing import WrongTokens
from trainvitals.journal.documents.cause import GONE, Cause
from trainvitals.journal.encoding import dump_json
from trainvitals.journal.layout import RUN_FILE
from trainvitals.ownership import explain_foreign
from trainvitals.settings import Settings
from trainvitals.trackers.intake import mlflow, otlp, wandb, wandb_references
from trainvitals.trackers.intake.answers import IntakeAnswer, OnceReporter
from trainvitals.trackers.intake.keys import PROGRAM_PATH, make_key, make_program_path
from trainvitals.trackers.intake.runs import CapturedProgram, IntakeRuns
from trainvitals.trackers.intake.uploads import MOST_BYTES, BadName, Signer, Upload

MOST_BODY = 64 << 20
"""Of a request that is not the upload of a file."""
MOST_PASSED_OVER = 256 << 20
"""Of a body that is refused."""
MOST_WAITING = 128 << 20
"""Bytes of all requests that are being received or answered."""
THREADS = 4
"""Parsing keeps Python's lock: more threads would only wait for it."""
SWEEP_SECONDS = 15.0

log = logging.getLogger("trainvitals.intake")

App = Callable[[Any, Any, Any], Awaitable[None]]


class TooMuch(Exception):
    """The answer to a request that is too large, or one too many."""

    def __init__(self, answer: IntakeAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Room:
    """The memory that bodies of requests may take together."""

    def __init__(self, limit: int = MOST_WAITING) -> None:
        self._left = limit

    @contextlib.asynccontextmanager
    async def receive(self, request: Request, most: int = MOST_BODY) -> AsyncIterator[bytes]:
        """The body, unpacked; its room is taken until the answer is made. Raises TooMuch."""
        taken = 0
        try:
            declared = request.headers.get("content-length", "")
            expected = int(declared) if declared.isdecimal() else 0
            too_large = IntakeAnswer(413, _refusal(f"the body is larger than {most >> 20} MB"))
            if expected > most:
                raise TooMuch(too_large)
            if expected > self._left:
                raise TooMuch(IntakeAnswer(429, _refusal("too many requests at once"), retry_after=1))
            unpack = zlib.decompressobj(31) if request.headers.get("content-encoding") == "gzip" else None
            pieces: list[bytes] = []
            size = 0
            async for piece in request.stream():
                try:
                    plain = unpack.decompress(piece, most + 1) if unpack is not None else piece
                except zlib.error:
                    raise TooMuch(IntakeAnswer(400, _refusal("the body is not gzip"))) from None
                size += len(plain)
                if size > most or (unpack is not None and unpack.unconsumed_tail):
                    raise TooMuch(too_large)
                if len(plain) > self._left:
                    raise TooMuch(IntakeAnswer(429, _refusal("too many requests at once"), retry_after=1))
                self._left -= len(plain)
                taken += len(plain)
                pieces.append(plain)
            yield b"".join(pieces)
        except TooMuch:
            pieces = []
            await _pass_over(request)
            raise
        finally:
            self._left += taken


async def _pass_over(request: Request) -> None:
    """Receive the rest of a body and drop it: a client that is still sending does not see an answer, but a connection
    that broke."""
    size = 0
    with contextlib.suppress(ClientDisconnect, RuntimeError):  # it is gone, or all of it has come
        async for piece in request.stream():
            size += len(piece)
            if size > MOST_PASSED_OVER:
                return


def _refusal(text: str) -> dict[str, Any]:
    """In the form of each client: MLflow reads the first two, W&B the third."""
    return {"error_code": "BAD_REQUEST", "message": text, "error": text}


class Intake:
    """The protocols of one place. With `program`, that of a program below `trainvitals run`."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        accept: Iterable[str],
        signer: Signer,
        report_once: OnceReporter,
        program: CapturedProgram | None = None,
    ) -> None:
        self.runs = IntakeRuns(root, settings, program)
        accepted = frozenset(accept)
        self.wandb = wandb.Wandb(self.runs, signer, report_once) if "wandb" in accepted else None
        self.mlflow = mlflow.Mlflow(self.runs, report_once) if "mlflow" in accepted else None
        self.otlp = otlp.OtlpIntake(self.runs, report_once) if "otlp" in accepted else None

    def sweep(self) -> None:
        """End the runs whose clients are gone."""
        self.runs.end_quiet(wandb_references.TOOL, wandb.SILENT_SECONDS, "crashed", Cause(kind=GONE))
        self.runs.end_quiet(otlp.TOOL, otlp.SILENT_SECONDS, "finished", None)


_PATHS = frozenset({"/graphql", "/v1/metrics", "/health", "/version"})
_PREFIXES = ("/files/", "/wandb-files/", "/api/2.0/", "/api/3.0/", f"{PROGRAM_PATH}/")


class IntakeApp:
    """The application. `settings` name the folder of the runs; `accept` the protocols."""

    def __init__(
        self,
        settings: Settings,
        accept: Iterable[str],
        token: str | None,
        *,
        programs: bool = False,
        room: Room | None = None,
    ) -> None:
        """With `programs` it is for clients below `trainvitals run`, and these log into the runs of their commands."""
        self._settings = settings
        self._accept = tuple(accept)
        self._token = token
        self.wrong_tokens = WrongTokens(token or "")
        self._signer = Signer(token)
        self._report_once = OnceReporter()
        self._room = room or Room()
        self._limiter: anyio.CapacityLimiter | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._programs: dict[CapturedProgram, Intake] = {}
        self._served: Intake | None = None
        if not programs:
            self._served = Intake(
                Path(settings.dir).absolute(), settings, self._accept, self._signer, self._report_once
            )
        prefix = PROGRAM_PATH + "/{folder}/{rank:int}/{pid:int}" if programs else ""
        stream = "/files/{entity}/{project}/{run}/file_stream"
        upload = "/wandb-files/{entity}/{project}/{run}/{name:path}"
        artifact = "/api/2.0/mlflow-artifacts/artifacts/{name:path}"
        routes = [
            Route(prefix + "/graphql", self._guard(self._graphql), methods=["POST"]),
            Route(prefix + stream, self._guard(self._stream), methods=["POST"]),
            Route(prefix + upload, self._guard(self._wandb_file, signed=True), methods=["GET", "PUT"]),
            Route(prefix + "/v1/metrics", self._guard(self._metrics), methods=["POST"]),
            Route(prefix + artifact, self._guard(self._artifact), methods=["GET", "PUT", "DELETE"]),
            Route(prefix + "/api/{path:path}", self._guard(self._mlflow), methods=["GET", "POST", "PATCH", "DELETE"]),
            Route(prefix + "/health", self._health, methods=["GET"]),
            Route(prefix + "/version", self._health, methods=["GET"]),
        ]
        self._app = Starlette(routes=routes, exception_handlers={Exception: _refuse_crash})
        self._app.router.redirect_slashes = False  # an upload is sent once, to the address that was given out

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        await self._app(scope, receive, send)

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a request to this path is one of a client, and not of the dashboard."""
        return path in _PATHS or path.startswith(_PREFIXES)

    async def find_folder(self, entity: str, project: str, run_id: str) -> Path | None:
        """Of the run that a W&B client calls so: the client prints an address with these names."""
        served = self._served
        if served is None or served.wandb is None:
            return None
        found: Path | None = await self._run(served.wandb.find_folder, entity, project, run_id)
        return found

    async def find_mlflow_folder(self, run_id: str) -> Path | None:
        """Of the run that an MLflow client calls so."""
        served = self._served
        if served is None or served.mlflow is None:
            return None
        found: Path | None = await self._run(served.mlflow.find_folder, run_id)
        return found

    async def find_mlflow_project(self, experiment_id: str) -> str | None:
        """Where the runs of an MLflow client's experiment are."""
        served = self._served
        if served is None or served.mlflow is None:
            return None
        found: str | None = await self._run(served.mlflow.find_project, experiment_id)
        return found

    async def close(self) -> None:
        """Close what is open; the runs stay as they are, for the next server."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for intake in self._list_intakes():
            await anyio.to_thread.run_sync(intake.runs.close)

    def _list_intakes(self) -> list[Intake]:
        return [*([self._served] if self._served is not None else []), *self._programs.values()]

    @property
    def is_idle(self) -> bool:
        """Whether no program that logs here is alive."""
        return not any(runtime.process_start(program.pid) is not None for program in self._programs)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for intake in self._list_intakes():
                try:
                    await self._run(intake.sweep)
                except Exception:
                    log.exception("runs of disconnected clients could not be ended")

    # -- each request

    def _guard(
        self, handler: Callable[[Intake, Request], Awaitable[Response]], *, signed: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if signed:
                path = request.url.path.removeprefix(self._prefix(request))
                if not self._signer.is_signed(path, request.query_params.get("signature", "")):
                    return _respond(IntakeAnswer(403, _refusal("the upload URL is not signed")))
            elif (wait := self.wrong_tokens.wait(address := request.client.host if request.client else "")) > 0:
                return _respond(IntakeAnswer(429, _refusal("too many wrong keys"), retry_after=math.ceil(wait)))
            elif not self._is_admitted(request):
                self.wrong_tokens.note(address)
                body = {"error_code": "UNAUTHENTICATED", "message": _WRONG_TOKEN, "error": _WRONG_TOKEN}
                return _respond(IntakeAnswer(401, body))
            try:
                intake = self._find_intake(request)
                if intake is None:
                    return _respond(IntakeAnswer(404, _refusal("there is no such run")))
                return await handler(intake, request)
            except TooMuch as refused:
                return _respond(refused.answer)

        return answer

    def _is_admitted(self, request: Request) -> bool:
        if self._token is None:
            return True
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        given = [value.strip()]
        if scheme.lower() == "basic":
            try:
                given = [base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]]
            except (binascii.Error, ValueError):
                given = []
        given += [text for text in (request.headers.get("x-trainvitals-token"),) if text]
        keys = (self._token, make_key(self._token))
        return any(hmac.compare_digest(text.encode(), key.encode()) for text in given for key in keys)

    def _prefix(self, request: Request) -> str:
        """The part of the path before that of the protocol."""
        return make_program_path(*program) if (program := _read_program(request)) is not None else ""

    def _find_intake(self, request: Request) -> Intake | None:
        program = _read_program(request)
        if program is None:
            return self._served
        if explain_foreign(program.folder) is not None or not (program.folder / RUN_FILE).is_file():
            return None
        intake = self._programs.get(program)
        if intake is None:
            root = program.folder.parent.parent
            intake = self._programs[program] = Intake(
                root, self._settings, self._accept, self._signer, self._report_once, program
            )
        return intake

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(call, *args, limiter=self._limiter)

    # -- protocols

    async def _graphql(self, intake: Intake, request: Request) -> Response:
        if intake.wandb is None:
            return _respond(_not_accepted("wandb"))
        base = f"{request.url.scheme}://{request.headers['host']}{self._prefix(request)}"
        async with self._room.receive(request) as body:
            return _respond(await self._run(intake.wandb.answer_graphql, body, base))

    async def _stream(self, intake: Intake, request: Request) -> Response:
        if intake.wandb is None:
            return _respond(_not_accepted("wandb"))
        names = (request.path_params[name] for name in ("entity", "project", "run"))
        async with self._room.receive(request) as body:
            return _respond(await self._run(intake.wandb.answer_stream, *names, body))

    async def _wandb_file(self, intake: Intake, request: Request) -> Response:
        if intake.wandb is None:
            return _respond(_not_accepted("wandb"))
        names = [request.path_params[name] for name in ("entity", "project", "run", "name")]
        if request.method == "PUT":
            return await self._receive_file(request, intake.wandb.find_place, *names)
        path = await self._run(intake.wandb.find_file, *names)
        if path is None:
            return _respond(IntakeAnswer(404, _refusal("no such file")))
        return FileResponse(path, media_type="application/octet-stream")

    async def _mlflow(self, intake: Intake, request: Request) -> Response:
        if intake.mlflow is None:
            return _respond(_not_accepted("mlflow"))
        async with self._room.receive(request) as body:
            query = request.query_params.multi_items()
            call = intake.mlflow.answer
            return _respond(await self._run(call, request.method, request.path_params["path"], query, body))

    async def _artifact(self, intake: Intake, request: Request) -> Response:
        if intake.mlflow is None:
            return _respond(_not_accepted("mlflow"))
        name = request.path_params["name"]
        if request.method == "PUT":
            return await self._receive_file(request, intake.mlflow.artifacts.find_place, name)
        if request.method == "DELETE":
            return _respond(await self._run(intake.mlflow.artifacts.delete, name))
        path = await self._run(intake.mlflow.artifacts.find, name)
        if path is None:
            return _respond(IntakeAnswer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such artifact"}))
        return FileResponse(path, media_type="application/octet-stream")

    async def _metrics(self, intake: Intake, request: Request) -> Response:
        if intake.otlp is None:
            return _respond(_not_accepted("otlp"))
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        async with self._room.receive(request, otlp.MOST_BODY) as body:
            return _respond(await self._run(intake.otlp.answer, kind, body))

    async def _health(self, request: Request) -> Response:
        return Response("OK", media_type="text/plain")

    async def _receive_file(self, request: Request, find_place: Callable[..., Path | None], *names: str) -> Response:
        """Straight to the disk, a piece at a time."""
        try:
            target = await self._run(find_place, *names)
        except BadName as error:
            return _respond(IntakeAnswer(400, _refusal(str(error))))
        except OSError as error:
            return _respond(IntakeAnswer(429, _refusal(f"the file cannot be written: {error.strerror}"), retry_after=5))
        upload = await self._run(Upload, target) if target is not None else None
        size = 0
        try:
            async for piece in request.stream():
                size += len(piece)
                if size > MOST_BYTES:
                    raise TooMuch(IntakeAnswer(413, _refusal("the file is too large")))
                if upload is not None and piece:
                    await self._run(upload.write, piece)
            if upload is not None:
                await self._run(upload.keep)
                upload = None
        except OSError as error:
            return _respond(IntakeAnswer(429, _refusal(f"the file cannot be written: {error.strerror}"), retry_after=5))
        finally:
            if upload is not None:
                upload.drop()
        return _respond(IntakeAnswer(200))


_WRONG_TOKEN = "the key does not match this server's token (trainvitals serve --accept prints it)"


def _read_program(request: Request) -> CapturedProgram | None:
    given = request.path_params
    if "folder" not in given:
        return None
    try:
        text = given["folder"]
        folder = Path(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    except (binascii.Error, ValueError):
        return None
    return CapturedProgram(folder, given["rank"], given["pid"]) if folder.is_absolute() else None


def _not_accepted(protocol: str) -> IntakeAnswer:
    text = f"this server does not accept {protocol}: trainvitals serve --accept {protocol}"
    return IntakeAnswer(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": text, "error": text})


def _respond(answer: IntakeAnswer) -> Response:
    body = answer.body if isinstance(answer.body, bytes) else dump_json(answer.body)
    headers = {"cache-control": "no-store"}
    if answer.retry_after:
        headers["retry-after"] = str(answer.retry_after)
    return Response(body, answer.status, media_type=answer.media_type, headers=headers)


async def _refuse_crash(request: Request, error: Exception) -> Response:
    """The last boundary. Not an error of the 500s: W&B's client would try for a week."""
    if not isinstance(error, ClientDisconnect):
        log.error("a request failed: %s", request.url.path.partition("?")[0], exc_info=error)
    said = {"error_code": "INTERNAL_ERROR", "message": "something went wrong on the server", "error": ""}
    return _respond(IntakeAnswer(400, said))
