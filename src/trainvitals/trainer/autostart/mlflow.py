"""`import mlflow` below `trainvitals run`. Tested in tests/trainer/test_capture.py."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals.trackers.intake.keys import is_program_address, make_mlflow_env
from trainvitals.trackers.mlflow_conventions import SYSTEM, find_local_store, list_tags
from trainvitals.trackers.program_files.sent import SentRow
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
    _watch_sending()


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
    if is_program_address(store):
        return
    path = find_local_store(store)
    if path is None:
        tags = {str(key): str(value) for key, value in run.data.tags.items()}
        capture.copy_sent("mlflow", run.info.run_id)
        _keep(run.info.run_id, tags=tags)
    else:
        capture.copy_from("mlflow", str(path) if path.exists() else None, run.info.run_id)


# -- what goes to a server of theirs


def _watch_sending() -> None:
    """Keep what the client has sent: every way to log ends in these methods, those of other threads too."""
    from mlflow.store.tracking.rest_store import RestStore

    for name, keep in (
        ("log_metric", lambda run, metric: _keep(run, [metric])),
        ("log_param", lambda run, param: _keep(run, params=[param])),
        ("set_tag", lambda run, tag: _keep(run, tags={tag.key: tag.value})),
        ("log_batch", _keep_batch),
    ):
        original = getattr(RestStore, name, None)
        if original is not None:
            setattr(RestStore, name, _keeping(original, keep))


def _keeping(original: Any, keep: Callable[..., None]) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def send(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)  # what it refuses is not kept

        def work() -> None:
            store, run, *given = signature.bind(*args, **kwargs).arguments.values()
            if not is_program_address(store.get_host_creds().host):
                keep(str(run), *given)

        capture.guard(work)
        return answer

    return send


def _keep_batch(run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()) -> None:
    _keep(run, metrics, params, {tag.key: tag.value for tag in tags})


_tags: dict[str, dict[str, str]] = {}
"""By run, those that were set by this process."""


def _keep(
    run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Mapping[str, str] | None = None
) -> None:
    rows: dict[tuple[int, int], dict[str, float]] = {}
    written = []
    for metric in metrics:
        if metric.key.startswith(SYSTEM):
            continue  # the agent measures hardware itself
        row = rows.setdefault((metric.timestamp, metric.step), {})
        if metric.key in row:  # twice in a millisecond
            written.append(SentRow(metric.timestamp / 1000, metric.step, dict(row)))
            row.clear()
        row[metric.key] = float(metric.value)
    written += [SentRow(moment / 1000, step, row) for (moment, step), row in rows.items()]
    known = _tags.setdefault(run, {})
    known.update(tags or {})
    own = list_tags(known)
    if params or (tags and own):
        config = {param.key: param.value for param in params}
        written.append(SentRow(time.time(), config=config, tags=own))
    capture.keep_sent("mlflow", run, written)
