"""Runs of MLflow: in the files of `mlruns/`, in its SQLite database, or asked of a server."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import math
import os
import sqlite3
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainvitals import http_client
from trainvitals.journal.documents.run import RUNNING
from trainvitals.plain_json import parse_json
from trainvitals.trackers.foreign import LATEST, open_database, read_yaml
from trainvitals.trackers.importing import LOOK_SECONDS, ImportFailed, Piece, SourceEnd
from trainvitals.trackers.mlflow_conventions import COMMAND, NAME, NOTES, STATUSES, find_local_store, list_tags
from trainvitals.trackers.mlflow_media import LocalArtifacts, find_folder
from trainvitals.trackers.point_rows import PointColumns, PointRows
from trainvitals.trackers.run_writing import About

PIECE_POINTS = 200_000
READ = 4 << 20
READ_POINTS = 50_000
PAGE = 25_000
"""Points that a server gives at once."""
MOST_OF_AN_ANSWER = 64 << 20
ANSWER_SECONDS = 60.0
LATE_SECONDS = 300.0
"""After which a point with an earlier time than others is found in a run that goes on."""
DAMAGED = "points without a time or step that can be one"
LARGEST_DOUBLE = 1.7976931348623157e308
"""What the database has for infinity."""
_STATUSES: dict[object, str] = dict(enumerate(STATUSES.values(), 1))  # in files they are numbers
_STATUSES.update(STATUSES)


@dataclass(slots=True)
class MlflowRunInfo:
    """What a store knows of a run without its metrics."""

    run_id: str
    experiment: str
    name: str = ""
    status: object = None
    started: object = None
    ended: object = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: Path | None = None
    """Where they are, if that is a folder of this store."""

    def about(self) -> About:
        return About(
            name=self.name or self.tags.get(NAME, "") or self.run_id,
            project=self.experiment,
            config=dict(self.params) or None,
            tags=list_tags(self.tags),
            notes=self.tags.get(NOTES, ""),
            started=_seconds(self.started),
            command=self.tags.get(COMMAND),
        )

    def end(self) -> SourceEnd:
        status = _STATUSES.get(self.status, RUNNING) if isinstance(self.status, (str, int)) else RUNNING
        return SourceEnd(status, _seconds(self.ended))


class MlflowStore(Protocol):
    """Where MLflow keeps runs. Everything here raises ImportFailed or OSError."""

    place: str
    look_seconds: float
    """Between two looks at runs that are followed."""

    def list_runs(self) -> Iterable[tuple[str, str]]:
        """(run id, experiment) of every run that is not deleted."""
        ...

    def describe(self, run_id: str, experiment: str) -> MlflowRunInfo: ...

    def points(self, run_id: str, position: dict[str, Any]) -> Iterator[PointColumns]:
        """Those behind the position, which moves as they are given: it is behind those that were given last."""
        ...


def open_source(target: str) -> MlflowSource:
    return MlflowSource(open_store(target))


def open_store(target: str) -> MlflowStore:
    if target.startswith(("http://", "https://")):
        return ServerStore(target)
    path = find_local_store(target)
    if path is None:
        raise ImportFailed(
            f"cannot read {target.partition(':')[0]}: addresses",
            hint="import from the MLflow server in front of it: http://HOST:PORT",
        )
    if path.is_file():
        return DatabaseStore(path.resolve())
    if not path.is_dir():
        raise ImportFailed(f"{path} does not exist", hint="name an mlruns folder, an mlflow.db, or http://HOST:PORT")
    inner = path / "mlruns"
    if not any(path.glob("*/meta.yaml")):
        if inner.is_dir():
            return FileStore(inner.resolve())
        if (path / "mlflow.db").is_file():
            return DatabaseStore((path / "mlflow.db").resolve())
    return FileStore(path.resolve())


class MlflowSource:
    """All runs of a store."""

    unended = SourceEnd(RUNNING)

    def __init__(self, store: MlflowStore) -> None:
        self._store = store
        self.look_seconds = store.look_seconds
        self._known: dict[str, MlflowRun] = {}

    def find(self, run_id: str) -> MlflowRun:
        """One run. Raises ImportFailed."""
        found = next((run for run in self.runs() if run.key == run_id), None)
        if found is None:
            raise ImportFailed(f"there is no run {run_id} in {self._store.place}")
        return found

    def runs(self) -> list[MlflowRun]:
        for run_id, experiment in self._store.list_runs():
            if run_id not in self._known:
                self._known[run_id] = MlflowRun(self._store, run_id, experiment)
        return list(self._known.values())


class MlflowRun:
    """One run."""

    def __init__(self, store: MlflowStore, run_id: str, experiment: str) -> None:
        self.key = run_id
        self.place = store.place
        self._store = store
        self._experiment = experiment
        self._info: MlflowRunInfo | None = None
        self._artifacts = LocalArtifacts()

    @property
    def title(self) -> str:
        return self._info.about().name if self._info is not None else self.key

    def about(self) -> About:
        self._info = self._store.describe(self.key, self._experiment)
        return self._info.about()

    def end(self) -> SourceEnd | None:
        return self._info.end() if self._info is not None else None

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        moving: dict[str, Any] = json.loads(json.dumps(position))
        about = self.about()  # before the points: a run that ends meanwhile is read again
        if position.get("about") != (digest := _digest(about)):
            moving["about"] = digest
            yield Piece(position={**position, "about": digest}, about=about)
        rows = PointRows()
        for points in self._store.points(self.key, moving):
            rows.add(points)
            if rows.count >= PIECE_POINTS:
                yield _make_piece(rows, moving)
                rows = PointRows()
        if rows.count or rows.damaged:
            yield _make_piece(rows, moving)
        if self._info is not None and self._info.artifacts is not None:
            yield from self._artifacts.read(self._info.artifacts, self._info.tags, moving)


def _digest(about: About) -> str:
    return hashlib.sha256(repr(about).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _make_piece(rows: PointRows, position: Mapping[str, Any]) -> Piece:
    left_out = Counter({DAMAGED: rows.damaged} if rows.damaged else {})
    place = json.loads(json.dumps(position))
    return Piece(position=place, lines=rows.make_lines(), again=frozenset(rows.again), left_out=left_out)


def _seconds(milliseconds: object) -> float | None:
    if type(milliseconds) in (int, float) and 0 < milliseconds <= LATEST * 1000:  # type: ignore[operator]
        return milliseconds / 1000  # type: ignore[operator]
    return None


# -- files


class FileStore:
    """`mlruns/<experiment>/<run>/metrics/<key>`: a line per point, `milliseconds value step`."""

    look_seconds = LOOK_SECONDS

    def __init__(self, root: Path) -> None:
        self._root = root
        self.place = str(root)
        self._folders: dict[str, Path] = {}

    def list_runs(self) -> Iterator[tuple[str, str]]:
        for meta in sorted(self._root.glob("*/meta.yaml")):
            experiment = str(read_yaml(meta).get("name") or meta.parent.name)
            for inner in sorted(meta.parent.glob("*/meta.yaml")):
                if (
                    read_yaml(inner).get("lifecycle_stage", "active") == "active"
                    and (inner.parent / "metrics").is_dir()
                ):
                    self._folders[inner.parent.name] = inner.parent
                    yield inner.parent.name, experiment

    def describe(self, run_id: str, experiment: str) -> MlflowRunInfo:
        folder = self._folders[run_id]
        meta = read_yaml(folder / "meta.yaml")
        return MlflowRunInfo(
            run_id,
            experiment,
            name=str(meta.get("run_name") or ""),
            status=meta.get("status"),
            started=meta.get("start_time"),
            ended=meta.get("end_time"),
            params=_read_texts(folder / "params"),
            tags=_read_texts(folder / "tags"),
            artifacts=folder / "artifacts",
        )

    def points(self, run_id: str, position: dict[str, Any]) -> Iterator[PointColumns]:
        offsets: dict[str, int] = position.setdefault("offsets", {})
        folder = self._folders[run_id] / "metrics"
        for path in sorted(item for item in folder.rglob("*") if item.is_file()):
            key = path.relative_to(folder).as_posix()
            with open(path, "rb") as file:
                file.seek(offsets.get(key, 0))
                rest = b""
                while data := file.read(READ):
                    whole, newline, rest = (rest + data).rpartition(b"\n")  # the last line may be being written
                    if newline:
                        offsets[key] = offsets.get(key, 0) + len(whole) + 1
                        yield _parse_points(key, whole)


def _parse_points(key: str, data: bytes) -> PointColumns:
    """Lines `milliseconds value step`. What cannot be read is left out; the step may be missing."""
    words = data.split()
    separators = np.frombuffer(data + b"\n", np.uint8)
    separators = separators[(separators == 32) | (separators == 10)]
    if len(separators) == len(words) and len(words) % 3 == 0 and (separators.reshape(-1, 3) == (32, 32, 10)).all():
        with contextlib.suppress(ValueError):
            times, steps = (list(map(int, words[first::3])) for first in (0, 2))
            return PointColumns([key] * len(times), times, steps, list(map(float, words[1::3])))
    found = [point for line in data.split(b"\n") if (point := _parse_point(line)) is not None]
    return _columns(key, found)


def _columns(key: str, points: Sequence[tuple[int, int, float]], again: bool = False) -> PointColumns:
    times, steps, values = zip(*points, strict=True) if points else ((), (), ())
    return PointColumns([key] * len(points), times, steps, values, again)


def _parse_point(line: bytes) -> tuple[int, int, float] | None:
    words = line.split()
    try:
        return int(words[0]), int(words[2]) if len(words) > 2 else 0, float(words[1])
    except (ValueError, IndexError):
        return None


def _read_texts(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8", "backslashreplace").removesuffix("\n")
        for path in files
    }


# -- the database


class DatabaseStore:
    """`mlflow.db`, read while MLflow may be writing it."""

    look_seconds = LOOK_SECONDS

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        try:
            self._connection, tables = open_database(path)
        except (OSError, sqlite3.Error) as error:
            raise ImportFailed(f"cannot read {path.name}: {error}") from None
        if not {"runs", "metrics", "experiments"} <= tables:
            raise ImportFailed(f"{path.name} is not a database of MLflow")

    def _ask(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query, values)
        except sqlite3.Error as error:
            raise ImportFailed(f"cannot read the database: {error}") from None

    def list_runs(self) -> Iterator[tuple[str, str]]:
        query = (
            "SELECT run_uuid, experiments.name FROM runs JOIN experiments USING (experiment_id) "
            "WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
        )
        for run_id, experiment in self._ask(query):
            yield str(run_id), str(experiment)

    def describe(self, run_id: str, experiment: str) -> MlflowRunInfo:
        query = "SELECT name, status, start_time, end_time, artifact_uri FROM runs WHERE run_uuid = ?"
        for name, status, started, ended, artifacts in self._ask(query, run_id):
            params, tags = (
                {
                    str(key): str(value)
                    for key, value in self._ask(f"SELECT key, value FROM {table} WHERE run_uuid = ?", run_id)
                }
                for table in ("params", "tags")
            )
            folder = find_folder(artifacts, Path(self.place).parent)
            return MlflowRunInfo(run_id, experiment, name or "", status, started, ended, params, tags, folder)
        raise ImportFailed(f"run {run_id} was removed")

    def points(self, run_id: str, position: dict[str, Any]) -> Iterator[PointColumns]:
        query = (
            "SELECT rowid, key, timestamp, step, value, is_nan FROM metrics "
            "WHERE run_uuid = ? AND rowid > ? ORDER BY rowid"
        )
        found = self._ask(query, run_id, position.get("row", 0))
        while rows := list(itertools.islice(found, READ_POINTS)):
            numbers, keys, times, steps, values, are_nan = zip(*rows, strict=True)
            position["row"] = numbers[-1]
            yield PointColumns(list(map(str, keys)), times, steps, _read_values(values, are_nan))


def _read_values(values: Sequence[Any], are_nan: Sequence[object]) -> Sequence[float]:
    is_plain = set(map(type, values)) == {float} and max(map(abs, values)) < LARGEST_DOUBLE
    found = values if is_plain else list(map(_number, values))
    if any(are_nan):
        found = [math.nan if is_nan else value for value, is_nan in zip(found, are_nan, strict=True)]
    return found


def _from_database(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= LARGEST_DOUBLE else value


# -- a server


class _ReadMetric(NamedTuple):
    """What was known of a metric when its history was read."""

    latest: tuple[object, ...]
    seen: list[Any]
    time: float


class ServerStore:
    """Asked over REST. Points have no order there but time, and one may be logged late, with an earlier time than those
    that were imported: then the first points of its metric are not those of before, and all of them are compared with
    what the run has.

    Followed, a server is asked for its runs, with the latest value of each metric; for a history only where that is
    another one than before, or the run goes on and has not been asked for long."""

    look_seconds = 5.0

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        self._base = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self.place = self._base
        self._headers = _authorize(parts)
        self._found: dict[str, Mapping[str, Any]] = {}
        """Runs, as they were listed last."""
        self._read: dict[tuple[str, str], _ReadMetric] = {}

    def _ask(self, route: str, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None) -> Any:
        address = f"{self._base}/api/2.0/mlflow/{route}"
        if query:
            address = f"{address}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, {**self._headers, "Content-Type": "application/json"})
        try:
            answer = http_client.send(request, ANSWER_SECONDS, most=MOST_OF_AN_ANSWER)
        except OSError as error:
            raise ImportFailed(f"{self.place}: {error}", hint="is it the address of an MLflow server?") from None
        if not answer.is_good:
            raise ImportFailed(f"{self.place} answered {answer.status} {answer.reason}: {answer.text}"[:300])
        try:
            found = parse_json(answer.body)
        except ValueError:
            raise ImportFailed(f"{self.place} did not answer as an MLflow server does") from None
        return found if isinstance(found, dict) else {}

    def _pages(self, route: str, wanted: str, body: Mapping[str, Any], *, get: bool = False) -> Iterator[Any]:
        token = ""
        while True:
            more = {**body, **({"page_token": token} if token else {})}
            found = self._ask(route, query=more) if get else self._ask(route, body=more)
            yield from found.get(wanted) or ()
            following = found.get("next_page_token") or ""
            if not following or following == token:
                return
            token = following

    def list_runs(self) -> Iterator[tuple[str, str]]:
        names = {
            str(item.get("experiment_id")): str(item.get("name"))
            for item in self._pages("experiments/search", "experiments", {"max_results": 1000})
        }
        for identity, name in names.items():
            asked = {"experiment_ids": [identity], "max_results": 1000, "run_view_type": "ACTIVE_ONLY"}
            for run in self._pages("runs/search", "runs", asked):
                info = run.get("info", {})
                run_id = str(info.get("run_id") or info.get("run_uuid"))
                self._found[run_id] = run
                yield run_id, name

    def describe(self, run_id: str, experiment: str) -> MlflowRunInfo:
        run = self._found[run_id]
        info, data = run.get("info", {}), run.get("data", {})
        params, tags = (
            {str(item.get("key")): str(item.get("value")) for item in data.get(kind) or ()}
            for kind in ("params", "tags")
        )
        name = str(info.get("run_name") or "")
        started, ended = (_whole(info.get(key)) for key in ("start_time", "end_time"))
        return MlflowRunInfo(run_id, experiment, name, info.get("status"), started, ended, params, tags)

    def points(self, run_id: str, position: dict[str, Any]) -> Iterator[PointColumns]:
        seen: dict[str, list[Any]] = position.setdefault("seen", {})
        is_older = position.pop("counts", None) is not None  # noted by a version that counted points only
        run = self._found[run_id]
        status = str(run.get("info", {}).get("status"))
        for metric in run.get("data", {}).get("metrics") or ():
            key = str(metric.get("key"))
            latest = (status, *(metric.get(name) for name in ("timestamp", "step")), str(metric.get("value")))
            if self._is_read(run_id, key, latest, seen.get(key)):
                continue
            asked = {"run_id": run_id, "metric_key": key, "max_results": PAGE}
            pages = self._pages("metrics/get-history", "metrics", asked, get=True)
            found = [
                (_whole(item.get("timestamp")) or 0, _whole(item.get("step")) or 0, _number(item.get("value")))
                for item in pages
            ]
            found.sort(key=lambda point: (point[0], point[1], repr(point[2])))
            count, digest = seen.get(key) or [0, "" if is_older else _Digest().text]
            so_far = _Digest(found[:count])
            again = so_far.text != digest
            if again:
                count, so_far = 0, _Digest()
            for start in range(count, len(found), READ_POINTS):
                some = found[start : start + READ_POINTS]
                so_far.add(some)
                # A metric that is given again is so from its start, should this end before.
                if not again or start + len(some) == len(found):
                    seen[key] = [start + len(some), so_far.text]
                yield _columns(key, some, again)
            seen[key] = [len(found), so_far.text]
            self._read[run_id, key] = _ReadMetric(latest, seen[key], time.monotonic())

    def _is_read(self, run_id: str, key: str, latest: tuple[object, ...], seen: object) -> bool:
        """Whether the history has nothing new, and all of it was written."""
        known = self._read.get((run_id, key))
        if known is None or known.latest != latest or known.seen != seen:
            return False
        return _STATUSES.get(latest[0], RUNNING) != RUNNING or time.monotonic() - known.time < LATE_SECONDS


class _Digest:
    """Of points in their order."""

    def __init__(self, points: Iterable[tuple[int, int, float]] = ()) -> None:
        self._hash = hashlib.sha256()
        self.add(points)

    def add(self, points: Iterable[tuple[int, int, float]]) -> None:
        self._hash.update("".join(f"{time} {step} {value!r}\n" for time, step, value in points).encode())

    @property
    def text(self) -> str:
        return self._hash.hexdigest()[:16]


def _authorize(parts: urllib.parse.SplitResult) -> dict[str, str]:
    """As MLflow's own client is given it: in the address or the environment."""
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    user = urllib.parse.unquote(parts.username or "") or os.environ.get("MLFLOW_TRACKING_USERNAME")
    password = urllib.parse.unquote(parts.password or "") or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    if user:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _whole(value: object) -> int | None:
    """A number that JSON may have as a text, for it has 64 bits."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


def _number(value: object) -> float:
    try:
        return _from_database(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
