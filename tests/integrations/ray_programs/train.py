"""Two trainings of Ray Train, one after the other. In `restarted` rank 1 is killed once, and the workers log for
themselves; in `failing` they only report, and rank 1 raises."""

import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import trainvitals


def wait_for_reports(config: dict) -> None:
    """Until the controller has logged what both workers reported: of a worker that fails before, Ray drops it."""
    while len(list(Path(config["folder"]).glob("*/training_metrics_*pid*"))) < 2:
        time.sleep(0.05)


def restarted(config: dict) -> None:
    context = ray.train.get_context()
    rank, marker = context.get_world_rank(), Path(config["marker"])
    trainvitals.init(config={"from": "the loop"})
    for step in range(3):
        trainvitals.log({"loss": 1.0 / (1 + step + rank)}, step=10 * step)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 and step == 2 else None
            ray.train.report({"accuracy": float(step + rank)}, checkpoint=checkpoint)
        if rank == 1 and step == 1 and not marker.exists():
            wait_for_reports(config)
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def failing(config: dict) -> None:
    rank = ray.train.get_context().get_world_rank()
    ray.train.report({"accuracy": 0.5 + rank, "nested": {"count": 3}})
    if rank == 1:
        wait_for_reports(config)
        raise ValueError("the second worker does not like its data")
    time.sleep(600)  # waits for the other, as in a collective operation


def fit(loop, name: str, runs: Path, **config: object) -> None:
    trainer = DataParallelTrainer(
        loop,
        train_loop_config={"lr": 0.1, "folder": str(runs / name), **config},
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=True),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(runs.parent / "storage"),
            failure_config=ray.train.FailureConfig(max_failures=1 if loop is restarted else 0),
            callbacks=[trainvitals.RayTrainCallback(project=name, dir=runs, tags=["ray"])],
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    runs = Path(sys.argv[2])
    fit(restarted, "restarted", runs, marker=str(runs.parent / "killed"))
    with contextlib.suppress(ray.train.v2.api.exceptions.WorkerGroupError):
        fit(failing, "failing", runs)
