"""What MLflow's clients send and get, as plain values: errors, pages, pairs, runs.
Tested in tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import number
from trainvitals.redaction import redact
from trainvitals.trackers.intake.answers import IntakeAnswer
from trainvitals.trackers.intake.mlflow_search import Found
from trainvitals.trackers.mlflow_conventions import ENDS, STATUSES

TOOL = "mlflow"
DEFAULT_ID = "0"
ARTIFACTS = "artifacts"
PAGE = 1000
LONGEST_TAG = 8000

Given = Mapping[str, Any]
Handler = Callable[[Given], Any]
Routes = Mapping[tuple[str, str], Handler]
"""By method and what follows `/api/2.0/`; `{model_id}` stands for a part of the path."""


class RequestRefused(Exception):
    """An error in MLflow's form."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.answer = IntakeAnswer(status, {"error_code": code, "message": message})


def missing(what: str) -> RequestRefused:
    return RequestRefused("RESOURCE_DOES_NOT_EXIST", f"there is no {what}", 404)


def invalid(text: str) -> RequestRefused:
    return RequestRefused("INVALID_PARAMETER_VALUE", text)


def now() -> int:
    return time.time_ns() // 1_000_000


def artifact_uri(position: Given, key: str) -> str:
    return f"mlflow-artifacts:/{position.get('experiment', DEFAULT_ID)}/{key}/{ARTIFACTS}"


def describe_run(key: str, file: RunFile, position: Given, latest: Mapping[str, Any]) -> dict[str, Any]:
    status = position.get("status")
    if file.is_over and STATUSES.get(str(status), "running") == "running":
        status = ENDS.get(file.status)
    info = {
        "run_id": key,
        "run_uuid": key,
        "run_name": position.get("name", ""),
        "experiment_id": position.get("experiment", DEFAULT_ID),
        "user_id": position.get("user", ""),
        "status": status or "RUNNING",
        "start_time": position.get("started"),
        "artifact_uri": artifact_uri(position, key),
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
        "outputs": {"model_outputs": position.get("outputs") or []},
    }


def describe_found(run: Mapping[str, Any]) -> Found:
    data = run["data"]
    inputs = objects(run["inputs"]["dataset_inputs"])
    datasets = [item for given in inputs if isinstance(item := given.get("dataset"), dict)]
    pairs = [item for given in inputs for item in objects(given.get("tags"))]
    return {
        "datasets": {
            "name": [item.get("name") for item in datasets],
            "digest": [item.get("digest") for item in datasets],
            "context": [item.get("value") for item in pairs if item.get("key") == "mlflow.data.context"],
        },
        "metrics": {item["key"]: number(item["value"]) for item in data["metrics"]},
        "params": {item["key"]: item["value"] for item in data["params"]},
        "tags": {item["key"]: item["value"] for item in data["tags"]},
        "attributes": {**run["info"], "created": run["info"].get("start_time")},
    }


def page(name: str, items: Sequence[Any], given: Given, most: int = PAGE) -> dict[str, Any]:
    """As many as were asked for, and where the rest begins."""
    token = str(given.get("page_token") or "0")
    start = int(token) if token.isdecimal() else 0
    asked = number(given.get("max_results")) or (float(str(given["max_results"])) if given.get("max_results") else 0)
    end = start + min(int(asked) or most, 50_000)
    made: dict[str, Any] = {name: list(items[start:end])}
    if end < len(items):
        made["next_page_token"] = str(end)
    return made


def stages(view: object) -> frozenset[str]:
    return {"DELETED_ONLY": frozenset({"deleted"}), "ALL": frozenset({"active", "deleted"})}.get(
        str(view), frozenset({"active"})
    )


def objects(value: object) -> list[Given]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def read_pairs(value: object) -> list[dict[str, str]]:
    """Tags, without secrets."""
    found = {str(item.get("key")): str(item.get("value", ""))[:LONGEST_TAG] for item in objects(list(value or ()))}  # type: ignore[call-overload]
    return [{"key": key, "value": text} for key, text in redact(found).items()]
