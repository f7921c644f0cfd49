"""Lowest, mean, highest and last of a stream of numbers: constant memory, however long it lasts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the agent and the monitor count as they go, without numpy
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class Spread:
    """Of the finite numbers that were added; the values are None as long as there are none."""

    count: int = 0
    low: float | None = None
    mean: float | None = None
    high: float | None = None
    last: float | None = None

    def add(self, value: object) -> None:
        """What is missing, not a number or not finite is not counted."""
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        self.count += 1
        self.low = value if self.low is None or value < self.low else self.low
        self.high = value if self.high is None or value > self.high else self.high
        mean = 0.0 if self.mean is None else self.mean
        self.mean = mean + (value - mean) / self.count
        self.last = value


def spread_of(values: NDArray[np.float64]) -> Spread:
    """Of a whole array at once."""
    import numpy as np

    finite = values[np.isfinite(values)]
    if not len(finite):
        return Spread()
    return Spread(len(finite), float(finite.min()), float(finite.mean()), float(finite.max()), float(finite[-1]))
