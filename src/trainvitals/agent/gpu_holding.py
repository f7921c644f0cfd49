"""Which GPUs a run holds: only these can be idle because of the run.

Some drivers name the processes on a GPU. Where one does not (another vendor's, or in a container that does not share
the process numbers of the host), those count that were set aside for the run, unless a process of somebody else is seen
there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainvitals.agent.ray_workers import RayWorkers
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import MONITOR, TRAINING
from trainvitals.journal.identity import Participant, gpu_key
from trainvitals.sources import REGISTRY, Sample, described_gpus
from trainvitals.sources.procfs import read_stat

MOST_PARENTS = 64


class GpuHolding:
    """The GPUs of one run. Goes on from what `describe` gave."""

    def __init__(self, users: Callable[[], Mapping[str, Iterable[int]]], known: Iterable[str] | None = None) -> None:
        """`users` gives the processes on each GPU by the key of its unit, such as `nvidia:GPU-6f1c...`."""
        self._users = users
        self._seen: dict[str, None] = dict.fromkeys(known or ())
        """UUIDs of GPUs on which a process of the run was seen: it keeps its context to its end."""
        self._set_aside: frozenset[str] = frozenset()
        self._visible: frozenset[str] = frozenset()
        self._alone: frozenset[str] = frozenset()
        """GPUs whose driver names no processes, where the run computes on one and there are no more than it can use."""
        self._ray = RayWorkers()
        self.workers: Mapping[Participant, int] = {}
        """Workers of Ray that hold a GPU and have not registered, with their processes."""
        self._gpus_of: Mapping[Participant, frozenset[str]] = {}

    def look(
        self,
        ranks: Sequence[Registration],
        hardware: Mapping[str, Any],
        gpus: Iterable[Sample],
        processes: Iterable[Sample],
    ) -> None:
        """Update; `ranks` are those alive, `gpus` and `processes` the newest lines of the run."""
        if not ranks:
            self.workers = {}
            return
        gpus = list(gpus)
        self._ray.learn(ranks)
        # A monitor computes nothing: the nodes of a cluster have the processes of others below them.
        ranks = [item for item in ranks if item.kind != MONITOR]
        owners = {item.pid: item.participant for item in ranks if item.kind == TRAINING}
        pids = frozenset(item.pid for item in ranks)
        indices = {gpu_key(gpu.labels): gpu.labels.get("gpu_index") for gpu in gpus}
        workers: dict[Participant, int] = {}
        gpus_of: dict[Participant, set[str]] = {}
        # `trainvitals run` computes nothing itself, but until the training has registered it is all that is known.
        count = len({item.participant for item in ranks if item.kind == TRAINING}) or 1
        strangers = set()
        raylets = self._ray.raylets
        for key, found in self._users().items():
            uuid = key.partition(":")[2]
            is_ours = is_somebodys = False
            for pid in found:
                parents = list_parents(pid)
                family = list(itertools.takewhile(lambda one: one not in raylets, (pid, *(parents or ()))))
                owner = next((owners[one] for one in family if one in owners), None)
                worker = self._ray.find(pid, parents or (), indices.get(uuid)) if owner is None else None
                if worker is not None:
                    owner = worker[0]
                    workers[owner] = worker[1]
                if owner is not None:
                    gpus_of.setdefault(owner, set()).add(uuid)
                is_ours |= owner is not None or not pids.isdisjoint(family)
                is_somebodys |= parents is not None
            if is_ours:
                self._seen[uuid] = None
            elif is_somebodys:
                strangers.add(uuid)
        named = frozenset(gpus_of)
        visible: set[str] = set()
        set_aside: set[str] = set()
        for row, described in described_gpus(hardware):
            for item in ranks:
                mine = row.visible_devices(item.visible_devices, described)
                visible.update(mine)
                hides = row.hides_gpus(item.visible_devices)
                if hides and item.participant in owners.values() and item.participant not in named:
                    gpus_of.setdefault(item.participant, set()).update(mine)
                if hides or (row.names_processes and len(described) <= count):
                    set_aside.update(mine)
        self._visible = frozenset(visible)
        self._set_aside = frozenset() if self._seen else frozenset(set_aside - strangers)
        self.workers = workers
        self._gpus_of = {who: frozenset(found) for who, found in gpus_of.items()}
        naming = {row.name for row in REGISTRY if row.names_processes}
        others = [gpu for gpu in gpus if gpu.labels.get("vendor") not in naming]
        computes = len(others) <= count and any("gpu_memory_mb" in item.values for item in processes)
        self._alone = frozenset(gpu_key(gpu.labels) for gpu in others) if computes else frozenset()

    def holds(self, labels: Mapping[str, Any]) -> bool:
        """Whether the run holds the GPU with these labels, as far as is known."""
        name = gpu_key(labels)
        if labels.get("simulated"):
            return True
        if "mig_parent" in labels:
            return name in self._visible and (str(labels["mig_parent"]) in self._seen or name in self._set_aside)
        return name in self._seen or name in self._set_aside or name in self._alone

    def gpus_of(self, participant: Participant) -> frozenset[str]:
        """The GPUs that a participant computes on, or that were set aside for it; UUIDs, indices where there are
        none."""
        return self._gpus_of.get(participant, frozenset())

    def describe(self) -> tuple[str, ...] | None:
        """UUIDs (indices where there are none); None if the run holds none that is known."""
        return tuple(dict.fromkeys((*self._seen, *sorted(self._set_aside | self._alone)))) or None


def list_parents(pid: int, root: str = "/proc") -> list[int] | None:
    """The parents of a process, nearest first; None if there is no such process here."""
    found: list[int] = []
    stat = read_stat(root, pid)
    if stat is None:
        return None
    while stat is not None and stat.parent > 1 and len(found) < MOST_PARENTS:
        found.append(stat.parent)
        stat = read_stat(root, stat.parent)
    return found
