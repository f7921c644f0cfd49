"""The REST protocol of MLflow's client: experiments, runs, metrics, parameters, tags and artifacts.

Written against clients 2.x and 3.x. An experiment is a project. The model registry, logged models and traces are not
offered, which is answered in MLflow's own form.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import dump_json, number, parse_time, spell
from trainvitals.redaction import redact, redact_text
from trainvitals.trackers.intake.answers import IntakeAnswer, OnceReporter, refuse_trouble
from trainvitals.trackers.intake.mlflow_search import BadFilter, Found, SearchCondition, parse_filter, sort_runs
from trainvitals.trackers.intake.recent_points import RecentPoints
from trainvitals.trackers.intake.runs import IntakeRun, IntakeRuns
from trainvitals.trackers.intake.uploads import BadName, find_below, list_files, make_place
from trainvitals.trackers.run_writing import About

TOOL = "mlflow"
EXPERIMENTS_FILE = ".mlflow.json"
DEFAULT_ID, DEFAULT_NAME = "0", "Default"
ARTIFACTS = "artifacts"
MOST_SUMMARIES = 5000
SAVE_SECONDS = 5.0
PAGE = 1000
LONGEST_PARAMETER = 6000
LONGEST_TAG = 8000
STATUSES = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
}
_THEIR_STATUS = {"finished": "FINISHED", "failed": "FAILED", "crashed": "FAILED", "killed": "KILLED"}

Given = Mapping[str, Any]


class RequestRefused(Exception):
    """An error in MLflow's form."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.answer = IntakeAnswer(status, {"error_code": code, "message": message})


def _missing(what: str) -> RequestRefused:
    return RequestRefused("RESOURCE_DOES_NOT_EXIST", f"there is no {what}", 404)


def _invalid(text: str) -> RequestRefused:
    return RequestRefused("INVALID_PARAMETER_VALUE", text)


class Mlflow:
    """Answers requests of clients. Called from several threads."""

    def __init__(self, runs: IntakeRuns, report_once: OnceReporter) -> None:
        self._runs = runs
        self._report_once = report_once
        self._lock = threading.RLock()

    def answer(self, method: str, path: str, query: Sequence[tuple[str, str]], body: bytes) -> IntakeAnswer:
        """`path` is what follows `/api/`."""
        route = path.partition("/")[2]
        handler = _ROUTES.get((method, route))
        if handler is None:
            if route not in _OPTIONAL:
                self._report_once(f"MLflow's {method} /api/{path[:100]} is not supported: answered with an error")
            text = f"trainvitals does not support {method} /api/{path[:100]}"
            return IntakeAnswer(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": text})
        try:
            given = dict(query)
            if body:
                parsed = orjson.loads(body)
                if not isinstance(parsed, dict):
                    raise _invalid("the body is not a JSON object")
                given = {**given, **parsed}
            return IntakeAnswer(200, handler(self, given))
        except orjson.JSONDecodeError:
            return _invalid("the body is not JSON").answer
        except RequestRefused as refused:
            return refused.answer
        except (BadFilter, BadName, TypeError, ValueError) as error:
            return _invalid(str(error)[:500]).answer
        except (JournalError, OSError) as error:
            return refuse_trouble(error)

    # -- experiments: one small file beside the runs

    def _experiments(self) -> dict[str, dict[str, Any]]:
        found = (runtime.read_json(self._runs.root / EXPERIMENTS_FILE) or {}).get("experiments")
        known = {DEFAULT_ID: _new_experiment(DEFAULT_ID, DEFAULT_NAME, 0)}
        for item in found if isinstance(found, list) else ():
            if isinstance(item, dict) and isinstance(item.get("experiment_id"), str):
                known[item["experiment_id"]] = item
        return known

    def _write_experiments(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        run_folder.create(self._runs.root, self._runs.settings.shared)
        data = dump_json({"experiments": list(known.values())})
        runtime.write_atomically(self._runs.root / EXPERIMENTS_FILE, data, self._runs.settings.file_mode)

    def _find_experiment(self, identity: object) -> dict[str, Any]:
        found = self._experiments().get(str(identity))
        if found is None:
            raise _missing(f"experiment {str(identity)[:100]}")
        return found

    def _get_experiment(self, given: Given) -> Any:
        return {"experiment": self._find_experiment(given.get("experiment_id"))}

    def _get_experiment_by_name(self, given: Given) -> Any:
        for experiment in self._experiments().values():
            if experiment["name"] == given.get("experiment_name"):
                return {"experiment": experiment}
        raise _missing(f"experiment named '{str(given.get('experiment_name'))[:200]}'")

    def _create_experiment(self, given: Given) -> Any:
        name = given.get("name")
        if not isinstance(name, str) or not name.strip() or len(name) > 500:
            raise _invalid("an experiment needs a name of at most 500 characters")
        with self._lock:
            known = self._experiments()
            if any(experiment["name"] == name for experiment in known.values()):
                raise RequestRefused("RESOURCE_ALREADY_EXISTS", f"there is an experiment '{name}'")
            identity = str(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))
            known[identity] = _new_experiment(identity, name, _now()) | {"tags": _read_pairs(given.get("tags"))}
            self._write_experiments(known)
        return {"experiment_id": identity}

    def _search_experiments(self, given: Given) -> Any:
        conditions = parse_filter(str(given.get("filter") or ""))
        stages = _stages(given.get("view_type"))
        found = [
            item
            for item in self._experiments().values()
            if item.get("lifecycle_stage", "active") in stages
            and all(condition.holds(_describe_experiment(item)) for condition in conditions)
        ]
        found = sort_runs(found, _texts(given.get("order_by")), _describe_experiment)
        return _page("experiments", found, given)

    def _change_experiment(self, given: Given, change: Callable[[dict[str, Any]], None]) -> Any:
        with self._lock:
            known = self._experiments()
            experiment = known.get(str(given.get("experiment_id")))
            if experiment is None:
                raise _missing(f"experiment {given.get('experiment_id')}")
            change(experiment)
            experiment["last_update_time"] = _now()
            self._write_experiments(known)
        return {}

    def _update_experiment(self, given: Given) -> Any:
        return self._change_experiment(given, lambda item: item.update(name=str(given.get("new_name"))))

    def _delete_experiment(self, given: Given) -> Any:
        return self._change_experiment(given, lambda item: item.update(lifecycle_stage="deleted"))

    def _restore_experiment(self, given: Given) -> Any:
        return self._change_experiment(given, lambda item: item.update(lifecycle_stage="active"))

    def _set_experiment_tag(self, given: Given) -> Any:
        pair = {"key": str(given.get("key")), "value": redact_text(str(given.get("value", "")))}

        def change(item: dict[str, Any]) -> None:
            item["tags"] = [tag for tag in item.get("tags", []) if tag["key"] != pair["key"]] + [pair]

        return self._change_experiment(given, change)

    # -- runs

    @contextlib.contextmanager
    def _run(self, given: Given) -> Iterator[IntakeRun]:
        identity = given.get("run_id") or given.get("run_uuid")
        with self._runs.hold(TOOL, identity if isinstance(identity, str) else "") as run:
            if run is None:
                raise _missing(f"run {str(identity)[:100]}")
            yield run

    def _create_run(self, given: Given) -> Any:
        experiment = self._find_experiment(given.get("experiment_id") or DEFAULT_ID)
        tags = {pair["key"]: pair["value"] for pair in _read_pairs(given.get("tags"))}
        identity = uuid.uuid4().hex
        name = str(given.get("run_name") or tags.get("mlflow.runName") or "")
        started = number(given.get("start_time"))
        source = tags.get("mlflow.source.name")
        about = About(
            name=name,
            project="" if experiment["experiment_id"] == DEFAULT_ID else experiment["name"],
            started=started / 1000 if started else time.time(),
            command=source,
        )
        with self._runs.begin(TOOL, identity, about) as run:
            run.position |= {
                "experiment": experiment["experiment_id"],
                "name": redact_text(name) or run.folder.name,
                "user": str(given.get("user_id") or tags.get("mlflow.user") or ""),
                "started": int(started) if started else _now(),
                "tags": {**tags, "mlflow.runName": redact_text(name) or run.folder.name},
                "params": {},
            }
            run.save()
            return {"run": self._describe(run)}

    def _get_run(self, given: Given) -> Any:
        with self._run(given) as run:
            return {"run": self._describe(run)}

    def _update_run(self, given: Given) -> Any:
        with self._run(given) as run:
            if isinstance(name := given.get("run_name"), str) and name:
                run.position["name"] = redact_text(name)
                run.position.setdefault("tags", {})["mlflow.runName"] = redact_text(name)
                run.describe(About(name=name))
            status = given.get("status")
            if status is not None and status not in STATUSES:
                raise _invalid(f"'{status}' is not a status of a run")
            if status is not None:
                run.position["status"] = status
            ended = number(given.get("end_time"))
            if STATUSES.get(str(status), "running") != "running":
                run.position["ended"] = int(ended) if ended else _now()
                run.position["metrics"] = dict(list(_latest(run).items())[:MOST_SUMMARIES])
                run.save()
                if not run.file.is_over:
                    run.end(STATUSES[str(status)])
                info = self._describe(run)["info"]
                self._runs.forget(run)
                return {"run_info": info}
            if status is not None and run.file.is_over:
                run.position.pop("ended", None)
                run.begin_attempt()
                run.writer.watch()
            run.save()
            return {"run_info": self._describe(run)["info"]}

    def _delete_run(self, given: Given) -> Any:
        return self._set_stage(given, "deleted")

    def _restore_run(self, given: Given) -> Any:
        return self._set_stage(given, "active")

    def _set_stage(self, given: Given, stage: str) -> Any:
        with self._run(given) as run:
            run.position["stage"] = stage
            run.save()
        return {}

    def _describe(self, run: IntakeRun) -> dict[str, Any]:
        made = _describe_run(run.key, run.file, run.position, _latest(run))
        if made["info"]["status"] == "RUNNING" and run.is_stop_requested:
            made["info"]["status"] = "KILLED"  # the only word that MLflow has for it: programs may look
        return made

    # -- what is logged

    def _log_metric(self, given: Given) -> Any:
        return self._log(given, metrics=[given])

    def _log_parameter(self, given: Given) -> Any:
        return self._log(given, params=[given])

    def _set_tag(self, given: Given) -> Any:
        return self._log(given, tags=[given])

    def _log_batch(self, given: Given) -> Any:
        return self._log(
            given,
            metrics=_objects(given.get("metrics")),
            params=_objects(given.get("params")),
            tags=_objects(given.get("tags")),
        )

    def _log(
        self, given: Given, metrics: Sequence[Given] = (), params: Sequence[Given] = (), tags: Sequence[Given] = ()
    ) -> Any:
        points = [_read_point(item) for item in metrics]
        with self._run(given) as run:
            if run.position.get("stage") == "deleted":
                raise _invalid(f"run {run.key} is deleted")
            self._set_params(run, params)
            for pair in _read_pairs(tags):
                run.position.setdefault("tags", {})[pair["key"]] = pair["value"]
                if pair["key"] == "mlflow.note.content":
                    run.describe(About(notes=pair["value"]))
            self._append(run, points)
            due = time.monotonic() - float(run.tables.get("saved", 0.0)) > SAVE_SECONDS
            if params or tags or due:
                run.save()
                run.tables["saved"] = time.monotonic()
            else:
                run.confirm()
        return {}

    def _set_params(self, run: IntakeRun, params: Sequence[Given]) -> None:
        if not params:
            return
        known = run.position.setdefault("params", {})
        given = {str(item.get("key")): str(item.get("value", ""))[:LONGEST_PARAMETER] for item in params}
        given = redact(given, extra=self._runs.settings.redact)
        for name, value in given.items():
            if known.get(name, value) != value:
                raise _invalid(f"parameter '{name}' of run {run.key} is '{known[name]}' and cannot be changed")
        known.update(given)
        run.describe(About(config=dict(known)))

    def _append(self, run: IntakeRun, points: list[tuple[str, float, int, int]]) -> None:
        recent, latest = _recent(run), _latest(run)
        rows: dict[tuple[int, int], dict[str, float]] = {}
        for name, value, moment, step in points:
            if not recent.add(run.writer.name_of(name), value, moment * 1000, step):
                continue  # sent again: its answer was lost
            row = rows.setdefault((step, moment), {})
            if name in row:  # two values of one moment are two rows
                self._write(run, row, step, moment)
                row.clear()
            row[name] = value
            _note_latest(latest, name, value, moment, step)
        for (step, moment), row in rows.items():
            self._write(run, row, step, moment)

    @staticmethod
    def _write(run: IntakeRun, row: Mapping[str, float], step: int, moment: int) -> None:
        run.writer.append(row, step=step, time=moment / 1000)

    def _delete_tag(self, given: Given) -> Any:
        with self._run(given) as run:
            if run.position.get("tags", {}).pop(str(given.get("key")), None) is None:
                raise _missing(f"tag '{given.get('key')}'")
            run.save()
        return {}

    def _log_inputs(self, given: Given) -> Any:
        with self._run(given) as run:
            known = run.position.setdefault("inputs", [])
            known += [item for item in _objects(given.get("datasets")) if item not in known]
            run.save()
        return {}

    def _log_model(self, given: Given) -> Any:
        """A model of 2.x is files and this line."""
        with self._run(given) as run:
            tags = run.position.setdefault("tags", {})
            models = orjson.loads(tags.get("mlflow.log-model.history", "[]"))
            models.append(orjson.loads(str(given.get("model_json") or "{}")))
            tags["mlflow.log-model.history"] = dump_json(models).decode()
            run.save()
        return {}

    # -- reading back

    def _search_runs(self, given: Given) -> Any:
        conditions = parse_filter(str(given.get("filter") or ""))
        wanted = set(map(str, given.get("experiment_ids") or ()))
        stages = _stages(given.get("run_view_type"))
        found = [run for run in self._read_runs(wanted, stages) if _all_hold(conditions, run)]
        newest = sorted(found, key=lambda run: -int(run["info"].get("start_time") or 0))
        return _page("runs", sort_runs(newest, _texts(given.get("order_by")), _describe_found), given)

    def _read_runs(self, experiments: set[str], stages: frozenset[str]) -> Iterable[dict[str, Any]]:
        live = {run.folder: run for run in self._runs.list_open()}
        for folder in self._runs.list_folders():
            run = live.get(folder)
            if run is not None and run.writer.origin.tool == TOOL:
                with run.lock:
                    made = self._describe(run)
            elif (file := run_folder.find_run(folder)) is not None and file.origin and file.origin.tool == TOOL:
                position = file.origin.position
                made = _describe_run(file.origin.key, file, position, position.get("metrics") or {})
            else:
                continue
            if made["info"]["experiment_id"] in experiments and made["info"]["lifecycle_stage"] in stages:
                yield made

    def _metric_history(self, given: Given) -> Any:
        from trainvitals.journal.reader import RunReader

        key = str(given.get("metric_key"))
        with self._run(given) as run:
            name = run.writer.name_of(key)
        points = []
        for row in RunReader(run.folder).rows("training"):
            value = number(row.get(name))
            if value is not None:
                moment = round((parse_time(row["timestamp"]) or 0.0) * 1000)
                points.append({"key": key, "value": spell(value), "timestamp": moment, "step": row.get("step", 0)})
        return _page("metrics", points, given, most=25_000)

    # -- artifacts

    def find_place(self, name: str) -> Path:
        """Where an uploaded artifact goes. Raises BadName or OSError."""
        folder, rest = self._split_artifact(name)
        return make_place(folder, ARTIFACTS, rest)

    def find_artifact(self, name: str) -> Path | None:
        """An artifact that is to be downloaded."""
        try:
            folder, rest = self._split_artifact(name)
        except BadName:
            return None
        path = find_below(folder, ARTIFACTS, rest)
        return path if path is not None and path.is_file() else None

    def delete_artifact(self, name: str) -> IntakeAnswer:
        path = self.find_artifact(name)
        if path is None:
            return _missing("such artifact").answer
        path.unlink(missing_ok=True)
        return IntakeAnswer(200)

    def _split_artifact(self, name: str) -> tuple[Path, str]:
        """`EXPERIMENT/RUN/artifacts/PATH`, as in the address that a run was given."""
        parts = name.split("/", 3)
        with self._runs.hold(TOOL, parts[1] if len(parts) == 4 and parts[2] == ARTIFACTS else "") as run:
            if run is None:
                raise BadName("there is no such run")
            return run.folder, parts[3]

    def _list_artifacts(self, given: Given) -> Any:
        path = str(given.get("path") or "").strip("/")
        with self._run(given) as run:
            root = _artifact_uri(run.position, run.key)
        files = [
            {
                "path": f"{path}/{item['path']}" if path else item["path"],
                **{k: v for k, v in item.items() if k != "path"},
            }
            for item in self._list(run.folder, path)
        ]
        return {"root_uri": root, "files": files}

    def _list_proxied(self, given: Given) -> Any:
        parts = str(given.get("path") or "").strip("/").split("/", 3)
        with self._runs.hold(TOOL, parts[1] if len(parts) >= 3 and parts[2] == ARTIFACTS else "") as run:
            return {"files": self._list(run.folder, parts[3] if len(parts) > 3 else "") if run is not None else []}

    @staticmethod
    def _list(folder: Path, path: str) -> list[dict[str, Any]]:
        place = find_below(folder, ARTIFACTS, path)
        return [
            {"path": item.name, "is_dir": is_folder, **({} if is_folder else {"file_size": size})}
            for item, is_folder, size in (list_files(place) if place is not None else ())
        ]

    def _search_models(self, given: Given) -> Any:
        """There are none: no client could create one."""
        return {"models": []}


_OPTIONAL = frozenset({"mlflow/server-info"})
"""What clients of 3.x ask and do without."""
_Handler = Callable[[Mlflow, Given], Any]
_ROUTES: Mapping[tuple[str, str], _Handler] = {
    ("GET", "mlflow/experiments/get"): Mlflow._get_experiment,
    ("GET", "mlflow/experiments/get-by-name"): Mlflow._get_experiment_by_name,
    ("POST", "mlflow/experiments/create"): Mlflow._create_experiment,
    ("POST", "mlflow/experiments/search"): Mlflow._search_experiments,
    ("GET", "mlflow/experiments/search"): Mlflow._search_experiments,
    ("POST", "mlflow/experiments/update"): Mlflow._update_experiment,
    ("POST", "mlflow/experiments/delete"): Mlflow._delete_experiment,
    ("POST", "mlflow/experiments/restore"): Mlflow._restore_experiment,
    ("POST", "mlflow/experiments/set-experiment-tag"): Mlflow._set_experiment_tag,
    ("POST", "mlflow/runs/create"): Mlflow._create_run,
    ("GET", "mlflow/runs/get"): Mlflow._get_run,
    ("POST", "mlflow/runs/update"): Mlflow._update_run,
    ("POST", "mlflow/runs/delete"): Mlflow._delete_run,
    ("POST", "mlflow/runs/restore"): Mlflow._restore_run,
    ("POST", "mlflow/runs/search"): Mlflow._search_runs,
    ("POST", "mlflow/runs/log-metric"): Mlflow._log_metric,
    ("POST", "mlflow/runs/log-parameter"): Mlflow._log_parameter,
    ("POST", "mlflow/runs/set-tag"): Mlflow._set_tag,
    ("POST", "mlflow/runs/delete-tag"): Mlflow._delete_tag,
    ("POST", "mlflow/runs/log-batch"): Mlflow._log_batch,
    ("POST", "mlflow/runs/log-inputs"): Mlflow._log_inputs,
    ("POST", "mlflow/runs/log-model"): Mlflow._log_model,
    ("POST", "mlflow/logged-models/search"): Mlflow._search_models,
    ("GET", "mlflow/metrics/get-history"): Mlflow._metric_history,
    ("GET", "mlflow/artifacts/list"): Mlflow._list_artifacts,
    ("GET", "mlflow-artifacts/artifacts"): Mlflow._list_proxied,
}


# -- documents


def _now() -> int:
    return time.time_ns() // 1_000_000


def _new_experiment(identity: str, name: str, created: int) -> dict[str, Any]:
    return {
        "experiment_id": identity,
        "name": name,
        "artifact_location": f"mlflow-artifacts:/{identity}",
        "lifecycle_stage": "active",
        "creation_time": created,
        "last_update_time": created,
        "tags": [],
    }


def _describe_experiment(item: Mapping[str, Any]) -> Found:
    return {"attributes": item, "tags": {pair["key"]: pair["value"] for pair in item.get("tags", ())}}


def _artifact_uri(position: Given, key: str) -> str:
    return f"mlflow-artifacts:/{position.get('experiment', DEFAULT_ID)}/{key}/{ARTIFACTS}"


def _describe_run(key: str, file: RunFile, position: Given, latest: Mapping[str, Any]) -> dict[str, Any]:
    status = position.get("status")
    if file.is_over and STATUSES.get(str(status), "running") == "running":
        status = _THEIR_STATUS.get(file.status)
    info = {
        "run_id": key,
        "run_uuid": key,
        "run_name": position.get("name", ""),
        "experiment_id": position.get("experiment", DEFAULT_ID),
        "user_id": position.get("user", ""),
        "status": status or "RUNNING",
        "start_time": position.get("started"),
        "artifact_uri": _artifact_uri(position, key),
        "lifecycle_stage": position.get("stage", "active"),
    }
    if position.get("ended"):
        info["end_time"] = position["ended"]
    metrics = [
        {"key": name, "value": value, "timestamp": moment, "step": step}
        for name, (value, moment, step) in latest.items()
    ]
    pairs = {
        kind: [{"key": k, "value": v} for k, v in (position.get(kind) or {}).items()] for kind in ("params", "tags")
    }
    return {
        "info": info,
        "data": {"metrics": metrics, **pairs},
        "inputs": {"dataset_inputs": position.get("inputs") or []},
    }


def _describe_found(run: Mapping[str, Any]) -> Found:
    data = run["data"]
    return {
        "metrics": {item["key"]: number(item["value"]) for item in data["metrics"]},
        "params": {item["key"]: item["value"] for item in data["params"]},
        "tags": {item["key"]: item["value"] for item in data["tags"]},
        "attributes": {**run["info"], "created": run["info"].get("start_time")},
    }


def _all_hold(conditions: Sequence[SearchCondition], run: Mapping[str, Any]) -> bool:
    return not conditions or all(condition.holds(_describe_found(run)) for condition in conditions)


def _page(name: str, items: Sequence[Any], given: Given, most: int = PAGE) -> dict[str, Any]:
    """As many as were asked for, and where the rest begins."""
    token = str(given.get("page_token") or "0")
    start = int(token) if token.isdecimal() else 0
    asked = number(given.get("max_results")) or (float(str(given["max_results"])) if given.get("max_results") else 0)
    end = start + min(int(asked) or most, 50_000)
    made: dict[str, Any] = {name: list(items[start:end])}
    if end < len(items):
        made["next_page_token"] = str(end)
    return made


def _stages(view: object) -> frozenset[str]:
    return {"DELETED_ONLY": frozenset({"deleted"}), "ALL": frozenset({"active", "deleted"})}.get(
        str(view), frozenset({"active"})
    )


def _objects(value: object) -> list[Given]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _read_pairs(value: object) -> list[dict[str, str]]:
    """Tags, without secrets."""
    found = {str(item.get("key")): str(item.get("value", ""))[:LONGEST_TAG] for item in _objects(list(value or ()))}  # type: ignore[call-overload]
    return [{"key": key, "value": text} for key, text in redact(found).items()]


# -- points


def _read_point(item: Given) -> tuple[str, float, int, int]:
    """(name, value, milliseconds since 1970, step)"""
    value, moment, step = number(item.get("value")), number(item.get("timestamp")), number(item.get("step", 0))
    if not isinstance(item.get("key"), str) or value is None:
        raise _invalid("a metric needs a key and a value that is a number")
    if moment is None or not 0 <= moment < 1e14:
        raise _invalid("a metric needs a timestamp in milliseconds since 1970")
    if step is None or math.isnan(step) or abs(step) >= 2**53:
        raise _invalid("the step of a metric is a whole number")
    return item["key"], value, int(moment), int(step)


def _recent(run: IntakeRun) -> RecentPoints:
    known: RecentPoints | None = run.tables.get("recent")
    if known is None:
        known = run.tables["recent"] = RecentPoints(run.folder)
    return known


def _latest(run: IntakeRun) -> dict[str, Any]:
    """By metric: value, time and step of its newest point, which is the one with the highest step."""
    known: dict[str, Any] | None = run.tables.get("latest")
    if known is None:
        from trainvitals.journal.reader import RunReader

        known = run.tables["latest"] = {}
        ours = {mine: theirs for theirs, mine in run.writer.origin.renamed.items()}
        for row in RunReader(run.folder).rows("training"):
            moment = round((parse_time(row.get("timestamp")) or 0.0) * 1000)
            for name, item in row.items():
                if name not in ("timestamp", "step", "rank", "role", "attempt") and (value := number(item)) is not None:
                    _note_latest(known, ours.get(name, name), value, moment, row.get("step", 0))
    return known


def _note_latest(latest: dict[str, Any], name: str, value: float, moment: int, step: int) -> None:
    known = latest.get(name)
    if known is None or (step, moment) >= (known[2], known[1]):
        latest[name] = [spell(value), moment, step]
