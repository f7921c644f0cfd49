"""The REST protocol of MLflow's client: experiments, runs, metrics, parameters, tags, models and artifacts.

Written against clients 2.x and 3.x. The model registry and traces are not offered, which is answered in MLflow's own
form.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainvitals.errors import JournalError
from trainvitals.plain_json import parse_json
from trainvitals.trackers.intake.answers import IntakeAnswer, OnceReporter, refuse_trouble
from trainvitals.trackers.intake.mlflow_artifacts import MlflowArtifacts
from trainvitals.trackers.intake.mlflow_documents import RequestRefused, Routes, invalid
from trainvitals.trackers.intake.mlflow_experiments import MlflowExperiments
from trainvitals.trackers.intake.mlflow_models import MlflowModels, split_route
from trainvitals.trackers.intake.mlflow_runs import MlflowRuns
from trainvitals.trackers.intake.runs import IntakeRuns

_OPTIONAL = frozenset({"mlflow/server-info"})
"""What clients of 3.x ask and do without."""


class Mlflow:
    """Answers requests of clients. Called from several threads."""

    def __init__(self, runs: IntakeRuns, report_once: OnceReporter) -> None:
        self._report_once = report_once
        self.artifacts = MlflowArtifacts(runs)
        experiments = MlflowExperiments(runs)
        self._mlflow_runs = MlflowRuns(runs, experiments)
        models = MlflowModels(runs, self._mlflow_runs)
        self._routes: Routes = {
            **experiments.routes,
            **self._mlflow_runs.routes,
            **models.routes,
            **self.artifacts.routes,
        }

    def find_folder(self, run_id: str) -> Path | None:
        """Of the run whose page a client names."""
        return self._mlflow_runs.find_folder(run_id)

    def find_project(self, experiment_id: str) -> str | None:
        """Of the experiment whose page a client names."""
        return self._mlflow_runs.find_project(experiment_id)

    def answer(self, method: str, path: str, query: Sequence[tuple[str, str]], body: bytes) -> IntakeAnswer:
        """`path` is what follows `/api/`."""
        route, named = split_route(path.partition("/")[2])
        handler = self._routes.get((method, route))
        if handler is None:
            if route not in _OPTIONAL:
                self._report_once(f"MLflow's {method} /api/{path[:100]} is not supported: answered with an error")
            text = f"trainvitals does not support {method} /api/{path[:100]}"
            return IntakeAnswer(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": text})
        try:
            parsed = parse_json(body) if body else {}
        except ValueError as error:
            return invalid(f"the body is not JSON: {error}").answer
        if not isinstance(parsed, dict):
            return invalid("the body is not a JSON object").answer
        try:
            return IntakeAnswer(200, handler({**dict(query), **parsed, **named}))
        except RequestRefused as refused:
            return refused.answer
        except (TypeError, ValueError) as error:  # a bad filter, or a bad name of a file, among them
            return invalid(str(error)[:500]).answer
        except (JournalError, OSError) as error:
            return refuse_trouble(error)
