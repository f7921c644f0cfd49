"""What the watched runs want measured, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from trainvitals import sources
from trainvitals.errors import SettingError
from trainvitals.settings import Settings
from trainvitals.settings.addresses import read_address
from trainvitals.settings.secrets import Environment

PROCESS_INTERVAL = 2.0
"""Seconds between two looks at a process tree, at least."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Which sources, how often."""

    sources: tuple[str, ...] = ()
    intervals: Mapping[str, float] = field(default_factory=dict)
    default_interval: float = 1.0
    openmetrics_urls: tuple[str, ...] = field(default=(), repr=False)
    simulated_gpus: int = 0

    def interval(self, table: str | None) -> float:
        """Seconds between two readings of a unit that fills this table (None: not known yet)."""
        return self.intervals.get(table or "", self.default_interval)


def intervals_of(settings: Settings) -> dict[str, float]:
    """Seconds between two lines of each table that has a separate interval."""
    return {
        "gpu": settings.gpu_interval or settings.interval,
        "system": settings.interval,
        "process": max(settings.interval, PROCESS_INTERVAL),
    }


def wants_source(settings: Settings, name: str) -> bool:
    """Whether a run with these settings wants the lines of this source."""
    row = sources.REGISTRY.get(name)
    return row.is_asked_for(settings) if row is not None else settings.sources is None


def find_pages(settings: Settings, environment: Environment, warn: Callable[[str], None]) -> tuple[str, ...]:
    """The metrics pages to scrape, secrets included: they are looked up here and only kept in memory."""
    found = []
    for address in settings.openmetrics:
        try:
            found.append(read_address(address.url, environment))
        except SettingError as error:
            warn(f"a metrics page cannot be scraped: {error.message}")
    return tuple(found)


def combine(many: Iterable[Settings], pages: Iterable[str] = ()) -> Demand:
    """What satisfies all of them: every source that one wants, the shortest interval of each table. `pages` are the
    metrics pages that they ask for."""
    wishes = list(many)
    if not wishes:
        return Demand()
    tables = [intervals_of(settings) for settings in wishes]
    return Demand(
        sources=tuple(row.name for row in sources.REGISTRY if any(map(row.is_asked_for, wishes))),
        intervals={table: min(item[table] for item in tables) for table in tables[0]},
        default_interval=min(settings.interval for settings in wishes),
        openmetrics_urls=tuple(dict.fromkeys(pages)),
        simulated_gpus=max(settings.simulate_gpus for settings in wishes),
    )
