"""A driver that does not log, with two actors that do, and the cluster watched. One actor is killed and restarted by
Ray. Then it waits to be killed itself."""

import os
import signal
import sys
import time
from pathlib import Path

import ray

import trainvitals


@ray.remote(num_cpus=0, num_gpus=1, max_restarts=1, max_task_retries=-1)
class RolloutWorker:
    def __init__(self) -> None:
        self.run = trainvitals.init()
        self.run.log({"reward": 0.5})

    def describe(self) -> tuple[str, str, int]:
        return str(self.run.folder), self.run.role, self.run.rank

    def die_once(self, marker: str) -> None:
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    runs = Path(sys.argv[2])
    watch = trainvitals.ray.monitor_cluster(project="cluster", dir=runs, interval=0.2)
    assert trainvitals.ray.monitor_cluster() == watch
    workers = [RolloutWorker.remote() for _ in range(2)]
    before = ray.get([worker.describe.remote() for worker in workers])
    # What the nodes have given away is known to the cluster a moment later.
    while (used := trainvitals.monitor_ray_cluster())["GPU"]["used_share"] < 0.5:
        time.sleep(0.1)
    ray.get(workers[0].die_once.remote(str(runs.parent / "died")))
    after = ray.get([worker.describe.remote() for worker in workers])
    print(f"answer: {[before, after, used]}", flush=True)
    time.sleep(3600)
