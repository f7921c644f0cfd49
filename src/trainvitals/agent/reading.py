"""What comes out of the sampler: readings of the units. Tested in tests/agent/test_sampling.py."""

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


def exporter_trouble(text: str) -> Reading:
    """What is wrong with an exporter, as a reading that becomes an event of every run that is offered it."""
    return Reading("exporter", "exporter", (Notice("exporter_trouble", text, "warning"),), 0.0, 0.0, 0.0)
