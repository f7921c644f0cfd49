"""Phases of a step, reported to the agent as they begin and end: a hang inside one is seen while it happens.
Tested in tests/integrations/test_verl.py and tests/integrations/test_nemo_rl.py."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainvitals.journal.documents.registration import PhaseNote

MOST_EDGES = 100
"""Beginnings and ends of phases that are reported at once: many steps of a real training."""
EDGES_PER_SECOND = 20.0
"""How many may follow: a report is a small file that is written."""


class PhaseEdges:
    """In which phase a process is, and how long it has stayed in each at most without entering or leaving one."""

    def __init__(self, note: Callable[[PhaseNote], None], whole: str) -> None:
        """`whole` is what the framework calls the whole step, which is no phase."""
        self._note = note
        self._whole = whole
        self._open: list[list[str]] = []
        """The phases within each other, the innermost last; lists, for a phase may be open twice."""
        self._since = time.monotonic()
        self._longest: dict[str, float] = {}
        self._left = float(MOST_EDGES)

    def enter(self, name: str) -> list[str]:
        """Returns what `leave` takes."""
        phase = [name]
        self._pass([*self._open, phase])
        return phase

    def leave(self, phase: list[str]) -> None:
        self._pass([item for item in self._open if item is not phase])

    @property
    def _name(self) -> str:
        """Of the innermost phase."""
        return next((name for (name,) in reversed(self._open) if name != self._whole), "")

    def _pass(self, then: list[list[str]]) -> None:
        now = time.monotonic()
        took = now - self._since
        self._longest[self._name] = max(took, self._longest.get(self._name, 0.0))
        self._open, self._since = then, now
        self._left = min(self._left + took * EDGES_PER_SECOND, MOST_EDGES) - 1.0
        if self._left < 0:
            self._left = 0.0
            return
        self._note(PhaseNote(name=self._name, since=now, longest=self._longest.get(self._name)))
