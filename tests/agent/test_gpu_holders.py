"""Who holds a GPU: ranks, their children, programs that nobody watches, and numbers of another container."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainvitals.agent.gpu_holders import GpuHolders
from trainvitals.journal.identity import Participant
from trainvitals.sources import GpuProcess, RankProcess

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
    assert (mine.run, mine.participant.rank, mine.owner["command"]) == ("run-1", 2, "sleep")
    assert (mine.memory_mb, mine.sm_percent, mine.gpu["gpu_uuid"]) == (512.0, 40, "GPU-3")
    assert (other.run, other.pid, other.memory_mb) == ("", 1, 100.0) and other.owner["user"]
    assert (unknown.pid, unknown.owner["user"], unknown.memory_mb) == (elsewhere, "", None)
