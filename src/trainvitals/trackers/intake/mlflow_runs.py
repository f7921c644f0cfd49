"""Runs of MLflow's clients: begun, logged to, ended, found and read back.
Tested in tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals.journal.encoding import dump_json, number, parse_time, spell
from trainvitals.plain_json import parse_json
from trainvitals.redaction import redact, redact_text
from trainvitals.trackers.intake.mlflow_documents import (
    DEFAULT_ID,
    TOOL,
    Given,
    RequestRefused,
    Routes,
    describe_found,
    describe_run,
    invalid,
    missing,
    now,
    objects,
    page,
    read_pairs,
    stages,
    texts,
)
from trainvitals.trackers.intake.mlflow_experiments import MlflowExperiments
from trainvitals.trackers.intake.mlflow_points import append_points, read_latest, read_point
from trainvitals.trackers.intake.mlflow_search import SearchCondition, parse_filter, sort_runs
from trainvitals.trackers.intake.runs import IntakeRun, IntakeRuns
from trainvitals.trackers.mlflow_conventions import COMMAND, NAME, NOTES, STATUSES, list_tags
from trainvitals.trackers.run_writing import About

MOST_SUMMARIES = 5000
SAVE_SECONDS = 5.0
LONGEST_PARAMETER = 6000


@contextlib.contextmanager
def hold_run(runs: IntakeRuns, given: Given) -> Iterator[IntakeRun]:
    """The run that a request names, with its lock held. Raises RequestRefused."""
    identity = given.get("run_id") or given.get("run_uuid")
    with runs.hold(TOOL, identity if isinstance(identity, str) else "") as run:
        if run is None:
            raise missing(f"run {str(identity)[:100]}")
        yield run


class MlflowRuns:
    """Those of one place. Called from several threads."""

    def __init__(self, runs: IntakeRuns, experiments: MlflowExperiments) -> None:
        self._runs = runs
        self._experiments = experiments
        self.routes: Routes = {
            ("POST", "mlflow/runs/create"): self.create,
            ("GET", "mlflow/runs/get"): self._get,
            ("POST", "mlflow/runs/update"): self._update,
            ("POST", "mlflow/runs/delete"): self._delete,
            ("POST", "mlflow/runs/restore"): self._restore,
            ("POST", "mlflow/runs/search"): self._search,
            ("POST", "mlflow/runs/log-metric"): self._log_metric,
            ("POST", "mlflow/runs/log-parameter"): self._log_parameter,
            ("POST", "mlflow/runs/set-tag"): self._set_tag,
            ("POST", "mlflow/runs/delete-tag"): self._delete_tag,
            ("POST", "mlflow/runs/log-batch"): self._log_batch,
            ("POST", "mlflow/runs/log-inputs"): self._log_inputs,
            ("POST", "mlflow/runs/outputs"): self._log_outputs,
            ("POST", "mlflow/runs/log-model"): self._log_model,
            ("GET", "mlflow/metrics/get-history"): self._read_history,
        }

    def find_folder(self, run_id: str) -> Path | None:
        return self._runs.find_folder(TOOL, run_id)

    def find_project(self, experiment_id: str) -> str | None:
        try:
            return _project_of(self._experiments.find(experiment_id)) or self._runs.settings.project
        except RequestRefused:
            return None

    def create(self, given: Given) -> Any:
        experiment = self._experiments.find(given.get("experiment_id") or DEFAULT_ID)
        tags = {pair["key"]: pair["value"] for pair in read_pairs(given.get("tags"))}
        identity = uuid.uuid4().hex
        name = str(given.get("run_name") or tags.get(NAME) or "")
        started = number(given.get("start_time"))
        about = About(
            name=name,
            project=_project_of(experiment),
            started=started / 1000 if started else time.time(),
            tags=list_tags(tags),
            notes=tags.get(NOTES, ""),
            command=tags.get(COMMAND),
        )
        with self._runs.begin(TOOL, identity, about) as run:
            run.position |= {
                "experiment": experiment["experiment_id"],
                "name": redact_text(name) or run.folder.name,
                "user": str(given.get("user_id") or tags.get("mlflow.user") or ""),
                "started": int(started) if started else now(),
                "tags": {**tags, NAME: redact_text(name) or run.folder.name},
                "params": {},
            }
            run.save()
            return {"run": self._describe(run)}

    def _get(self, given: Given) -> Any:
        with hold_run(self._runs, given) as run:
            return {"run": self._describe(run)}

    def _update(self, given: Given) -> Any:
        with hold_run(self._runs, given) as run:
            if isinstance(name := given.get("run_name"), str) and name:
                run.position["name"] = redact_text(name)
                run.position.setdefault("tags", {})[NAME] = redact_text(name)
                run.describe(About(name=name))
            status = given.get("status")
            if status is not None and status not in STATUSES:
                raise invalid(f"'{status}' is not a status of a run")
            if status is not None:
                run.position["status"] = status
            ended = number(given.get("end_time"))
            if STATUSES.get(str(status), "running") != "running":
                run.position["ended"] = int(ended) if ended else now()
                run.position["metrics"] = dict(list(read_latest(run).items())[:MOST_SUMMARIES])
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

    def _delete(self, given: Given) -> Any:
        return self._set_stage(given, "deleted")

    def _restore(self, given: Given) -> Any:
        return self._set_stage(given, "active")

    def _set_stage(self, given: Given, stage: str) -> Any:
        with hold_run(self._runs, given) as run:
            run.position["stage"] = stage
            run.save()
        return {}

    def _describe(self, run: IntakeRun) -> dict[str, Any]:
        made = describe_run(run.key, run.file, run.position, read_latest(run))
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
            metrics=objects(given.get("metrics")),
            params=objects(given.get("params")),
            tags=objects(given.get("tags")),
        )

    def _log(
        self, given: Given, metrics: Sequence[Given] = (), params: Sequence[Given] = (), tags: Sequence[Given] = ()
    ) -> Any:
        points = [read_point(item) for item in metrics]
        with hold_run(self._runs, given) as run:
            if run.position.get("stage") == "deleted":
                raise invalid(f"run {run.key} is deleted")
            self._set_params(run, params)
            if tags:
                known = run.position.setdefault("tags", {})
                known |= {pair["key"]: pair["value"] for pair in read_pairs(tags)}
                run.describe(About(tags=list_tags(known), notes=known.get(NOTES, "")))
            append_points(run, points)
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
                raise invalid(f"parameter '{name}' of run {run.key} is '{known[name]}' and cannot be changed")
        known.update(given)
        run.describe(About(config=dict(known)))

    def _delete_tag(self, given: Given) -> Any:
        with hold_run(self._runs, given) as run:
            tags = run.position.get("tags", {})
            if tags.pop(str(given.get("key")), None) is None:
                raise missing(f"tag '{given.get('key')}'")
            run.describe(About(tags=list_tags(tags)))
            run.save()
        return {}

    def _log_inputs(self, given: Given) -> Any:
        return self._add_objects(given, "datasets", "inputs")

    def _log_outputs(self, given: Given) -> Any:
        """Models of 3.x that the run made, each with its step."""
        return self._add_objects(given, "models", "outputs")

    def _add_objects(self, given: Given, name: str, kept_as: str) -> Any:
        with hold_run(self._runs, given) as run:
            known = run.position.setdefault(kept_as, [])
            known += [item for item in objects(given.get(name)) if item not in known]
            run.save()
        return {}

    def _log_model(self, given: Given) -> Any:
        """A model of 2.x is files and this line."""
        with hold_run(self._runs, given) as run:
            tags = run.position.setdefault("tags", {})
            models = parse_json(tags.get("mlflow.log-model.history", "[]"))
            models.append(parse_json(str(given.get("model_json") or "{}")))
            tags["mlflow.log-model.history"] = dump_json(models).decode()
            run.save()
        return {}

    # -- reading back

    def _search(self, given: Given) -> Any:
        conditions = parse_filter(str(given.get("filter") or ""))
        wanted = set(map(str, given.get("experiment_ids") or ()))
        shown = stages(given.get("run_view_type"))
        found = [run for run in self._read_runs(wanted, shown) if _all_hold(conditions, run)]
        newest = sorted(found, key=lambda run: -int(run["info"].get("start_time") or 0))
        return page("runs", sort_runs(newest, texts(given.get("order_by")), describe_found), given)

    def _read_runs(self, experiments: set[str], shown: frozenset[str]) -> Iterable[dict[str, Any]]:
        live = {run.folder: run for run in self._runs.list_open()}
        for folder in self._runs.list_folders():
            run = live.get(folder)
            if run is not None and run.writer.origin.tool == TOOL:
                with run.lock:
                    made = self._describe(run)
            elif (known := self._runs.read(folder)) is not None and known[1].tool == TOOL:
                file, origin = known
                made = describe_run(origin.key, file, origin.position, origin.position.get("metrics") or {})
            else:
                continue
            if made["info"]["experiment_id"] in experiments and made["info"]["lifecycle_stage"] in shown:
                yield made

    def _read_history(self, given: Given) -> Any:
        from trainvitals.journal.reader import RunReader

        key = str(given.get("metric_key"))
        with hold_run(self._runs, given) as run:
            name = run.writer.name_of(key)
        points = []
        for row in RunReader(run.folder).rows("training"):
            value = number(row.get(name))
            if value is not None:
                moment = round((parse_time(row["timestamp"]) or 0.0) * 1000)
                points.append({"key": key, "value": spell(value), "timestamp": moment, "step": row.get("step", 0)})
        return page("metrics", points, given, most=25_000)


def _all_hold(conditions: Sequence[SearchCondition], run: Mapping[str, Any]) -> bool:
    return not conditions or all(condition.holds(describe_found(run)) for condition in conditions)


def _project_of(experiment: Mapping[str, Any]) -> str:
    """Empty for that of the settings."""
    return "" if experiment["experiment_id"] == DEFAULT_ID else str(experiment["name"])
