"""A training of Ray Train that begins with one worker, and goes on with two once the cluster has room for them."""

import sys
import time
from pathlib import Path

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import trainvitals

STEPS = 3


def loop(config: dict) -> None:
    world_size = ray.train.get_context().get_world_size()
    trainvitals.init()
    step = 0
    while step < STEPS or world_size == 1:  # one alone goes on until Ray Train ends it
        trainvitals.log({"loss": 1.0 / (1 + step)}, step=step)
        ray.train.report({"workers": world_size})
        time.sleep(0.2)
        step += 1


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    runs = Path(sys.argv[2])
    trainer = DataParallelTrainer(
        loop,
        scaling_config=ray.train.ScalingConfig(
            num_workers=(1, 2),
            resources_per_worker={"CPU": 0.1, "elastic": 1},
            elastic_resize_monitor_interval_s=1.0,
        ),
        run_config=ray.train.RunConfig(
            name="resized",
            storage_path=str(runs.parent / "storage"),
            callbacks=[trainvitals.RayTrainCallback(project="resized", dir=runs)],
        ),
    )
    trainer.fit()
