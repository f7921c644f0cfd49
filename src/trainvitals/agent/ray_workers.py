"""Workers of a Ray job that hold a GPU and have not registered: those of verl and others, which log nothing themselves.

Ray names the class of an actor in the title of its process, `ray::WorkerDict.generate`, and the job in its environment.
Tested in tests/agent/test_gpu_holding.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import MONITOR
from trainvitals.journal.identity import Participant, role_of_class
from trainvitals.sources.process_owner import environment_of
from trainvitals.sources.procfs import read_stat
from trainvitals.sources.sysfs import read_text

JOB_VARIABLE = "RAY_JOB_ID"
RANK_VARIABLE = "RANK"
TITLE = "ray::"


class RayWorkers:
    """Those of one run on this machine. A worker keeps its role and number while it lives."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._jobs: frozenset[tuple[int, str]] = frozenset()
        """The raylet and the job of each process that has registered."""
        self._known: dict[tuple[int, float], Participant] = {}
        self._taken: set[Participant] = set()

    def learn(self, registrations: Iterable[Registration]) -> None:
        """Which jobs are the run's."""
        jobs = set()
        for item in registrations:
            self._taken.add(item.participant)
            if item.ray_job and item.raylet is not None:
                jobs.add((item.raylet, item.ray_job))
            elif item.ray_job:
                # Of a node the raylet itself is registered, of anything else a child of it.
                stat = read_stat(self._root, item.pid) if item.kind != MONITOR else None
                jobs.add((stat.parent if stat is not None else item.pid, item.ray_job))
        self._jobs = frozenset(jobs)

    @property
    def raylets(self) -> frozenset[int]:
        """A process below one of them belongs to a worker, and not to a driver further up."""
        return frozenset(raylet for raylet, _ in self._jobs)

    def find(self, pid: int, parents: Sequence[int], gpu_index: object) -> tuple[Participant, int] | None:
        """The worker that a process on a GPU is, or is a child of, and the worker's own process; None if it is none of
        the run's."""
        family = [pid, *parents]
        for raylet, job in self._jobs:
            if raylet in parents:
                worker = family[family.index(raylet) - 1]
                found = self._identify(worker, job, gpu_index)
                if found is not None:
                    return found, worker
        return None

    def _identify(self, pid: int, job: str, gpu_index: object) -> Participant | None:
        stat = read_stat(self._root, pid)
        if stat is None:
            return None
        key = (pid, stat.started)
        found = self._known.get(key) or self._name(pid, job, gpu_index)
        if found is not None:
            self._known[key] = found
        return found

    def _name(self, pid: int, job: str, gpu_index: object) -> Participant | None:
        environment = environment_of(self._root, pid)
        title = (read_text(f"{self._root}/{pid}/cmdline") or "").partition("\0")[0].strip()
        if environment.get(JOB_VARIABLE) != job or not title.startswith(TITLE):
            return None
        role = role_of_class(title.removeprefix(TITLE).partition(".")[0])
        rank = environment.get(RANK_VARIABLE, "")
        wanted = int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 7 else gpu_index
        first = wanted if isinstance(wanted, int) else 0
        free = (Participant(role, number) for number in itertools.count(first))
        found = next(item for item in free if item not in self._taken)
        self._taken.add(found)
        return found
