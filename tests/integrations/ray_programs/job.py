"""A driver that logs, and an actor of it that does, too; both end as they should. The driver's registration tells where
the workers of its node are."""

import os
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import trainvitals
from trainvitals.journal import registrations


@ray.remote(num_cpus=0)
class Judge:
    def score(self) -> str:
        run = trainvitals.init()
        run.log({"score": 0.5})
        return str(run.folder)


@ray.remote(num_cpus=0)
def find_parent() -> int:
    return os.getppid()


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    run = trainvitals.init(project="job", dir=sys.argv[2])
    run.log({"loss": 1.0})
    context = ray.get_runtime_context()
    here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=False)
    raylet = ray.get(find_parent.options(scheduling_strategy=here).remote())
    (own,) = (item for _, item in registrations.read_all(run.id) if item.pid == os.getpid())
    assert (own.raylet, own.ray_job) == (raylet, context.get_job_id()), own
    judge = Judge.remote()
    assert ray.get(judge.score.remote()) == str(run.folder)
