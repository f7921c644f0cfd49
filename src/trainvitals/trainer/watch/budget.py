"""How much of the training's time our own measurements may take."""

from __future__ import annotations

import math

FIRST_SECONDS = 0.15
"""There for the looks of the first steps, on the house: a short training gets some too."""
MOST_SECONDS = 0.001
"""What may be saved up afterwards: what was not used is no reason for a burst."""
UNSEEN = 3
"""What is charged for each second that a measurement takes by our own clock, which does not see calls of our functions
and what they push out of the caches. An estimate: from outside it was three times on a busy machine."""
PAUSE = 4
"""Times a usual step that one step counts at most: the rest of it is an evaluation, a checkpoint, or somebody else who
has the processor."""
RECENT = 0.1
"""Share of the last step in what is usual."""


class Budget:
    """An account: each step of the training pays in a share of its time, a measurement pays out what it took.

    While the account is overdrawn nothing more is measured, so over time the share is kept whatever a measurement
    costs.
    """

    def __init__(self, percent: float) -> None:
        """`percent` of the time; 0 means no limit."""
        self._share = percent / 100
        self._seconds = FIRST_SECONDS if percent else math.inf
        self._most = MOST_SECONDS
        self._usual = 0.0
        """Seconds of a step."""

    def earn(self, *steps: float) -> None:
        """Steps took so many seconds each."""
        usual, saved, share, most = self._usual, self._seconds, self._share, self._most
        for seconds in steps:
            usual = usual or seconds
            limit = PAUSE * usual
            if seconds > limit:
                seconds = limit
            usual += RECENT * (seconds - usual)
            if saved < most:
                saved = min(saved + seconds * share, most)
        self._usual, self._seconds = usual, saved

    def spend(self, seconds: float) -> None:
        self._seconds -= UNSEEN * seconds

    def settle(self) -> None:
        """The first steps are over, with what was given to them and what they took beyond it."""
        if self._share:
            self._seconds = 0.0

    def allows(self) -> bool:
        return self._seconds > 0
