"""How much of the training's time our own measurements may take."""

from __future__ import annotations

INITIAL_SECONDS = 0.05


class Budget:
    """An account: time that passes pays in a share of itself, a measurement pays out what it took.

    While the account is overdrawn nothing more is measured, so over time the share is kept whatever a measurement
    costs. The first measurements are on the house: a short training gets some too.
    """

    def __init__(self, percent: float, now: float, *, most: float = INITIAL_SECONDS) -> None:
        """`percent` of the time; 0 means no limit. `most` seconds are there at first, and never more."""
        self._share = percent / 100
        self._seconds = self._most = most
        self._paid_at = now
        self.overdrawn_until = now
        """Until then nothing is allowed."""

    def allows(self, now: float) -> bool:
        if now < self.overdrawn_until:
            return False
        if not self._share:
            return True
        # What was not used is not saved up for a burst.
        self._seconds = min(self._seconds + (now - self._paid_at) * self._share, self._most)
        self._paid_at = now
        if self._seconds > 0:
            return True
        self.overdrawn_until = now - self._seconds / self._share
        return False

    def spend(self, seconds: float) -> None:
        self._seconds -= seconds
