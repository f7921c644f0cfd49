"""Artifacts of MLflow's clients: plain files below `artifacts/` of the run folder.
Tested in tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainvitals.trackers.intake.answers import IntakeAnswer
from trainvitals.trackers.intake.mlflow_documents import ARTIFACTS, TOOL, Given, Routes, artifact_uri, missing
from trainvitals.trackers.intake.mlflow_runs import hold_run
from trainvitals.trackers.intake.runs import IntakeRuns
from trainvitals.trackers.intake.uploads import BadName, find_below, list_files, make_place


class MlflowArtifacts:
    """Those of the runs of one place. Called from several threads."""

    def __init__(self, runs: IntakeRuns) -> None:
        self._runs = runs
        self.routes: Routes = {
            ("GET", "mlflow/artifacts/list"): self._list_of_run,
            ("GET", "mlflow-artifacts/artifacts"): self._list_proxied,
        }

    def find_place(self, name: str) -> Path:
        """Where an uploaded artifact goes. Raises BadName or OSError."""
        folder, rest = self._split(name)
        return make_place(folder, ARTIFACTS, rest)

    def find(self, name: str) -> Path | None:
        """An artifact that is to be downloaded."""
        try:
            folder, rest = self._split(name)
        except BadName:
            return None
        path = find_below(folder, ARTIFACTS, rest)
        return path if path is not None and path.is_file() else None

    def delete(self, name: str) -> IntakeAnswer:
        path = self.find(name)
        if path is None:
            return missing("such artifact").answer
        path.unlink(missing_ok=True)
        return IntakeAnswer(200)

    def _split(self, name: str) -> tuple[Path, str]:
        """`EXPERIMENT/RUN/artifacts/PATH`, as in the address that a run was given."""
        parts = name.split("/", 3)
        with self._runs.hold(TOOL, parts[1] if len(parts) == 4 and parts[2] == ARTIFACTS else "") as run:
            if run is None:
                raise BadName("there is no such run")
            return run.folder, parts[3]

    def _list_of_run(self, given: Given) -> Any:
        path = str(given.get("path") or "").strip("/")
        with hold_run(self._runs, given) as run:
            root = artifact_uri(run.position, run.key)
        files = [
            {
                "path": f"{path}/{item['path']}" if path else item["path"],
                **{k: v for k, v in item.items() if k != "path"},
            }
            for item in list_folder(run.folder, path)
        ]
        return {"root_uri": root, "files": files}

    def _list_proxied(self, given: Given) -> Any:
        parts = str(given.get("path") or "").strip("/").split("/", 3)
        with self._runs.hold(TOOL, parts[1] if len(parts) >= 3 and parts[2] == ARTIFACTS else "") as run:
            return {"files": list_folder(run.folder, parts[3] if len(parts) > 3 else "") if run is not None else []}


def list_folder(folder: Path, path: str) -> list[dict[str, Any]]:
    """What is in a folder of the artifacts of a run, as MLflow lists it."""
    place = find_below(folder, ARTIFACTS, path)
    return [
        {"path": item.name, "is_dir": is_folder, **({} if is_folder else {"file_size": size})}
        for item, is_folder, size in (list_files(place) if place is not None else ())
    ]
