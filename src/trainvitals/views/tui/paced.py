"""Looking at something no more often than it is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """A value that is read again once it is `seconds` old. `last` is as it was read last, `first` before that."""

    def __init__(self, read: Callable[[], T], seconds: float, first: T) -> None:
        self.last = first
        self._read = read
        self._seconds = seconds
        self._read_at = -math.inf

    def get(self) -> T:
        """The value, as old as allowed. What reading raises is passed on, and the next call reads again."""
        if time.monotonic() - self._read_at >= self._seconds:
            self.last = self._read()
            self._read_at = time.monotonic()
        return self.last

    def expire(self) -> None:
        """Read it again the next time, however new it is."""
        self._read_at = -math.inf
