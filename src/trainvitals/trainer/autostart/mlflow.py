"""`import mlflow` below `trainvitals run`. Tested in tests/trainer/test_capture.py."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals.trackers.intake.keys import is_program_address, make_mlflow_env
from trainvitals.trackers.mlflow_conventions import find_local_store
from trainvitals.trainer.autostart import capture

CONFIGURED = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "DATABRICKS_HOST",
    "DATABRICKS_RUNTIME_VERSION",
)
LOCAL_STORES = ("mlruns", "mlflow.db")
"""What the client makes in the current folder by default: who has one goes on with it."""


def autostart() -> None:
    """MLflow is there: point it here, unless it is set up. A `set_tracking_uri()` of the program counts more."""
    if not capture.is_wanted():
        return
    made = capture.keep_pointed("mlflow")
    if not made and not is_configured(os.environ):
        made = capture.point_here("mlflow", make_mlflow_env)
    mlflow = sys.modules["mlflow"]
    if made:
        _give_way(mlflow, made)
    _watch_runs(mlflow.MlflowClient)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether there is a server for the client, or runs of it in this folder."""
    return any(environ.get(name) for name in CONFIGURED) or any(Path(name).exists() for name in LOCAL_STORES)


def _give_way(mlflow: Any, made: Mapping[str, str]) -> None:
    """A server that the program names must not get our token."""
    set_tracking_uri = mlflow.set_tracking_uri

    @functools.wraps(set_tracking_uri)
    def give_way(*args: Any, **kwargs: Any) -> Any:
        if made["MLFLOW_TRACKING_URI"] in (*args, *kwargs.values()):  # as before, or again
            os.environ.update({name: value for name, value in made.items() if not os.environ.get(name)})
        else:
            capture.withdraw(made)
        return set_tracking_uri(*args, **kwargs)

    mlflow.set_tracking_uri = give_way


def _watch_runs(client: Any) -> None:
    """Every new run is made by this method, whoever asks for it."""
    create_run = client.create_run

    @functools.wraps(create_run)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = create_run(self, *args, **kwargs)
        capture.guard(lambda: _note_run(self.tracking_uri, run))
        return run

    client.create_run = watched


def _note_run(store: str, run: Any) -> None:
    """A run has begun, here or elsewhere."""
    if not is_program_address(store):
        path = find_local_store(store)
        capture.copy_from("mlflow", str(path) if path is not None and path.exists() else None, run.info.run_id)
