"""What the watched runs want measured, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainvitals import sources
from trainvitals.settings import Settings

PROCESS_INTERVAL = 2.0
"""Seconds between two looks at a process tree, at least."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Which sources, how often."""

    sources: tuple[str, ...] = ()
    intervals: Mapping[str, float] = field(default_factory=dict)
    default_interval: float = 1.0
    openmetrics_urls: tuple[str, ...] = ()
    simulated_gpus: int = 0

    def interval(self, table: str | None) -> float:
        """Seconds between two readings of a unit that fills this table (None: not known yet)."""
        return self.intervals.get(table or "", self.default_interval)


def intervals_of(settings: Settings) -> dict[str, float]:
    """Seconds between two lines of each table that has an interval of its own."""
    return {
        "gpu": settings.gpu_interval or settings.interval,
        "system": settings.interval,
        "process": max(settings.interval, PROCESS_INTERVAL),
    }


def wants_source(settings: Settings, name: str) -> bool:
    """Whether a run with these settings wants the lines of this source."""
    row = sources.REGISTRY.get(name)
    return row.is_asked_for(settings) if row is not None else settings.sources is None


def combine(many: Iterable[Settings]) -> Demand:
    """What satisfies all of them: every source that one wants, the shortest interval of each table."""
    wishes = list(many)
    if not wishes:
        return Demand()
    tables = [intervals_of(settings) for settings in wishes]
    return Demand(
        sources=tuple(row.name for row in sources.REGISTRY if any(map(row.is_asked_for, wishes))),
        intervals={table: min(item[table] for item in tables) for table in tables[0]},
        default_interval=min(settings.interval for settings in wishes),
        openmetrics_urls=tuple(dict.fromkeys(url for settings in wishes for url in settings.openmetrics)),
        simulated_gpus=max(settings.simulate_gpus for settings in wishes),
    )
