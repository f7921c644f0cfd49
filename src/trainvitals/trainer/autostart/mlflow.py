"""`import mlflow` below `trainvitals run`. Tested in tests/trainer/test_capture.py."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainvitals.trainer.autostart import capture

CONFIGURED = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "DATABRICKS_HOST",
    "DATABRICKS_RUNTIME_VERSION",
)
LOCAL_STORES = ("mlruns", "mlflow.db")
"""What the client makes in the current folder by default: who has one goes on with it."""


def autostart() -> None:
    """MLflow is there: point it here, unless it is set up. A `set_tracking_uri()` of the program counts more."""
    if is_configured(os.environ):
        return
    from trainvitals.trackers.intake.keys import make_mlflow_env

    capture.point_here("mlflow", make_mlflow_env)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether there is a server for the client, or runs of it in this folder."""
    return any(environ.get(name) for name in CONFIGURED) or any(Path(name).exists() for name in LOCAL_STORES)
