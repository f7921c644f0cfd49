"""The command line options. Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainvitals.conditions import Conditions
from trainvitals.journal.contracts import RunRef, Runs
from trainvitals.settings import Settings

if TYPE_CHECKING:
    from trainvitals.lab.runs import MachineRuns


@dataclass(frozen=True, slots=True)
class TopOptions:
    """Of `trainvitals top` and `trainvitals run --top`."""

    run: RunRef | None = None
    runs: Runs | None = None
    """For the list of runs."""
    machines: MachineRuns | None = None
    """`runs`, if they are those of several machines."""
    interval: float = 1.0
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs; empty is all."""
    simulate_gpus: int = 0
    readonly: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    """The thresholds at which numbers are coloured."""
    settings: Settings | None = None
    """By whose thresholds and prices findings are judged; without them there are none."""
    sources: tuple[str, ...] | None = None
    output: Callable[[], Sequence[str]] | None = None
    """The newest output lines of the program run by `run --top`."""
    holds: Callable[[int], bool] | None = None
    """Whether a process belongs to that program: then only its runs are followed, whatever else starts here."""

    @property
    def first_page(self) -> str:
        """Several machines are shown before the one on which this runs."""
        return "machines" if self.machines is not None and self.run is None else "overview"
