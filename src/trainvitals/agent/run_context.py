"""What every part of a watched run needs to know, and what it may ask of the agent."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import runtime
from trainvitals.agent.log import BoundLog
from trainvitals.agent.sealing import Sealer
from trainvitals.agent.wanted import find_pages
from trainvitals.alerts.environment import process_environment
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.layout import FileName
from trainvitals.settings import Settings

if TYPE_CHECKING:
    from trainvitals.agent.late_exports import LateExports
    from trainvitals.agent.shipping import Shipping


@dataclass(frozen=True, slots=True)
class AgentServices:
    """What a run may ask the agent for."""

    host: str
    describe: Callable[[], Mapping[str, Any]]
    health: Callable[[], Mapping[str, SourceHealth]]
    gpu_users: Callable[[], Mapping[str, Iterable[int]]]
    """The processes on each GPU, by the key of its unit."""
    sealer: Sealer
    late_exports: LateExports
    shipping: Shipping


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run on this machine. What changes about it is not here."""

    run_id: str
    folder: Path
    settings: Settings
    correlation_id: str
    machine: AgentServices
    has_many_hosts: bool
    log: BoundLog
    openmetrics_urls: tuple[str, ...] = field(default=(), repr=False)
    """Metrics pages to scrape, with the passwords that may be in them."""

    @classmethod
    def of(cls, first: Registration, settings: Settings, machine: AgentServices, log: BoundLog) -> RunContext:
        """From the registration of any of its ranks."""
        correlation_id = first.correlation_id or secrets.token_hex(16)
        bound = log.bind(run_id=first.run_id, attempt=first.attempt, correlation_id=correlation_id)
        pages: tuple[str, ...] = ()
        if settings.openmetrics:
            pages = find_pages(settings, process_environment(first.pid), bound.warning)
        return cls(
            run_id=first.run_id,
            folder=Path(first.folder),
            settings=settings,
            correlation_id=correlation_id,
            machine=machine,
            has_many_hosts=first.world_size > first.local_world_size,
            log=bound,
            openmetrics_urls=pages,
        )

    def look_into_folder(self, first: Registration) -> RunContext:
        """The same with what only the folder has, which may be on a file server that does not respond."""
        return replace(self, has_many_hosts=self._needs_host_in_names(first))

    def _needs_host_in_names(self, first: Registration) -> bool:
        """Whether agents of other hosts write into the folder, too. The world size of a role does not show where others
        are; there the host that leads the run writes without its name."""
        written = Status.parse(runtime.read_json(self.folder / layout.STATUS_FILE))
        if (written.host, written.attempt) == (self.host, first.attempt):
            return False  # as the agent before this one did
        if first.participant.is_trainer:
            return self.has_many_hosts
        run = run_folder.find_run(self.folder) or RunFile()
        return run.process.host not in ("", self.host)

    @property
    def host(self) -> str:
        return self.machine.host

    @property
    def host_token(self) -> str | None:
        """How this host is called in file names; None where the whole run is on one host."""
        return layout.host_token(self.host) if self.has_many_hosts else None

    def file_name(self, table: str, attempt: int) -> FileName:
        """Of a file that the agent writes."""
        return FileName(table, attempt, "", host=self.host_token)
