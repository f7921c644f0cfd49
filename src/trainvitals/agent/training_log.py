"""What the participants of this machine log: how fast each goes, and a summary of the lowest of them.

How far each file was read and what came out of it are kept together in status.json, so an agent that was killed is
followed by one that continues from there, with nothing missed and nothing counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainvitals.journal.cursor import Row
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.status import LineDamage, Status
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Positions
from trainvitals.journal.summaries import Summary

TABLE = "training"


@dataclass(slots=True)
class LogGrowth:
    """What a participant logged since the last look."""

    lines: int = 0
    step: int | None = None
    timestamp: str | None = None


class TrainingLog:
    """A listener for the training files of a run."""

    name = "summary"

    def __init__(self, status: Status) -> None:
        """Go on from what an earlier agent left in status.json."""
        self.summary = Summary(dict(status.summary), status.summary_left_out)
        self.damage = Damage(status.damage.torn, status.damage.foreign)
        """Lines that could not be understood, of every participant."""
        self.positions = Positions.parse(status.positions)
        self.acknowledged = self.positions.copy()
        self.summarised = Participant()
        """The one whose summary is kept."""
        self._grown: dict[Participant, LogGrowth] = {}

    def wants(self, file: FileName) -> bool:
        return file.table == TABLE

    def see(self, batch: Batch) -> None:
        self.positions.advance(batch.file, batch.end)
        self.damage += batch.damage
        if not batch.rows:
            return
        participant = batch.file.participant
        growth = self._grown.setdefault(participant, LogGrowth())
        growth.lines += len(batch.rows)
        growth.timestamp = batch.rows[-1]["timestamp"]
        take = self.summary.add if participant == self.summarised else _step_of
        for row in batch.rows:
            step = take(row)
            if step is not None:
                growth.step = step

    def take_growth(self) -> dict[Participant, LogGrowth]:
        """What came since the last call."""
        found, self._grown = self._grown, {}
        return found

    def add_to(self, status: Status) -> Status:
        """`status` with what has to be kept of this."""
        return replace(
            status,
            summary=self.summary.metrics,
            summary_left_out=self.summary.left_out,
            positions=self.positions.offsets(),
            damage=LineDamage(torn=self.damage.torn, foreign=self.damage.foreign),
        )

    def mark_saved(self) -> None:
        """What `add_to` gave last is on disk."""
        self.acknowledged = self.positions.copy()


def _step_of(row: Row) -> int | None:
    step = row.get("step")
    return step if type(step) is int else None
