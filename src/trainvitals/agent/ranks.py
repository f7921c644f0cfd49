"""The ranks of a run on this machine. Changed by the run's own thread, looked at by any.
Tested in tests/agent/test_closing.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trainvitals.agent.liveness import WatchedRank
from trainvitals.journal.documents.run import MONITOR, TRAINING
from trainvitals.journal.documents.status import RankStatus
from trainvitals.journal.identity import Participant
from trainvitals.sources import RankProcess


class Ranks:
    """By participant and kind: rank 0 may be seen twice, by `trainvitals run` and by itself."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[Participant, str], WatchedRank] = {}
        self.workers: Mapping[Participant, int] = {}
        """Processes of workers that belong to the run and have not registered (`gpu_holding.py`)."""
        self.gpus_of: Callable[[Participant], frozenset[str]] = lambda participant: frozenset()
        """The GPUs of a participant."""

    def __iter__(self) -> Iterator[WatchedRank]:
        return iter(list(self._ranks.values()))

    def add(self, rank: WatchedRank) -> None:
        self._ranks[rank.participant, rank.registration.kind] = rank

    def get(self, participant: Participant, kind: str = TRAINING) -> WatchedRank | None:
        return self._ranks.get((participant, kind))

    @property
    def participants(self) -> frozenset[Participant]:
        return frozenset(rank.participant for rank in self)

    def training(self) -> list[WatchedRank]:
        """Without `trainvitals run` and `trainvitals monitor`."""
        return [rank for rank in self if rank.registration.kind == TRAINING]

    @property
    def lowest(self) -> WatchedRank | None:
        """Of the training on this machine, the one that speaks for it."""
        return min(self.training(), key=lambda rank: rank.participant, default=None)

    @property
    def are_over(self) -> bool:
        """Whether there were any and none is left. A monitor beside others is no reason to wait: the nodes of a Ray
        cluster outlive the job."""
        counted = [rank for rank in self if rank.registration.kind != MONITOR] or list(self)
        return bool(counted) and all(rank.is_over for rank in counted)

    @property
    def are_settling(self) -> bool:
        """Whether one that is gone is being asked for its exit status."""
        return any(not rank.is_alive and not rank.is_over for rank in self)

    @property
    def pidfds(self) -> list[int]:
        return [pidfd for rank in self for pidfd in rank.pidfds]

    def alive(self) -> list[WatchedRank]:
        return [rank for rank in self if rank.is_alive]

    def processes(self, run_id: str) -> list[RankProcess]:
        """Those that live; of a rank that is seen twice the rank itself."""
        alive = sorted(self.alive(), key=lambda rank: rank.registration.kind == TRAINING)
        pids = {**self.workers, **{rank.participant: rank.registration.pid for rank in alive}}
        return [RankProcess(run_id, who, pid, self.gpus_of(who)) for who, pid in sorted(pids.items())]

    def describe(self) -> dict[str, RankStatus]:
        """For latest.json."""
        return {
            rank.status_key: RankStatus(
                pid=rank.registration.pid, kind=rank.registration.kind, state=rank.state, step=rank.progress.step
            )
            for rank in self
        }

    def unregister(self) -> None:
        for rank in self:
            rank.unregister()

    def close(self) -> None:
        for rank in self:
            rank.close()
