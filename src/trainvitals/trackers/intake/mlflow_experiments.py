"""Experiments of MLflow, in one small file beside the runs. An experiment is a project.
Tested in tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal.encoding import dump_json
from trainvitals.redaction import redact_text
from trainvitals.trackers.intake.mlflow_documents import (
    DEFAULT_ID,
    Given,
    RequestRefused,
    Routes,
    invalid,
    missing,
    now,
    page,
    read_pairs,
    stages,
    texts,
)
from trainvitals.trackers.intake.mlflow_search import Found, parse_filter, sort_runs
from trainvitals.trackers.intake.runs import IntakeRuns

EXPERIMENTS_FILE = ".mlflow.json"
DEFAULT_NAME = "Default"


class MlflowExperiments:
    """Those of one place. Called from several threads."""

    def __init__(self, runs: IntakeRuns) -> None:
        self._runs = runs
        self._lock = threading.RLock()
        self.routes: Routes = {
            ("GET", "mlflow/experiments/get"): self._get,
            ("GET", "mlflow/experiments/get-by-name"): self._get_by_name,
            ("POST", "mlflow/experiments/create"): self._create,
            ("POST", "mlflow/experiments/search"): self._search,
            ("GET", "mlflow/experiments/search"): self._search,
            ("POST", "mlflow/experiments/update"): self._update,
            ("POST", "mlflow/experiments/delete"): self._delete,
            ("POST", "mlflow/experiments/restore"): self._restore,
            ("POST", "mlflow/experiments/set-experiment-tag"): self._set_tag,
        }

    def _read(self) -> dict[str, dict[str, Any]]:
        found = (runtime.read_json(self._runs.root / EXPERIMENTS_FILE) or {}).get("experiments")
        known = {DEFAULT_ID: _new_experiment(DEFAULT_ID, DEFAULT_NAME, 0)}
        for item in found if isinstance(found, list) else ():
            if isinstance(item, dict) and isinstance(item.get("experiment_id"), str):
                known[item["experiment_id"]] = item
        return known

    def _write(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        run_folder.create(self._runs.root, self._runs.settings.shared)
        data = dump_json({"experiments": list(known.values())})
        runtime.write_atomically(self._runs.root / EXPERIMENTS_FILE, data, self._runs.settings.file_mode)

    def find(self, identity: object) -> dict[str, Any]:
        found = self._read().get(str(identity))
        if found is None:
            raise missing(f"experiment {str(identity)[:100]}")
        return found

    def _get(self, given: Given) -> Any:
        return {"experiment": self.find(given.get("experiment_id"))}

    def _get_by_name(self, given: Given) -> Any:
        for experiment in self._read().values():
            if experiment["name"] == given.get("experiment_name"):
                return {"experiment": experiment}
        raise missing(f"experiment named '{str(given.get('experiment_name'))[:200]}'")

    def _create(self, given: Given) -> Any:
        name = given.get("name")
        if not isinstance(name, str) or not name.strip() or len(name) > 500:
            raise invalid("an experiment needs a name of at most 500 characters")
        with self._lock:
            known = self._read()
            if any(experiment["name"] == name for experiment in known.values()):
                raise RequestRefused("RESOURCE_ALREADY_EXISTS", f"there is an experiment '{name}'")
            identity = str(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))
            known[identity] = _new_experiment(identity, name, now()) | {"tags": read_pairs(given.get("tags"))}
            self._write(known)
        return {"experiment_id": identity}

    def _search(self, given: Given) -> Any:
        conditions = parse_filter(str(given.get("filter") or ""))
        wanted = stages(given.get("view_type"))
        found = [
            item
            for item in self._read().values()
            if item.get("lifecycle_stage", "active") in wanted
            and all(condition.holds(_describe_experiment(item)) for condition in conditions)
        ]
        found = sort_runs(found, texts(given.get("order_by")), _describe_experiment)
        return page("experiments", found, given)

    def _change(self, given: Given, change: Callable[[dict[str, Any]], None]) -> Any:
        with self._lock:
            known = self._read()
            experiment = known.get(str(given.get("experiment_id")))
            if experiment is None:
                raise missing(f"experiment {given.get('experiment_id')}")
            change(experiment)
            experiment["last_update_time"] = now()
            self._write(known)
        return {}

    def _update(self, given: Given) -> Any:
        return self._change(given, lambda item: item.update(name=str(given.get("new_name"))))

    def _delete(self, given: Given) -> Any:
        return self._change(given, lambda item: item.update(lifecycle_stage="deleted"))

    def _restore(self, given: Given) -> Any:
        return self._change(given, lambda item: item.update(lifecycle_stage="active"))

    def _set_tag(self, given: Given) -> Any:
        pair = {"key": str(given.get("key")), "value": redact_text(str(given.get("value", "")))}

        def change(item: dict[str, Any]) -> None:
            item["tags"] = [tag for tag in item.get("tags", []) if tag["key"] != pair["key"]] + [pair]

        return self._change(given, change)


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
