"""What comes out of the sampler: readings of the units, and how the units are doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainvitals.sources import Notice, Sample


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read of one unit gave."""

    source: str
    unit: str
    items: Sequence[Sample | Notice]
    moment: float
    """Monotonic time at which it began."""
    duration: float
    interval: float
    late: bool = False
    """It took longer than its deadline: the numbers are older than they look."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a unit is doing. `age` is since the newest good reading began, None if there was none yet."""

    source: str
    unit: str
    up: bool
    age: float | None
    duration: float | None
    errors: int
    skipped: int
    reason: str | None
