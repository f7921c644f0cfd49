"""Who holds which GPU: every process that its driver names, watched or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trainvitals.agent.gpu_holding import list_parents
from trainvitals.exporters.runs import GpuHolder
from trainvitals.journal.identity import Participant
from trainvitals.newest import Value
from trainvitals.sources import GpuProcess, RankProcess
from trainvitals.sources.process_owner import ProcessOwner, read_owner
from trainvitals.sources.procfs import read_stat

GpuUsers = Iterable[tuple[Mapping[str, Value], Iterable[GpuProcess]]]
"""The labels of each GPU, and the processes on it."""


class GpuHolders:
    """Remembers whose process it is for as long as the process is on a GPU."""

    def __init__(self, users: Callable[[], GpuUsers], root: str = "/proc") -> None:
        self._users = users
        self._root = root
        self._owners: dict[tuple[int, float], tuple[ProcessOwner, frozenset[int]]] = {}

    def list(self, ranks: Iterable[RankProcess]) -> tuple[GpuHolder, ...]:
        """`ranks` are the processes of runs that are watched here; a child of one belongs to it."""
        by_pid = {rank.pid: rank for rank in ranks}
        owners: dict[tuple[int, float], tuple[ProcessOwner, frozenset[int]]] = {}
        found = []
        for labels, processes in self._users():
            for process in processes:
                # The driver may name a process by its number outside of our container: then nothing is known of it.
                stat = read_stat(self._root, process.pid)
                owner, family = ProcessOwner(), frozenset[int]()
                if stat is not None:
                    key = (process.pid, stat.started)
                    owner, family = owners[key] = self._owners.get(key) or self._look(process.pid)
                rank = next((by_pid[pid] for pid in family if pid in by_pid), None)
                found.append(
                    GpuHolder(
                        labels,
                        process.pid,
                        owner._asdict(),
                        rank.run_id if rank is not None else "",
                        rank.participant if rank is not None else Participant(),
                        process.memory_mb,
                        process.sm_percent,
                    )
                )
        self._owners = owners
        return tuple(found)

    def _look(self, pid: int) -> tuple[ProcessOwner, frozenset[int]]:
        return read_owner(self._root, pid), frozenset((pid, *(list_parents(pid, self._root) or ())))
