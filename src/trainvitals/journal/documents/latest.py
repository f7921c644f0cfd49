"""latest.json and agent.json of the runtime folder: the newest samples, and what the agent is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainvitals import runtime
from trainvitals.journal.documents.fields import (
    Document,
    document,
    entry,
    finite,
    flag,
    list_of,
    mapping,
    mapping_of,
    text,
    whole,
)
from trainvitals.journal.documents.status import RankStatus
from trainvitals.journal.encoding import parse_time

CURRENT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile(Document):
    """What an agent reports about itself."""

    pid: int | None = entry(whole, None)
    start: float | None = entry(finite, None)
    started: str | None = entry(text, None)
    version: str = entry(text, "")
    host: str = entry(text, "")
    log: str | None = entry(text, None)
    keep: bool = entry(flag, False)
    """It stays when there is no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestSample(Document):
    """The newest values of one thing that is measured."""

    source: str = entry(text, "")
    table: str = entry(text, "")
    time: str | None = entry(text, None)
    age: float | None = entry(finite, None)
    """Seconds since it was read, when the file was written."""
    labels: Mapping[str, Any] = entry(mapping, {})
    values: Mapping[str, Any] = entry(mapping, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRun(Document):
    """A run that the agent watches."""

    run_id: str = entry(text, "")
    folder: str = entry(text, "")
    attempt: int = entry(whole, 1)
    state: str = entry(text, "running")
    ranks: Mapping[str, RankStatus] = entry(mapping_of(document(RankStatus)), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth(Document):
    """How one unit of a source is doing."""

    source: str = entry(text, "")
    up: bool | None = entry(flag, None)
    age: float | None = entry(finite, None)
    """Seconds since the newest good reading began; None if there was none."""
    duration: float | None = entry(finite, None)
    errors: int = entry(whole, 0)
    skipped: int = entry(whole, 0)
    reason: str | None = entry(text, None)

    def values(self) -> dict[str, float]:
        """By the names of the catalog's `source` table; unknown values are missing."""
        found = {
            "source_up": None if self.up is None else int(self.up),
            "source_age_seconds": self.age,
            "source_duration_seconds": self.duration,
            "source_errors_total": self.errors,
            "source_skipped_total": self.skipped,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Document):
    """latest.json."""

    written: str | None = entry(text, None)
    agent: AgentFile = entry(document(AgentFile), AgentFile())
    samples: Mapping[str, LatestSample] = entry(mapping_of(document(LatestSample)), {})
    runs: tuple[LatestRun, ...] = entry(list_of(document(LatestRun)), ())
    sources: Mapping[str, SourceHealth] = entry(mapping_of(document(SourceHealth)), {})
    """By unit."""
    states: Mapping[str, Any] = entry(mapping, {})

    def age(self, now: float) -> float:
        """Seconds since it was written; negative where the clock was set back."""
        written = parse_time(self.written)
        return now - written if written is not None else math.inf

    def is_current(self, now: float, interval: float) -> bool:
        """Whether its agent still writes it: one that does not for some intervals is as good as absent."""
        return abs(self.age(now)) <= max(CURRENT_SECONDS, 3 * interval)

    def of_table(self, table: str) -> Iterable[LatestSample]:
        return (sample for sample in self.samples.values() if sample.table == table)


def read_agent() -> AgentFile | None:
    """What the running agent reports about itself; None if there is none. Empty while it starts or stops."""
    return AgentFile.parse(runtime.read_agent_file()) if runtime.agent_is_alive() else None


def read_latest(agent: AgentFile | None = None) -> Latest | None:
    """The newest samples, however old (`written`); with `agent` only those of that agent."""
    found = runtime.read_json(runtime.runtime_dir() / "latest.json")
    latest = Latest.parse(found) if found is not None else None
    return latest if latest is None or agent is None or latest.agent.pid == agent.pid else None
