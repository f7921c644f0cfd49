"""What an exporter of metric families gets, and what it gives back. Tested in tests/exporters/test_service.py."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prometheus_client.metrics_core import Metric

from trainvitals import runtime
from trainvitals.certificates import ClientTls
from trainvitals.exporters.credentials import Credentials
from trainvitals.exporters.families import FamilyOptions
from trainvitals.ownership import user_name
from trainvitals.settings import Settings
from trainvitals.settings.secrets import read_inside, read_secret


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
    collect_endings: Callable[[FamilyOptions], list[Metric]] = lambda options: []
    """How runs ended: to be seen for a while after the agent has stopped."""

    read_target: Callable[[], str] | None = None
    """The target as it is now, where it is a reference: a password in it may be replaced. SettingError without it."""

    @property
    def options(self) -> FamilyOptions:
        """How the settings want names and units to be spelled."""
        return FamilyOptions(
            spelling="base" if self.settings.prometheus_names == "base" else "mb", host=self.settings.prometheus_host
        )

    @property
    def instance(self) -> str:
        """This agent, among all that push to one server: agents of several users, and of one user in several
        containers, are on one host."""
        place = runtime.runtime_dir()
        usual = place == runtime.usual_dir()
        mark = "" if usual else f":{hashlib.sha256(str(place).encode()).hexdigest()[:6]}"
        return f"{self.settings.prometheus_host or self.host}:{user_name(os.getuid())}{mark}"

    def make_credentials(self) -> Credentials:
        """For pushes. SettingError for what is not there."""
        settings = self.settings
        token = settings.prometheus_push_token
        tls = ClientTls(
            settings.prometheus_push_tls_certificate, settings.prometheus_push_tls_key, settings.prometheus_push_tls_ca
        )
        return Credentials(
            lambda: None if token is None else read_secret(token),
            lambda: {name: read_inside(text) for name, text in settings.prometheus_push_headers.items()},
            tls,
        )


class Output(Protocol):
    """A running exporter of families. Starts its own thread if it needs one."""

    def hurry(self) -> None:
        """A run has ended: its last values are there. Must not block."""

    def close(self) -> None:
        """End within a moment, with the last values where they are pushed."""
