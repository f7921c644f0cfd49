"""What was lost of a run, as events: written when there is more of it than before.
Tested in tests/agent/test_agent.py."""

from __future__ import annotations

from trainvitals.agent.run_files import RunLines
from trainvitals.agent.training_log import TrainingLog
from trainvitals.journal.documents.events import LinesLost


class Losses:
    """Lines that could not be understood, and lines of the agent that could not be written."""

    def __init__(self, lines: RunLines, training_log: TrainingLog) -> None:
        self._lines = lines
        self._training_log = training_log
        self._damage = training_log.damage
        self._dropped = 0

    def write(self) -> None:
        damage, dropped = self._training_log.damage, self._lines.dropped
        if damage != self._damage:
            self._damage = damage
            message = f"unreadable lines: {damage.torn} torn, {damage.foreign} foreign"
            data = LinesLost(torn=damage.torn, foreign=damage.foreign)
            self._lines.write_event("damage", message, severity="warning", data=data)
        if dropped > self._dropped:
            self._dropped = dropped
            message = f"{dropped} lines of the agent were lost"
            self._lines.write_event("lines_dropped", message, severity="warning", data=LinesLost(lines=dropped))
