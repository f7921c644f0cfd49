"""Ray Train (v2): one run per training, with its workers as ranks.

    trainer = TorchTrainer(train_loop, run_config=ray.train.RunConfig(callbacks=[trainvitals.RayTrainCallback()]))

What the workers pass to `ray.train.report` is logged by rank; failures, restarts, resizes and checkpoints are events.
The workers' processes and GPUs are measured on their nodes, by the agent that each of them starts there.

Tested in tests/integrations/test_ray.py.
"""

from __future__ import annotations

from typing import Any

import ray

# `ray.train.UserCallback` has no hook for the beginning, the end and the workers. Ray calls these as well, from the
# same list (`DataParallelTrainer._create_default_callbacks`).
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerCallback,
    WorkerGroupCallback,
)

from trainvitals.analysis.wording import count_of
from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.integrations.ray.supervision import (
    SupervisedRun,
    join_automatically,
    leave_automatically,
    settle_options,
)
from trainvitals.trainer import ray_job

CONTROLLER = "controller"
"""The role of Ray Train's controller."""


class RayTrainCallback(ControllerCallback, WorkerGroupCallback, ReportCallback, WorkerCallback):  # type: ignore[misc]
    """Logs a training of Ray Train to a run of its own, begun with `options` (`project=`, `name=`, `dir=`, any
    setting). Ray copies it to the controller and to every worker."""

    def __init__(self, **options: Any) -> None:
        self._options = settle_options(options)
        self.attachment = Attachment({}, False)
        self._supervised: SupervisedRun | None = None
        self._launch = ""
        self._workers = 0
        self._reports = 0
        self._failed: frozenset[int] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "launch": self._launch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._options, self._launch = state["options"], state["launch"]

    # -- in the controller

    @guarded
    def after_controller_start(self, train_run_context: Any) -> None:
        run_config = train_run_context.run_config
        scaling = train_run_context.scaling_config
        self._launch = ray_job.train_launch(ray, run_config.name)
        config = dict(train_run_context.train_loop_config or {})
        config["ray_train"] = {
            "name": run_config.name,
            "num_workers": scaling.num_workers,
            "use_gpu": scaling.use_gpu,
            "resources_per_worker": scaling.resources_per_worker,
            "max_failures": run_config.failure_config.max_failures,
        }
        self._supervised = SupervisedRun(self._launch, CONTROLLER, self._options, run_config.name, config)
        self.attachment.run = self._supervised.run

    @guarded
    def after_worker_group_start(self, worker_group: Any) -> None:
        workers = worker_group.get_workers()
        before, self._workers, self._failed = self._workers, len(workers), frozenset()
        if self._supervised is None:
            return
        self._supervised.begin_group()
        nodes = {worker.metadata.node_id for worker in workers}
        where = f"{count_of(len(workers), 'worker')} on {count_of(len(nodes), 'node')}"
        if not before:
            event, message = "workers_started", f"{where} started"
        elif before == len(workers):
            event, message = "workers_restarted", f"{where} restarted"
        else:
            event, message = "workers_resized", f"{where} started; {before} before"
        self._supervised.run.event(event, message, workers=[_describe(worker) for worker in workers])

    @guarded
    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        if self._supervised is not None:
            self._supervised.end_group()

    @guarded
    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        if self._supervised is None:
            return
        for rank, values in enumerate(metrics):
            if values:
                step = None if "step" in values else self._reports
                self._supervised.log(values, step, rank, len(metrics))
        self._reports += 1
        checkpoint = training_report.checkpoint
        if checkpoint is not None:
            self._supervised.run.event("checkpoint", str(checkpoint.path), path=str(checkpoint.path))

    @guarded
    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        for rank, error in worker_group_status.errors.items():
            if self._supervised is not None and rank not in self._failed:
                self._failed |= {rank}
                self._supervised.note_failure(rank, ray_job.unwrap(error) or error)

    @guarded
    def before_controller_execute_failure_decision(self, failure_decision: Any) -> None:
        if self._supervised is not None and failure_decision.value == "RETRY":
            self._supervised.run.event("workers_retried", "Ray Train starts the workers again", severity="warning")

    @guarded
    def after_controller_finish(self, result: Any) -> None:
        if self._supervised is None:
            return
        if result.error is None:
            self._supervised.finish()
        else:
            # The failures of workers are written already; an error of the controller itself is not.
            has_failures = bool(getattr(result.error, "worker_failures", None))
            self._supervised.finish("failed", None if has_failures else result.error)

    @guarded
    def before_controller_abort(self) -> None:
        if self._supervised is not None:
            self._supervised.interrupt()

    # -- in every worker

    @guarded
    def after_init_train_context(self) -> None:
        join_automatically(self._options)

    @guarded
    def before_worker_shutdown(self) -> None:
        leave_automatically()


def _describe(worker: Any) -> dict[str, Any]:
    about, context = worker.metadata, worker.distributed_context
    return {
        "rank": context.world_rank,
        "host": about.hostname,
        "node_id": about.node_id,
        "pid": about.pid,
        "gpus": [str(gpu) for gpu in about.gpu_ids],
    }
