"""What both ways in from MLflow share: importer and server.
Tested in tests/trackers/test_mlflow_store.py and tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

from collections.abc import Mapping

from trainvitals.journal.documents.run import RUNNING

STATUSES: Mapping[object, str] = {
    "RUNNING": RUNNING,
    "SCHEDULED": RUNNING,
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
}
"""Ours, by theirs."""
NOTES, NAME, COMMAND = "mlflow.note.content", "mlflow.runName", "mlflow.source.name"
"""Tags with which a run is described."""


def list_tags(tags: Mapping[str, str]) -> tuple[str, ...]:
    """A run's own tags, as ours: MLflow's clients set some of theirs."""
    return tuple(sorted(f"{key}={value}" for key, value in tags.items() if not key.startswith("mlflow.")))
