"""A run in MLflow: parameters, metrics, tags, system metrics, its end, and the report as an artifact.

A server is spoken to over HTTP, as MLflow documents it; a folder or a database through MLflow itself, in a child
(`mlflow_store`). A metric that comes twice with the same step, time and value is one for MLflow, so nothing is doubled
after a crash.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import posixpath
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from trainvitals import http_client
from trainvitals.errors import JournalError, TrainvitalsError
from trainvitals.exporters.child import Child, child_environment
from trainvitals.exporters.mirrored_media import MediaNews
from trainvitals.exporters.mirroring import (
    MirrorState,
    RunNews,
    read_numbers,
    read_step,
    read_subject,
    read_time,
)
from trainvitals.exporters.mlflow_store import STORE
from trainvitals.exporters.rows import RowsRefused, RunDescription, RunEnd, RunRow, TryLater
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import parse_time, spell
from trainvitals.journal.flat_config import flatten
from trainvitals.journal.media import read_media
from trainvitals.plain_json import parse_json
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings
from trainvitals.trackers.mlflow_conventions import ENDS

T = TypeVar("T")

SECONDS = 30.0
STORE_SECONDS = 120.0
"""The first answer of a store waits for MLflow to be imported and for a database to be made."""
REPORT_SECONDS = 300.0
MOST_METRICS, MOST_PARAMETERS, MOST_TAGS = 1000, 100, 100
"""Of one request."""
LONGEST_VALUE, LONGEST_TAG, LONGEST_NAME = 6000, 5000, 250
BUSY = (408, 425, 429, *range(500, 600))
DOOR = (401, 403, 404)
"""Refused at the door is a wrong setting, which somebody may put right; nothing is lost by waiting."""
OUR_ID = "trainvitals.run_id"
_API = "/api/2.0/mlflow"
_REPORT = "trainvitals/report.html"
_MEGABYTES = 1024**2 / 1e6  # as MLflow counts them

SYSTEM_NAMES: Mapping[tuple[str, str], tuple[str, float]] = {
    ("gpu", "utilization_percent"): ("utilization_percentage", 1.0),
    ("gpu", "memory_percent"): ("memory_usage_percentage", 1.0),
    ("gpu", "memory_used_mb"): ("memory_usage_megabytes", _MEGABYTES),
    ("gpu", "power_draw_watts"): ("power_usage_watts", 1.0),
    ("system", "cpu_usage_percent"): ("cpu_utilization_percentage", 1.0),
    ("system", "memory_used_mb"): ("system_memory_usage_megabytes", _MEGABYTES),
    ("system", "memory_usage_percent"): ("system_memory_usage_percentage", 1.0),
    ("system", "disk_usage_percent"): ("disk_usage_percentage", 1.0),
    ("system", "disk_free_gb"): ("disk_available_megabytes", 1024 * _MEGABYTES),
}
"""Those of MLflow's own system metrics, which its page groups; what else is measured keeps its name."""


def create(target: str, settings: Settings) -> MlflowMirror:
    return MlflowMirror(target)


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    body: bytes
    retry_after: float | None = None


class Server(Protocol):
    """Whatever speaks MLflow's REST."""

    def send(self, method: str, path: str, body: bytes | None, content_type: str) -> Reply:
        """Raises OSError if there is no answer."""

    def close(self) -> None: ...


class HttpServer:
    """A tracking server, with the credentials that MLflow's own client would use."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        self._url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"User-Agent": "trainvitals"}
        name, password = (environment.get(f"MLFLOW_TRACKING_{key}") for key in ("USERNAME", "PASSWORD"))
        token = environment.get("MLFLOW_TRACKING_TOKEN")
        credentials = urllib.parse.unquote(user) if at else f"{name}:{password}" if name and password else None
        if credentials is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"

    @property
    def page(self) -> str:
        return self._url

    def send(self, method: str, path: str, body: bytes | None, content_type: str) -> Reply:
        headers = {**self._headers, "Content-Type": content_type}
        request = urllib.request.Request(self._url + path, data=body, headers=headers, method=method)
        found = http_client.send(request, SECONDS)
        return Reply(found.status, found.body, found.retry_after)

    def close(self) -> None:
        pass


class StoreServer:
    """A folder or a database, kept by MLflow itself in a child."""

    def __init__(self, store: str, environment: Mapping[str, str]) -> None:
        if find_spec("mlflow") is None:
            raise TrainvitalsError("a folder or a database needs mlflow: pip install 'trainvitals[mlflow]'")
        self._environment = {**child_environment(environment, "MLFLOW_", "AWS_"), STORE: store}
        if "://" not in store:
            self._environment["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer versions ask for it, and somebody did
        self._child: Child | None = None

    def send(self, method: str, path: str, body: bytes | None, content_type: str) -> Reply:
        encoded = base64.b64encode(body).decode() if body else None
        question = {"method": method, "path": path, "body": encoded, "content_type": content_type}
        self._child = self._child or Child("trainvitals.exporters.mlflow_store", self._environment)
        try:
            found = self._child.ask(question, STORE_SECONDS)
        except OSError:
            self.close()
            raise
        return Reply(found["status"], found["body"].encode())

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


class MlflowRefused(Exception):
    """The server understood and does not want it."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(f"{status} {code}: {text}".strip())
        self.code = code


class MlflowApi:
    """The few calls that a mirror needs."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def call(self, name: str, body: Mapping[str, Any] | None = None, **query: str) -> dict[str, Any]:
        """POST with a body, else GET. Raises OSError or TryLater where it may work later, Refused where not."""
        asked = f"?{urllib.parse.urlencode(query)}" if query else ""
        data = json.dumps(body).encode() if body is not None else None
        reply = self._server.send("GET" if data is None else "POST", f"{_API}/{name}{asked}", data, "application/json")
        return self._read(reply, name)

    def upload(self, path: str, content: bytes) -> None:
        place = f"/api/2.0/mlflow-artifacts/artifacts/{urllib.parse.quote(path)}"
        self._read(self._server.send("PUT", place, content, "application/octet-stream"), "artifacts")

    def _read(self, reply: Reply, name: str) -> dict[str, Any]:
        try:
            found = parse_json(reply.body or b"{}")
        except ValueError:
            found = None
        explained = found if isinstance(found, dict) else {}
        code, text = str(explained.get("error_code", "")), _first_line(explained.get("message", ""))
        if reply.status == 429 or (reply.status in BUSY and reply.retry_after):
            raise TryLater(f"MLflow returned {reply.status}", reply.retry_after or 0.0)
        if reply.status in BUSY or (reply.status in DOOR and code != "RESOURCE_DOES_NOT_EXIST"):
            raise OSError(f"MLflow returned {reply.status} {code} {text}".strip())
        if reply.status >= 400:
            raise MlflowRefused(reply.status, code, text)
        if not isinstance(found, dict) or not 200 <= reply.status < 300:
            raise OSError(f"the answer to {name} is not MLflow's ({reply.status})")
        return found

    def close(self) -> None:
        self._server.close()


class MlflowMirror:
    """One run."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._api: MlflowApi | None = None
        self._server: HttpServer | StoreServer | None = None
        self._state: MirrorState | None = None
        self._taken: dict[str, set[str]] = {}
        """Names there, of metrics and of parameters; which name of ours each is for is in the state."""
        self._artifacts = ""
        self.link: str | None = None

    def open(self, run: RunDescription) -> None:
        self._run = run
        self._began = parse_time(run.about.created) or parse_time(run.about.started) or 0.0
        self._news = RunNews(run)
        self._let_go()
        is_address = re.match(r"https?://", self._target) is not None
        self._server = (HttpServer if is_address else StoreServer)(self._target, run.environment)
        self._api = MlflowApi(self._server)
        self._state = MirrorState(run.folder, "mlflow", self._target)
        self._taken.clear()
        try:
            self._find_run()
            self._media = MediaNews(run, self._state)
            self._state.save()
        except BaseException:
            self._let_go()
            raise
        if isinstance(self._server, HttpServer):
            self.link = f"{self._server.page}/#/experiments/{self._experiment}/runs/{self._id}"

    def write(self, rows: Sequence[RunRow]) -> None:
        self._describe()
        metrics = [metric for row in self._opened.select_new(rows) for metric in self._read_metrics(row)]
        for piece in _pieces(metrics, MOST_METRICS):
            self._log_metrics(piece)
        self._send_media()
        self._opened.mark_written(rows)
        self._opened.save()

    def close(self, end: RunEnd | None) -> None:
        if end is not None:
            self._describe()
            ended = parse_time(self._run.read_about().ended)
            update = {"status": ENDS.get(end.status, "FAILED"), "end_time": _milliseconds(ended or self._began)}
            self._call("runs/update", {"run_id": self._id, **update})
            if end.cause is not None:
                self._set_tags({"trainvitals.cause": str(end.cause)})
            self._send_media(last=True)
            self._opened.save()
            self._send_report()
        self._let_go()

    # -- the run there

    @property
    def _opened(self) -> MirrorState:
        assert self._state is not None
        return self._state

    @property
    def _id(self) -> str:
        return str(self._opened.values["run_id"])

    @property
    def _experiment(self) -> str:
        return str(self._opened.values["experiment_id"])

    def _call(self, name: str, body: Mapping[str, Any] | None = None, **query: str) -> dict[str, Any]:
        assert self._api is not None
        return self._api.call(name, body, **query)

    def _find_run(self) -> None:
        values = self._opened.values
        if "run_id" not in values:
            values["experiment_id"] = self._find_experiment(self._run.about.project or "trainvitals")
            values["run_id"] = self._search_run() or self._create_run()
        # It may have ended there: the run was resumed, or some of its rows came late.
        info = self._call("runs/update", {"run_id": self._id, "status": "RUNNING"})["run_info"]
        self._artifacts = str(info.get("artifact_uri") or "")

    def _find_experiment(self, name: str) -> str:
        for _ in range(2):  # somebody else may create it meanwhile
            try:
                found = self._call("experiments/get-by-name", experiment_name=name)["experiment"]
            except MlflowRefused as error:
                if error.code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if found.get("lifecycle_stage") == "deleted":
                    raise OSError(f"the experiment '{name}' is deleted: restore it")
                return str(found["experiment_id"])
            try:
                return str(self._call("experiments/create", {"name": name})["experiment_id"])
            except MlflowRefused as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
        raise OSError(f"cannot find or create the experiment '{name}'")

    def _search_run(self) -> str | None:
        """One that was created by a process that died before it could write that down."""
        wanted = {
            "experiment_ids": [self._experiment],
            "filter": f"tags.`{OUR_ID}` = '{self._run.run_id}'",
            "max_results": 1,
        }
        runs = self._call("runs/search", wanted).get("runs") or []
        return str(runs[0]["info"]["run_id"]) if runs else None

    def _create_run(self) -> str:
        about = self._run.about
        tags = {OUR_ID: self._run.run_id, "mlflow.source.name": about.command or "", "mlflow.source.type": "LOCAL"}
        tags |= {"mlflow.source.git.commit": about.git.commit} if about.git.commit else {}
        body = {
            "experiment_id": self._experiment,
            "run_name": about.name or self._run.run_id,
            "start_time": _milliseconds(self._began),
            "tags": _pairs(tags),
        }
        return str(self._call("runs/create", body)["run"]["info"]["run_id"])

    def _describe(self) -> None:
        """Parameters, tags and notes, as far as they are new."""
        about = self._news.look()
        if about is None:
            return
        try:
            self._log_parameters(about)
            tags = dict.fromkeys(about.tags, "true")
            tags |= {"mlflow.note.content": about.notes} if about.notes else {}
            tags |= {"mlflow.runName": about.name} if about.name else {}
            if tags != self._opened.values.get("tags"):
                self._set_tags(tags)
                self._opened.values["tags"] = tags
        except Exception:
            self._news = RunNews(self._run)  # to be looked at again
            raise

    def _log_parameters(self, about: RunFile) -> None:
        sent: dict[str, str] = self._opened.values.setdefault("parameters", {})
        new = {}
        for key, value in flatten(about.config or {}).items():
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            if key not in sent:
                new[key] = text
        for piece in _pieces(list(new.items()), MOST_PARAMETERS):
            parameters = {self._name(key, "parameter_names"): text[:LONGEST_VALUE] for key, text in piece}
            try:
                self._call("runs/log-batch", {"run_id": self._id, "params": _pairs(parameters)})
            except (
                MlflowRefused
            ) as error:  # of another size or already there with another value: the metrics still count
                self._set_tags({"trainvitals.refused_parameters": str(error)})
            sent.update((key, "") for key, _ in piece)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        for piece in _pieces(list(tags.items()), MOST_TAGS):
            cleaned = {_clean(key): text[:LONGEST_TAG] for key, text in piece}
            try:
                self._call("runs/log-batch", {"run_id": self._id, "tags": _pairs(cleaned)})
            except MlflowRefused as error:
                raise OSError(f"MLflow refused tags: {error}") from None

    # -- metrics

    def _read_metrics(self, row: RunRow) -> Iterator[dict[str, Any]]:
        moment = read_time(row)
        stamp, step = _milliseconds(moment), read_step(row) or 0
        prefix = ""
        if row.table != "training":
            step = max(int(moment - self._began), 0)
        for key, value in read_numbers(row).items():
            if row.table == "training":
                subject = read_subject(row)
                name, factor = (f"{subject}/{key}" if subject else key), 1.0
            else:
                prefix = _system_prefix(row)
                known, factor = SYSTEM_NAMES.get((row.table, key), (key, 1.0))
                name = f"system/{prefix}{known}"
            named = self._name(name, "metric_names")
            yield {"key": named, "value": spell(value * factor), "timestamp": stamp, "step": step}

    def _log_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        try:
            self._call("runs/log-batch", {"run_id": self._id, "metrics": metrics})
        except MlflowRefused as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                raise OSError(f"the run is not there any more: {error}") from None
            raise RowsRefused(str(error)) from None

    def _name(self, name: str, kind: str) -> str:
        """As MLflow allows it. Two names that would become one stay two, in every process."""
        known: dict[str, str] = self._opened.values.setdefault(kind, {})
        if name not in known:
            taken = self._taken.setdefault(kind, set(known.values()))
            free = cleaned = _clean(name)
            count = 1
            while free in taken:
                count += 1
                end = f"_{count}"
                free = cleaned[: LONGEST_NAME - len(end)] + end
            known[name] = free
            taken.add(free)
        return known[name]

    # -- files

    def _send_media(self, *, last: bool = False) -> None:
        """Images, tables and texts as they are logged; the histograms when the run has ended, in one file."""
        for medium in self._media.take(last=last):
            self._store(f"{layout.MEDIA}/{medium.file}", medium.data)
        if last:
            for path in sorted((self._run.folder / layout.MEDIA).glob("histograms.*.jsonl")):
                with contextlib.suppress(JournalError):
                    self._store(f"{layout.MEDIA}/{path.name}", read_media(self._run.folder, path.name))

    def _store(self, name: str, content: bytes) -> None:
        """What the server does not take is noted there, and the run is complete without it."""
        try:
            self._store_artifact(name, content)
        except (MlflowRefused, PermissionError) as error:
            self._set_tags({"trainvitals.refused_artifact": f"{name}: {error}"})

    def _send_report(self) -> None:
        """Drawn by a child, for it takes numpy and a while. Without it the run is complete as well."""
        with tempfile.TemporaryDirectory(prefix="trainvitals-") as place:
            path = Path(place) / "report.html"
            command = [sys.executable, "-P", "-m", "trainvitals", "report", str(self._run.folder), "-o", str(path)]
            try:
                subprocess.run(
                    command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=REPORT_SECONDS
                )
                content = path.read_bytes()
            except (OSError, subprocess.SubprocessError):
                return
        self._store(_REPORT, content)

    def _store_artifact(self, name: str, content: bytes) -> None:
        """Through the server, or into a folder of this machine. Buckets are left to who has their keys."""
        assert self._api is not None
        parts = urllib.parse.urlsplit(self._artifacts)
        if parts.scheme == "mlflow-artifacts":
            self._api.upload(posixpath.join(parts.path.lstrip("/"), name), content)
            return
        # Of a server elsewhere it may be a folder there, which is not to be made here.
        folder = Path(parts.path)
        is_here = isinstance(self._server, StoreServer) or folder.parent.is_dir()
        if parts.scheme in ("", "file") and folder.is_absolute() and is_here:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _let_go(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None
        if self._state is not None:
            self._state.close()
            self._state = None


def _system_prefix(row: RunRow) -> str:
    """MLflow writes `gpu_0_utilization_percentage`, and groups by what is before a slash."""
    if row.table == "gpu":
        return f"{read_subject(row, '_')}_"
    if row.table == "system":
        return ""
    subject = read_subject(row)
    return f"{row.table}_{subject}_" if subject else f"{row.table}_"


def _clean(name: str) -> str:
    """Only letters, digits, `_ - . / :` and blanks, and a path that leads nowhere else."""
    cleaned = re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)
    parts = ("_" if part in ("", ".", "..") else part for part in cleaned.split("/"))
    return "/".join(parts)[:LONGEST_NAME]


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": redact_text(value)} for key, value in values.items()]


def _pieces(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000) if math.isfinite(seconds) else 0


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0][:200]
