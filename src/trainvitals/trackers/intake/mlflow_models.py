"""Logged models of MLflow 3: files below `artifacts/models/` of the run that made them, and what is known of each.

A model's id begins with that of its run. One that is logged outside of a run has a run of its own: here everything
belongs to one. Tested in tests/trackers/intake/test_mlflow.py.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from trainvitals.trackers.intake.mlflow_artifacts import list_folder
from trainvitals.trackers.intake.mlflow_documents import (
    DEFAULT_ID,
    TOOL,
    Given,
    Routes,
    artifact_uri,
    invalid,
    missing,
    now,
    page,
    read_pairs,
)
from trainvitals.trackers.intake.mlflow_runs import MlflowRuns
from trainvitals.trackers.intake.mlflow_search import Found, parse_filter
from trainvitals.trackers.intake.runs import IntakeRun, IntakeRuns

PENDING, READY, FAILED = "LOGGED_MODEL_PENDING", "LOGGED_MODEL_READY", "LOGGED_MODEL_UPLOAD_FAILED"
_STATUSES = (PENDING, READY, FAILED)
MOST_MODELS = 1000
"""Of one run: what is known of them is in its run.json."""
_PLACE = "mlflow/logged-models"
_RUN_ID = 32
"""Letters of the id of a run."""


def split_route(route: str) -> tuple[str, dict[str, str]]:
    """`mlflow/logged-models/m-1/tags/k` as the route that it is one of, with its parts."""
    parts = route.split("/")
    if not route.startswith(f"{_PLACE}/") or len(parts) < 3 or parts[2] == "search":
        return route, {}
    given, parts[2] = {"model_id": parts[2]}, "{model_id}"
    if len(parts) == 5 and parts[3] == "tags":
        given["tag_key"], parts[4] = parts[4], "{tag_key}"
    return "/".join(parts), given


class MlflowModels:
    """Those of the runs of one place. Called from several threads."""

    def __init__(self, runs: IntakeRuns, mlflow_runs: MlflowRuns) -> None:
        self._runs = runs
        self._mlflow_runs = mlflow_runs
        one = f"{_PLACE}/{{model_id}}"
        self.routes: Routes = {
            ("POST", _PLACE): self._create,
            ("POST", f"{_PLACE}/search"): self._search,
            ("GET", one): self._get,
            ("PATCH", one): self._finalize,
            ("DELETE", one): self._delete,
            ("POST", f"{one}/params"): self._log_params,
            ("PATCH", f"{one}/tags"): self._set_tags,
            ("DELETE", f"{one}/tags/{{tag_key}}"): self._delete_tag,
            ("GET", f"{one}/artifacts/directories"): self._list_artifacts,
        }

    def _create(self, given: Given) -> Any:
        key = given.get("source_run_id")
        if not key:
            about = {"experiment_id": given.get("experiment_id"), "run_name": given.get("name")}
            key = self._mlflow_runs.create(about)["run"]["info"]["run_id"]
        with self._runs.hold(TOOL, str(key)) as run:
            if run is None:
                raise missing(f"run {str(key)[:100]}")
            known = run.position.setdefault("models", {})
            if len(known) >= MOST_MODELS:
                raise invalid(f"run {key} has {MOST_MODELS} models")
            identity = f"m-{run.key}{secrets.token_hex(4)}"
            created = now()
            known[identity] = {
                "name": str(given.get("name") or identity)[:500],
                "model_type": str(given.get("model_type") or "")[:500],
                "experiment_id": run.position.get("experiment", DEFAULT_ID),
                "source_run_id": str(given.get("source_run_id") or ""),
                "status": PENDING,
                "created": created,
                "updated": created,
                "params": _as_mapping(given.get("params")),
                "tags": _as_mapping(given.get("tags")),
            }
            run.save()
            return {"model": _describe(run.key, identity, known[identity])}

    def _get(self, given: Given) -> Any:
        with self._hold(given) as (run, identity, model):
            return {"model": _describe(run.key, identity, model)}

    def _finalize(self, given: Given) -> Any:
        status = given.get("status")
        if status not in _STATUSES:
            raise invalid(f"'{status}' is not a status of a model")
        return self._change(given, {"status": status})

    def _log_params(self, given: Given) -> Any:
        with self._hold(given) as (_, _, model):
            changed = {"params": {**model["params"], **_as_mapping(given.get("params"))}}
        self._change(given, changed)
        return {}

    def _set_tags(self, given: Given) -> Any:
        with self._hold(given) as (_, _, model):
            changed = {"tags": {**model["tags"], **_as_mapping(given.get("tags"))}}
        return self._change(given, changed)

    def _delete_tag(self, given: Given) -> Any:
        with self._hold(given) as (_, _, model):
            changed = {"tags": {key: text for key, text in model["tags"].items() if key != given.get("tag_key")}}
        self._change(given, changed)
        return {}

    def _delete(self, given: Given) -> Any:
        """It is no longer known; its files stay, as those of a run that is deleted do."""
        with self._hold(given) as (run, identity, _):
            del run.position["models"][identity]
            run.save()
        return {}

    def _list_artifacts(self, given: Given) -> Any:
        path = str(given.get("artifact_directory_path") or "").strip("/")
        with self._hold(given) as (run, identity, _):
            root, folder = _place(run.key, identity, run.position), run.folder
        found = list_folder(folder, f"models/{identity}/{path}".rstrip("/"))
        files = [{**item, "path": f"{path}/{item['path']}" if path else item["path"]} for item in found]
        return {"root_uri": root, "files": files}

    def _search(self, given: Given) -> Any:
        conditions = parse_filter(str(given.get("filter") or ""))
        wanted = set(map(str, given.get("experiment_ids") or ()))
        found = [
            (model["created"], _describe(key, identity, model))
            for key, identity, model in self._list()
            if model["experiment_id"] in wanted
            and all(condition.holds(_as_found(identity, model)) for condition in conditions)
        ]
        newest = [described for _, described in sorted(found, key=lambda item: -item[0])]
        return page("models", newest, given)

    def _list(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """(key of the run, id, what is known) of every model."""
        live = {run.folder: run for run in self._runs.list_open() if run.writer.origin.tool == TOOL}
        for folder in self._runs.list_folders():
            run = live.get(folder)
            if run is not None:
                key, position = run.key, run.position
            elif (known := self._runs.read(folder)) is not None and known[1].tool == TOOL:
                key, position = known[1].key, dict(known[1].position)
            else:
                continue
            for identity, model in list((position.get("models") or {}).items()):
                yield key, identity, model

    @contextlib.contextmanager
    def _hold(self, given: Given) -> Iterator[tuple[IntakeRun, str, dict[str, Any]]]:
        """The run, with its lock held, the id and what is known of the model. Raises RequestRefused."""
        identity = str(given.get("model_id"))
        with self._runs.hold(TOOL, identity[2 : 2 + _RUN_ID]) as run:
            model = (run.position.get("models") or {}).get(identity) if run is not None else None
            if run is None or model is None:
                raise missing(f"model {identity[:100]}")
            yield run, identity, model

    def _change(self, given: Given, changed: Mapping[str, Any]) -> Any:
        with self._hold(given) as (run, identity, model):
            model.update(changed, updated=now())
            run.save()
            return {"model": _describe(run.key, identity, model)}


def _as_mapping(pairs: object) -> dict[str, str]:
    return {pair["key"]: pair["value"] for pair in read_pairs(pairs)}


def _as_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": text} for key, text in values.items()]


def _place(run_key: str, identity: str, position: Given) -> str:
    return f"{artifact_uri(position, run_key)}/models/{identity}"


def _describe(run_key: str, identity: str, model: Mapping[str, Any]) -> dict[str, Any]:
    info = {
        "model_id": identity,
        "experiment_id": model["experiment_id"],
        "name": model["name"],
        "creation_timestamp_ms": model["created"],
        "last_updated_timestamp_ms": model["updated"],
        "artifact_uri": _place(run_key, identity, {"experiment": model["experiment_id"]}),
        "status": model["status"],
        "model_type": model["model_type"],
        "source_run_id": model["source_run_id"],
        "tags": _as_pairs(model["tags"]),
    }
    return {"info": info, "data": {"params": _as_pairs(model["params"]), "metrics": []}}


def _as_found(identity: str, model: Mapping[str, Any]) -> Found:
    return {
        "attributes": {**model, "model_id": identity, "creation_timestamp": model["created"]},
        "params": model["params"],
        "tags": model["tags"],
    }
