"""The ranks of a run on this machine. Changed by the run's own thread, looked at by any.
Tested in tests/agent/test_closing.py."""

from __future__ import annotations

from collections.abc import Iterator

from trainvitals.agent.liveness import Rank
from trainvitals.journal.documents.run import TRAINING
from trainvitals.journal.documents.status import RankStatus
from trainvitals.sources import RankProcess


class Ranks:
    """By number and kind: a rank may be seen twice, by `trainvitals run` and by itself."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[int, str], Rank] = {}

    def __iter__(self) -> Iterator[Rank]:
        return iter(list(self._ranks.values()))

    def add(self, rank: Rank) -> None:
        self._ranks[rank.key] = rank

    def get(self, number: int, kind: str = TRAINING) -> Rank | None:
        return self._ranks.get((number, kind))

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(rank.registration.rank for rank in self)

    @property
    def are_over(self) -> bool:
        """Whether there were any and none is left."""
        return bool(self._ranks) and all(rank.is_over for rank in self)

    @property
    def are_settling(self) -> bool:
        """Whether one that is gone is being asked for its exit status."""
        return any(not rank.is_alive and not rank.is_over for rank in self)

    @property
    def pidfds(self) -> list[int]:
        return [rank.pidfd for rank in self if rank.is_alive and rank.pidfd is not None]

    def alive(self) -> list[Rank]:
        return [rank for rank in self if rank.is_alive]

    def processes(self, run_id: str) -> list[RankProcess]:
        """Those that live; of a rank that is seen twice the rank itself."""
        alive = sorted(self.alive(), key=lambda rank: rank.registration.kind == TRAINING)
        by_rank = {rank.registration.rank: rank.registration.pid for rank in alive}
        return [RankProcess(run_id, number, pid) for number, pid in sorted(by_rank.items())]

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
