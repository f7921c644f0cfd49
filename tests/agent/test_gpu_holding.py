"""Which GPUs a run holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from trainvitals.agent.gpu_holding import GpuHolding
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.identity import Participant
from trainvitals.sources import Sample

TWO = {"nvidia": {"gpus": [{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}]}}
NOBODY = 2**22 + 1
"""No process has this number: as the host's are seen from within a container."""


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


def rank(pid: int, number: int = 0, visible: str | None = None, kind: str = "training") -> Registration:
    hidden = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return Registration(
        run_id="r", folder="/x", rank=number, pid=pid, pid_start=0.0, host="h", kind=kind, visible_devices=hidden
    )


def held(
    users: Mapping[str, Iterable[int]],
    *ranks: Registration,
    hardware: Mapping[str, Any] = TWO,
    known: object = None,
) -> list[str]:
    """The UUIDs of those of the two NVIDIA GPUs that the run holds."""
    holding = GpuHolding(lambda: users, known)
    holding.look(ranks, hardware, (), ())
    found = [uuid for uuid in ("GPU-a", "GPU-b") if holding.holds({"gpu_uuid": uuid, "vendor": "nvidia"})]
    assert list(holding.describe() or ()) == found
    return found


def test_a_run_holds_the_gpus_on_which_its_processes_are_and_no_other(child: int) -> None:
    stranger = os.getpid()
    users = {"nvidia:GPU-a": [child], "nvidia:GPU-b": [stranger]}
    assert held(users, rank(child)) == ["GPU-a"]
    assert held(users, rank(child, visible="0,1")) == ["GPU-a"]
    assert held({"nvidia:GPU-b": [stranger]}, rank(child)) == []


def test_a_process_that_a_rank_has_started_is_the_runs_too(child: int) -> None:
    assert held({"nvidia:GPU-b": [child]}, rank(os.getpid())) == ["GPU-b"]


def test_where_the_driver_tells_no_processes_those_count_that_were_set_aside_for_the_run(child: int) -> None:
    hidden = {"nvidia:GPU-a": [NOBODY], "nvidia:GPU-b": [NOBODY]}
    for users in ({}, hidden):
        assert held(users, rank(child, visible="1")) == ["GPU-b"]
        assert held(users, rank(child), rank(child, 1)) == ["GPU-a", "GPU-b"]  # a GPU for each rank
        assert held(users, rank(child)) == []  # both can be seen, and nobody knows which is used
        assert held(users, rank(child), rank(child, kind="command")) == []
    assert held({"nvidia:GPU-b": [os.getpid()]}, rank(child, visible="1")) == []


def test_what_an_earlier_agent_has_seen_is_known_to_the_next(child: int) -> None:
    assert held({}, rank(child), known=["GPU-b"]) == ["GPU-b"]
    assert held({}, known=["GPU-b"]) == ["GPU-b"]  # all its processes are gone


def test_a_simulated_gpu_is_the_runs_own() -> None:
    assert GpuHolding(dict).holds({"gpu_index": 0, "simulated": True, "vendor": "simulated"})


def test_of_another_vendors_gpus_it_is_known_if_there_is_no_choice_and_the_process_computes(child: int) -> None:
    labels = {"gpu_index": 0, "vendor": "amd"}
    gpu = Sample("gpu", labels, {"utilization_percent": 0.0}, 0.0)
    idle, computes = (Sample("process", {"rank": 0}, values, 0.0) for values in ({}, {"gpu_memory_mb": 900.0}))
    holding = GpuHolding(dict)
    holding.look([rank(child)], {}, [gpu], [idle])
    assert not holding.holds(labels)
    holding.look([rank(child)], {}, [gpu], [computes])
    assert holding.holds(labels)
    holding.look([rank(child)], {}, [gpu, gpu], [computes])
    assert not holding.holds(labels)


def test_a_slice_of_a_gpu_is_held_if_the_run_sees_it_and_is_on_that_gpu(child: int) -> None:
    gpu = {"index": 0, "uuid": "GPU-a", "mig": [{"uuid": "MIG-1"}, {"uuid": "MIG-2"}]}
    holding = GpuHolding(lambda: {"nvidia:GPU-a": [child]})
    holding.look([rank(child, visible="MIG-2")], {"nvidia": {"gpus": [gpu]}}, (), ())
    first, second = (
        holding.holds({"gpu_uuid": uuid, "mig_parent": "GPU-a", "vendor": "nvidia"}) for uuid in ("MIG-1", "MIG-2")
    )
    assert (first, second) == (False, True)


RAYLET = """
import os, sys, subprocess
# As Ray starts its workers: the job in the environment, the class in the title.
def start(job, title, rank=None):
    env = {**os.environ, "RAY_JOB_ID": job, **({"RANK": rank} if rank else {})}
    return subprocess.Popen([title, "-c", "import time; time.sleep(600)"], executable=sys.executable, env=env)
children = [
    start("01000000", "ray::TaskRunner.run"),
    start("01000000", "ray::WorkerDict.generate", "5"),
    start("01000000", "ray::vLLMHttpServer"),
    start("02000000", "ray::WorkerDict.generate", "0"),
]
print(*(child.pid for child in children), flush=True)
sys.stdin.readline()
for child in children: child.kill()
"""


def test_workers_of_the_job_that_log_nothing_have_their_roles_and_gpus() -> None:
    raylet = subprocess.Popen([sys.executable, "-c", RAYLET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert raylet.stdout is not None and raylet.stdin is not None
    runner, worker, server, stranger = map(int, raylet.stdout.readline().split())
    users = {"nvidia:GPU-a": [worker], "nvidia:GPU-b": [server], "nvidia:GPU-c": [stranger]}
    gpus = [Sample("gpu", {"gpu_uuid": f"GPU-{name}", "gpu_index": at}, {}, 0.0) for at, name in enumerate("abc")]
    trainer = replace(rank(runner), ray_job="01000000")
    node = replace(rank(raylet.pid, kind="monitor"), role="node", ray_job="01000000")
    rollout = Participant("v_llm_http_server", 1)  # numbered by its GPU, for it was given no rank
    try:
        # After `ray.init()` the raylet is a child of the driver, here of this process.
        driver = replace(rank(os.getpid()), ray_job="01000000", raylet=raylet.pid)
        # Of a node where nobody logs only itself is known.
        for registered in ([trainer], [node], [trainer, node], [driver], [driver, node]):
            holding = GpuHolding(lambda: users)
            holding.look(registered, TWO, gpus, ())
            assert holding.workers == {Participant("worker_dict", 5): worker, rollout: server}
            assert holding.gpus_of(Participant("worker_dict", 5)) == {"GPU-a"}
            assert holding.gpus_of(rollout) == {"GPU-b"}
            assert holding.describe() == ("GPU-a", "GPU-b")
        holding.look([], TWO, gpus, ())
        assert holding.workers == {}
    finally:
        raylet.communicate("\n")


def test_a_rank_whose_process_is_not_seen_on_a_gpu_has_those_that_it_was_given() -> None:
    holding = GpuHolding(lambda: {"nvidia:GPU-b": [NOBODY]})
    holding.look([rank(os.getpid(), visible="1"), rank(os.getppid(), 1, visible="GPU-a")], TWO, (), ())
    assert (holding.gpus_of(Participant()), holding.gpus_of(Participant(rank=1))) == ({"GPU-b"}, {"GPU-a"})
