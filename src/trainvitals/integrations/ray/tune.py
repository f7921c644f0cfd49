"""Ray Tune: one run per trial, all in one project.

    tuner = tune.Tuner(trainable, run_config=tune.RunConfig(callbacks=[trainvitals.RayTuneCallback()]))

A run has the trial's name and configuration, and the tag of its experiment. The results are logged with their
`training_iteration` as the step. A restored experiment continues the runs of its trials.

Tested in tests/integrations/test_ray.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.tune import Callback

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.integrations.ray.supervision import SupervisedRun, join_automatically, settle_options
from trainvitals.trainer import ray_job
from trainvitals.trainer.failure_text import explain_exception

TUNER = "tuner"
"""The role of the process that runs the experiment."""
BOOKKEEPING = frozenset(
    {"config", "date", "done", "experiment_tag", "hostname", "node_ip", "pid", "should_checkpoint", "timestamp"}
    | {"training_iteration", "trial_id", "trial_name", "checkpoint_dir_name"}
)
"""What Tune adds to every result and is not a metric, or is the step."""


class RayTuneCallback(Callback):  # type: ignore[misc]
    """Logs every trial to a run of its own, begun with `options` (`project=`, `dir=`, any setting); the project is the
    name of the experiment unless another is set."""

    def __init__(self, **options: Any) -> None:
        self._options = settle_options(options)
        self._has_project = "project" in options
        self.attachment = Attachment({}, False)
        self._trials: dict[str, SupervisedRun] = {}
        self._folders: dict[str, str] = {}
        """By trial, also of those that are over: a restored experiment may continue them."""

    def __getstate__(self) -> dict[str, Any]:
        """Ray keeps a copy, from which an experiment is restored; `set_state` gives it the runs."""
        return {**vars(self), "_trials": {}}

    # -- trials

    @guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.trial_id not in self._trials:  # else it was paused, or is tried again
            self._begin(trial)
        launch = ray_job.trial_launch(ray, trial.trial_id)
        actor = trial.temporary_state.ray_actor
        if actor is not None:
            # In the trial's own process, before its first step.
            actor.__ray_call__.remote(partial(_join, options=self._options, launch=launch))

    def _begin(self, trial: Any) -> None:
        experiment = str(trial.experiment_dir_name)
        project = {} if self._has_project else {"project": experiment}
        launch, before = ray_job.trial_launch(ray, trial.trial_id), self._folders.get(trial.trial_id)
        options = {**self._options, **project, "tags": (*(self._options.get("tags") or ()), experiment)}
        if before is not None and Path(before).is_dir():
            options["resume"] = ray_job.meet(launch, Path(before), lambda run: True)
        self._trials[trial.trial_id] = SupervisedRun(launch, TUNER, options, str(trial), trial.config)
        self._folders[trial.trial_id] = str(self._trials[trial.trial_id].folder)

    @guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        run = self._trials.get(trial.trial_id)
        if run is not None:
            values = {name: value for name, value in result.items() if name not in BOOKKEEPING and _is_kept(value)}
            run.log(values, result.get("training_iteration"))
            if result.get("done"):  # that of a function which returns is noted later
                run.run.event("stopped", "stopped by Tune: stopping criterion or scheduler")

    @guarded
    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        run = self._trials.get(trial.trial_id)
        if run is not None:
            run.run.event("checkpoint", str(checkpoint.path), path=str(checkpoint.path))

    @guarded
    def on_trial_restore(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        run = self._trials.get(trial.trial_id)
        if run is not None:
            run.run.event("resume", "restored from its checkpoint")

    @guarded
    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        run = self._trials.get(trial.trial_id)
        if run is not None:
            cause = explain_exception(_find_error(trial))
            run.run.event("trial_retried", f"the trial starts again after {cause}", severity="warning")

    # -- their end

    @guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        run = self._trials.pop(trial.trial_id, None)
        if run is not None:
            run.finish()

    @guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        run = self._trials.pop(trial.trial_id, None)
        if run is not None:
            run.note_failure(0, _find_error(trial))
            run.finish("failed")

    @guarded
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        for run in self._trials.values():  # interrupted, or its time was over
            run.interrupt()
        self._trials.clear()

    # -- restoring

    def get_state(self) -> dict[str, Any]:
        return {"folders": dict(self._folders)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._folders = dict(state.get("folders", {}))


def _join(trainable: Any, options: Mapping[str, Any], launch: str) -> None:
    try:
        join_automatically(options, launch)
    except Exception as error:  # noqa: BLE001 - the boundary around the user's trial
        from trainvitals.stderr import print_line

        print_line(f"the process of this trial is not monitored: {error!r:.300}")


def _is_kept(value: object) -> bool:
    return value is not None and not isinstance(value, (str, bytes, list, tuple))


def _find_error(trial: Any) -> BaseException:
    """The newest exception of the trial, from its local folder: Ray copies it to the trial's storage only later."""
    path = trial.pickled_error_file
    if path is not None and Path(path).is_file():
        with open(path, "rb") as file:
            error = cloudpickle.load(file)
        inner = getattr(error, "cause", None)
        found = ray_job.unwrap(inner if isinstance(inner, BaseException) else error)
        if found is not None:
            return found
    return RuntimeError("the trial failed; Ray has no exception for it")
