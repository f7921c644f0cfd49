"""A driver as verl's: the training is in an actor, with verl's own `Tracking`, and fails while responses are made; or,
without a marker, as that of a trainer that never calls `finish`, and fails between two phases."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import ray


def train() -> Any:
    from verl.utils import debug
    from verl.utils.tracking import Tracking

    tracking = Tracking("math", "grpo", ["trainvitals"], {"trainer": {"total_epochs": 1}})
    for step in range(1, 4):
        timing: dict[str, float] = {}
        with debug.marked_timer("step", timing), debug.marked_timer("gen", timing):
            pass
        tracking.log({"critic/score/mean": step / 4, "response_length/mean": 100.0}, step=step)
    return tracking


@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self) -> None:
        tracking = train()
        raise ValueError(f"{tracking} is not finished")


@ray.remote(num_cpus=0)
class TaskRunnerV1:
    def run(self) -> None:
        from verl.utils import debug

        tracking = train()
        succeeded = False
        try:
            while not Path(os.environ["NODES_ARE_MEASURED"]).exists():  # the test makes it
                time.sleep(0.1)
            with debug.marked_timer("gen", {}):
                raise ValueError("the rollout server is gone")
        finally:
            tracking.finish(exit_code=0 if succeeded else 1)


if __name__ == "__main__":
    address, runs, site, *marker = sys.argv[1:]
    paths = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": paths, "TRAINVITALS_DIR": runs, "NODES_ARE_MEASURED": "".join(marker)}
    ray.init(address=address, log_to_driver=False, runtime_env={"env_vars": variables})
    runner = TaskRunnerV1 if marker else TaskRunner
    try:
        ray.get(runner.remote().run.remote())
    except ValueError:  # verl's driver ends with it; here it would fill the log of the tests
        sys.exit(0 if marker else 1)
