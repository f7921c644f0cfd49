"""What a loop does every so often. Tested in tests/agent/test_agent.py."""

from __future__ import annotations


class Timetable:
    """When each thing is due again; for one thread."""

    def __init__(self, **first: float) -> None:
        """`first` are those that are not due at once."""
        self._next = first

    def is_due(self, what: str, interval: float, now: float) -> bool:
        """Whether `what` is to be done now; then it is due again after `interval` seconds."""
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + interval
        return True
