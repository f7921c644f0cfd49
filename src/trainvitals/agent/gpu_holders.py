"""Who holds which GPU: every process that its driver names, watched or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from trainvitals.agent.gpu_holding import list_parents
from trainvitals.exporters.runs import GpuHolder
from trainvitals.journal.documents.job import Job
from trainvitals.journal.identity import Participant, gpu_key
from trainvitals.newest import Value
from trainvitals.sources import GpuProcess, RankProcess
from trainvitals.sources.kubelet import GivenGpu
from trainvitals.sources.process_owner import ProcessOwner, read_owner
from trainvitals.sources.procfs import read_stat

GpuUsers = Iterable[tuple[Mapping[str, Value], Iterable[GpuProcess]]]
"""The labels of each GPU, and the processes on it."""


class GpuHolders:
    """Remembers whose process it is for as long as the process is on a GPU."""

    def __init__(
        self,
        users: Callable[[], GpuUsers],
        given: Callable[[], Sequence[GivenGpu]] = lambda: (),
        root: str = "/proc",
    ) -> None:
        """`given` are the GPUs that the kubelet gave to pods of this node."""
        self._users = users
        self._given = given
        self._root = root
        self._owners: dict[tuple[int, float], tuple[ProcessOwner, tuple[int, ...]]] = {}

    def list(self, ranks: Iterable[RankProcess]) -> tuple[GpuHolder, ...]:
        """`ranks` are the processes of runs that are watched here; a child of one belongs to it."""
        by_pid = {rank.pid: rank for rank in ranks}
        owners: dict[tuple[int, float], tuple[ProcessOwner, tuple[int, ...]]] = {}
        given: dict[str, list[GivenGpu]] = {}
        for item in self._given():
            given.setdefault(gpu_key(item.gpu), []).append(item)
        found = []
        for labels, processes in self._users():
            for process in processes:
                # The driver may name a process by its number outside of our container: then nothing is known of it.
                stat = read_stat(self._root, process.pid)
                owner, family = ProcessOwner(), tuple[int, ...]()
                if stat is not None:
                    key = (process.pid, stat.started)
                    owner, family = owners[key] = self._owners.get(key) or self._look(process.pid)
                rank = next((by_pid[pid] for pid in family if pid in by_pid), None)
                gpu = _narrow(labels, process)
                found.append(
                    GpuHolder(
                        gpu,
                        process.pid,
                        owner.user,
                        owner.command,
                        _place(owner.job, given.get(gpu_key(gpu), [])),
                        rank.run_id if rank is not None else "",
                        rank.participant if rank is not None else Participant(),
                        process.memory_mb,
                        process.sm_percent,
                    )
                )
        self._owners = owners
        seen = {(gpu_key(holder.gpu), *_pod(holder.job)) for holder in found}
        idle = (item for items in given.values() for item in items if (gpu_key(item.gpu), *item[1:]) not in seen)
        return (*found, *(GpuHolder(item.gpu, job=_place(Job(), [item])) for item in idle))

    def _look(self, pid: int) -> tuple[ProcessOwner, tuple[int, ...]]:
        """Its owner, itself and its parents, nearest first: the driver of a Ray job may be above its workers."""
        return read_owner(self._root, pid), (pid, *(list_parents(pid, self._root) or ()))


def _narrow(labels: Mapping[str, Value], process: GpuProcess) -> Mapping[str, Value]:
    """The labels of the slice that the process is on, where the GPU is divided."""
    if process.part is None:
        return labels
    index, uuid = process.part
    return {**labels, "gpu_uuid": uuid, "mig_parent": labels["gpu_uuid"], "mig_index": index}


def _place(job: Job, given: Sequence[GivenGpu]) -> Job:
    """With the container that was given the GPU. Of several that share one in time, the one that the process itself
    names; the kubelet does not say whose process is whose."""
    if job.pod:
        given = [item for item in given if item.pod == job.pod and job.namespace in ("", item.namespace)]
    if len(given) != 1:
        return job
    return replace(job, pod=given[0].pod, namespace=given[0].namespace, container=given[0].container)


def _pod(job: Job) -> tuple[str, str, str]:
    return job.pod, job.namespace, job.container
