"""A watched run as the exporters see it. Tested in tests/exporters/test_families.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.job import Job
from trainvitals.journal.identity import Participant
from trainvitals.newest import Value

KEEP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """A rule that fires, and of what."""

    rule: str
    severity: str
    labels: Mapping[str, Value] = field(default_factory=dict)


class GpuHolder(NamedTuple):
    """A process on a GPU, whether it is watched or not; or a container that was given the GPU and has no process on it
    that is known."""

    gpu: Mapping[str, Value]
    """The labels of the GPU, or of a slice of it."""
    pid: int | None = None
    user: str = ""
    command: str = ""
    job: Job = Job()
    run: str = ""
    participant: Participant = Participant()
    memory_mb: float | None = None
    sm_percent: float | None = None


@dataclass(frozen=True, slots=True)
class ShippingCounts:
    """What an agent ships to gateways."""

    requests: int = 0
    failures: int = 0
    sent_bytes: int = 0
    waiting_bytes: int = 0
    runs: int = 0
    behind_seconds: float = 0.0
    """Of the run that has been behind for the longest."""


class EndedAt(NamedTuple):
    """When a run ended, and why unless it finished."""

    time: float
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """One run that the agent watches."""

    run_id: str
    folder: Path
    project: str
    name: str
    state: str
    alerts: tuple[ActiveAlert, ...] = ()
    ended: EndedAt | None = None
    keep_seconds: float = KEEP_SECONDS
    """How long it is still shown after its end."""
    job: Job = field(default_factory=Job)
