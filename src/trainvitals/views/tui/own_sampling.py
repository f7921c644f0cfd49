"""Sampling in this process, for a machine without an agent. Nothing is written.
Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals import sources
from trainvitals.journal.documents.latest import LatestSample
from trainvitals.journal.documents.rows import EventRow, new_event
from trainvitals.sources import Notice, World
from trainvitals.views.tui.options import TopOptions

if TYPE_CHECKING:
    from trainvitals.agent.reading import Reading
    from trainvitals.agent.sampling import Sampler

KEPT_NOTICES = 500
PROCESS_SECONDS = 2.0


class OwnSampling:
    """The agent's sampler; it samples from the first `read` to `pause` or `end`."""

    def __init__(self, options: TopOptions, world: World) -> None:
        self.notices: deque[EventRow] = deque(maxlen=KEPT_NOTICES)
        """What the sources reported, as events."""
        self._options = options
        self._world = world
        self._sampler: Sampler | None = None
        self._explained: tuple[Mapping[str, str], str] = ({}, "")

    @property
    def is_on(self) -> bool:
        return self._sampler is not None

    def read(self, interval: float) -> tuple[Mapping[str, LatestSample], dict[str, str]]:
        """The newest samples by unit, and for each source or unit without any, why."""
        from trainvitals.agent.log import Log
        from trainvitals.agent.sampling import Sampler
        from trainvitals.agent.wanted import Demand

        sampler = self._sampler = self._sampler or Sampler(Log(Path(os.devnull)).bind(), self._take_notices)
        demand = Demand(
            sources=tuple(row.name for row in sources.REGISTRY if self._is_wanted(row)),
            intervals={"process": max(interval, PROCESS_SECONDS)},
            default_interval=interval,
            simulated_gpus=self._options.simulate_gpus,
        )
        sampler.want(demand, self._world)
        sampler.check()
        reasons = {name: word for name, word in sampler.states().items() if word != "ok"}
        reasons |= {unit: health.reason for unit, health in sampler.health().items() if health.reason}
        return sampler.newest.describe(), reasons

    def explain_missing_gpus(self, reasons: Mapping[str, str]) -> str:
        """Why no GPU was found; empty if there is nothing to explain."""
        if reasons != self._explained[0]:  # this scans the bus: not each time
            found = sources.explain_missing_gpus(reasons, self._world.sysfs_root)
            self._explained = (dict(reasons), ": ".join(found or ()))
        return self._explained[1]

    def pause(self) -> None:
        """Stop sampling; the next `read` begins again."""
        self.end()
        self._sampler = None

    def end(self) -> None:
        """Stop sampling for good. For any thread."""
        if self._sampler is not None:
            self._sampler.end()

    def _is_wanted(self, row: sources.SourceRow) -> bool:
        chosen = self._options.sources
        if chosen and row.name not in chosen:
            return False
        return row.setting is None or bool(getattr(self._options, row.setting, None))

    def _take_notices(self, reading: Reading) -> None:
        for item in reading.items:
            if isinstance(item, Notice):
                self.notices.append(new_event(item.event, item.message, when=item.time, severity=item.severity))
