"""Values that are not reread more often than needed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """A value that is reread once it is `seconds` old. `last` is the last value read; before that, `first`."""

    def __init__(self, read: Callable[[], T], seconds: float, first: T) -> None:
        self.last = first
        self._read = read
        self._seconds = seconds
        self._read_at = -math.inf

    def get(self) -> T:
        """The value, at most that old. Exceptions of reading are passed on, and the next call reads again."""
        if time.monotonic() - self._read_at >= self._seconds:
            self.last = self._read()
            self._read_at = time.monotonic()
        return self.last

    def expire(self) -> None:
        """Read it again the next time, however recent it is."""
        self._read_at = -math.inf
