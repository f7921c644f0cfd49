"""What an exporter of metric families gets, and what it gives back. Tested in tests/exporters/test_service.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prometheus_client.metrics_core import Metric

from trainvitals.exporters.families import FamilyOptions
from trainvitals.settings import Settings
from trainvitals.settings.secrets import read_secret


@dataclass(frozen=True, slots=True)
class Order:
    """One exporter to start."""

    target: str
    """Where to; a reference to a secret has been looked up."""
    settings: Settings
    """Of whoever asked for it."""
    collect: Callable[[FamilyOptions], list[Metric]]
    """All families as of now. Cheap: it never waits for hardware, a run or a disk."""
    host: str
    started: float
    """When this agent began, in seconds since 1970."""
    folder: Path
    """For what must outlive the agent; there may be nothing there yet."""
    warn: Callable[[str], None]
    """Trouble, once for each text: into the agent's log and as an event into the runs."""

    @property
    def options(self) -> FamilyOptions:
        """How the settings want names and units to be spelled."""
        return FamilyOptions(spelling="base" if self.settings.prometheus_names == "base" else "mb")

    @property
    def push_secret(self) -> str | None:
        """The token or password for pushes, looked up."""
        reference = self.settings.prometheus_push_token
        return None if reference is None else read_secret(reference)


class Output(Protocol):
    """A running exporter of families. Starts its own thread if it needs one."""

    def hurry(self) -> None:
        """A run has ended: its last values are there. Must not block."""

    def close(self) -> None:
        """End within a moment, with the last values where they are pushed."""
