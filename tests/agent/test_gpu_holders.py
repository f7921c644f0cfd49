"""Who holds a GPU: ranks, their children, programs that nobody watches, and numbers of another container."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainvitals.agent.gpu_holders import GpuHolders
from trainvitals.journal.documents.job import Job
from trainvitals.journal.identity import Participant, gpu_number
from trainvitals.sources import GpuProcess, RankProcess
from trainvitals.sources.kubelet import GivenGpu

PARENT = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """(a process, its child)."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent.pid, child
        subprocess.run(["kill", str(child)], check=True)
        parent.kill()


def test_a_child_of_a_rank_belongs_to_its_run_and_a_stranger_to_nobody(family: tuple[int, int]) -> None:
    rank, child = family
    stranger, elsewhere = 1, 2**22 + 5
    gpus = [({"gpu_index": 3, "gpu_uuid": "GPU-3"}, [GpuProcess(child, 512.0, 40), GpuProcess(stranger, 100.0)])]
    gpus.append(({"gpu_index": 4, "gpu_uuid": "GPU-4"}, [GpuProcess(elsewhere)]))
    holders = GpuHolders(lambda: gpus)
    for _ in range(2):  # the second time from what is remembered
        mine, other, unknown = holders.list([RankProcess("run-1", Participant(rank=2), rank)])
    assert (mine.run, mine.participant.rank, mine.command) == ("run-1", 2, "sleep")
    assert (mine.memory_mb, mine.sm_percent, mine.gpu["gpu_uuid"]) == (512.0, 40, "GPU-3")
    assert (other.run, other.pid, other.memory_mb) == ("", 1, 100.0) and other.user
    assert (unknown.pid, unknown.user, unknown.memory_mb) == (elsewhere, "", None)


def test_of_two_ranks_above_each_other_it_is_the_nearest_ones(family: tuple[int, int]) -> None:
    driver, worker = family
    holders = GpuHolders(lambda: [({"gpu_index": 0, "gpu_uuid": "GPU-0"}, [GpuProcess(worker)])])
    ranks = [RankProcess("run", Participant(), driver), RankProcess("run", Participant("worker", 1), worker)]
    for order in (ranks, ranks[::-1]):
        (found,) = holders.list(order)
        assert found.participant == Participant("worker", 1)


def give(gpu: str, pod: str, container: str = "training") -> GivenGpu:
    return GivenGpu({"gpu_index": 0, "gpu_uuid": gpu}, pod, "vision", container)


def test_a_pod_that_was_given_a_gpu_holds_it_with_and_without_a_process() -> None:
    """Of a process in another container not even its number means anything here: the kubelet knows whose it is."""
    gpus = [({"gpu_index": 0, "gpu_uuid": "GPU-0"}, [GpuProcess(2**22 + 5, 512.0)])]
    holders = GpuHolders(lambda: gpus, lambda: [give("GPU-0", "trainer-0"), give("GPU-1", "notebook")])
    busy, idle = holders.list([])
    assert (busy.pid, busy.job) == (2**22 + 5, Job(pod="trainer-0", namespace="vision", container="training"))
    assert (idle.pid, idle.job.pod, idle.gpu["gpu_uuid"], idle.memory_mb) == (None, "notebook", "GPU-1", None)


def test_who_of_several_pods_on_a_shared_gpu_it_is_only_the_process_says(tmp_path: Path) -> None:
    for pid, pod in ((7, "b"), (8, "")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python) S 1 " + "0 " * 48)
        (folder / "cgroup").write_text("0::/kubepods/pod0a1b\n")
        (folder / "environ").write_text(f"HOSTNAME={pod}\0")
    gpus = [({"gpu_index": 0, "gpu_uuid": "GPU-0"}, [GpuProcess(7), GpuProcess(8)])]
    given = [give("GPU-0", pod) for pod in ("a", "b")]
    found = GpuHolders(lambda: gpus, lambda: given, str(tmp_path)).list([])
    assert [(holder.pid, holder.job.full_pod) for holder in found] == [(7, "vision/b"), (8, ""), (None, "vision/a")]


def test_a_process_on_a_slice_holds_the_slice_and_its_pod_is_that_of_the_slice() -> None:
    labels = {"gpu_index": 0, "gpu_uuid": "GPU-0"}
    processes = [GpuProcess(2**22 + 5, part=(0, "MIG-a")), GpuProcess(2**22 + 6, part=(1, "MIG-b"))]
    given = [give("MIG-b", "b"), give("MIG-a", "a")]
    found = GpuHolders(lambda: [(labels, processes)], lambda: given).list([])
    assert [(gpu_number(holder.gpu), holder.gpu["gpu_uuid"], holder.job.pod) for holder in found] == [
        ("0:0", "MIG-a", "a"),
        ("0:1", "MIG-b", "b"),
    ]
