"""A watched run as the exporters see it. Tested in tests/exporters/test_families.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainvitals.newest import Value


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """A rule that fires, and of what."""

    rule: str
    severity: str
    labels: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run that the agent watches."""

    run_id: str
    folder: Path
    project: str
    name: str
    state: str
    alerts: tuple[ActiveAlert, ...] = ()
