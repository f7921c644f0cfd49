"""What the user asked for on the command line. Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainvitals.conditions import Conditions
from trainvitals.journal.contracts import RunRef, Runs


@dataclass(frozen=True, slots=True)
class TopOptions:
    """Of `trainvitals top` and `trainvitals run --top`."""

    run: RunRef | None = None
    runs: Runs | None = None
    """For the list of runs."""
    interval: float = 1.0
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs; empty is all."""
    simulate_gpus: int = 0
    readonly: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    """From which values on numbers are coloured."""
    sources: tuple[str, ...] | None = None
    output: Callable[[], Sequence[str]] | None = None
    """The newest lines of the program that is watched from here."""
    holds: Callable[[int], bool] | None = None
    """Whether a process is of that program: only its runs are followed then, whatever else starts on the machine."""
