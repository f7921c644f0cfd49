"""What every way in from MLflow and out to it shares: the states of runs, its own tags, its local stores.
Tested in tests/trackers/test_mlflow_store.py, tests/trackers/intake/test_mlflow.py, tests/exporters/test_mlflow.py."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from trainvitals.journal.documents.run import RUNNING

STATUSES: Mapping[str, str] = {
    "RUNNING": RUNNING,
    "SCHEDULED": RUNNING,
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
}
"""Ours, by theirs."""
ENDS: Mapping[str, str] = {"finished": "FINISHED", "failed": "FAILED", "crashed": "FAILED", "killed": "KILLED"}
"""Theirs, by how a run of ours ended."""
NOTES, NAME, COMMAND = "mlflow.note.content", "mlflow.runName", "mlflow.source.name"
"""Tags with which a run is described."""
SYSTEM = "system/"
"""What the names of MLflow's own measurements of the machine begin with."""


def list_tags(tags: Mapping[str, str]) -> tuple[str, ...]:
    """A run's own tags, as ours: MLflow's clients set some of theirs."""
    return tuple(sorted(f"{key}={value}" for key, value in tags.items() if not key.startswith("mlflow.")))


def find_local_store(address: str) -> Path | None:
    """The folder or database that an address of MLflow means; None if it is not one of this machine."""
    scheme, colon, rest = address.partition(":")
    if scheme == "sqlite":
        return Path(rest.removeprefix("///"))
    if scheme == "file":
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path))
    return None if colon and "//" in rest else Path(address)
