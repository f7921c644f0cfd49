"""How much energy a GPU has used: one way of counting for the agent, the monitor and the summary."""

from __future__ import annotations

import math
from dataclasses import dataclass

LONGEST_GAP = 60.0
"""Seconds over which power is taken to have changed evenly; a longer pause was not measured."""


@dataclass(slots=True)
class Energy:
    """Joules used, from readings in the order of their time: by the card's own counter where it has one, else power
    over time. `joules` is None as long as it is unknown. The fields are enough to continue from."""

    joules: float | None = None
    counter: float | None = None
    moment: float | None = None
    watts: float | None = None

    def add(self, moment: float | None, counter: object = None, watts: object = None) -> None:
        """A reading at `moment` (seconds); what is missing or not finite is not counted."""
        if isinstance(counter, (int, float)) and math.isfinite(counter):
            if self.counter is not None:
                # It restarts at zero when the driver is reloaded: what it shows then was used since.
                grown = counter - self.counter if counter >= self.counter else counter
                self.joules = (self.joules or 0.0) + grown
            self.counter = counter
        elif self.counter is None and moment is not None and isinstance(watts, (int, float)) and math.isfinite(watts):
            if self.moment is not None and self.watts is not None and 0 < moment - self.moment <= LONGEST_GAP:
                self.joules = (self.joules or 0.0) + (moment - self.moment) * (watts + self.watts) / 2
            self.moment, self.watts = moment, watts
