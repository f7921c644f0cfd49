"""The alerts of a watched run, behind a guard: what goes wrong there is said once and harms nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.agent.causes import Verdict
from trainvitals.agent.liveness import Rank
from trainvitals.agent.log import BoundLog
from trainvitals.alerts.actions import Target
from trainvitals.alerts.watch import RunAlerts
from trainvitals.errors import SettingError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import BAD_ENDS, RunFile
from trainvitals.journal.documents.status import AlertStatus
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Positions
from trainvitals.settings import Settings
from trainvitals.sources import Sample

RANK_SECONDS = 1.0


class Alerting:
    """Nothing happens here with `alerts.enabled: false`, or after rules that cannot be used. A listener."""

    name = "alerts"

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        name: FileName,
        host: str,
        ranks: Callable[[], list[Rank]],
        holds: Callable[[Mapping[str, Any]], bool],
        tell: Callable[[str, str, str], None],
        log: BoundLog,
    ) -> None:
        """`holds` says whether the run holds the GPU with these labels."""
        self._log = log
        self._told: set[str] = set()
        self._ranks = ranks
        self._holds = holds
        self._next_ranks = 0.0
        self._ended: dict[int, tuple[str, Cause]] = {}
        self._alerts: RunAlerts | None = None
        self._place = (folder, settings, name, host)
        self._tell = tell

    def start(self, pid: int, judged: Positions) -> None:
        """Begin to judge. `pid` is a process of the run: it knows the environment that addresses may refer to;
        `judged` is how far an earlier agent has judged what was logged."""
        if self._place[1].alerts_enabled:
            self._guard(lambda: self._begin(pid))
            if self._alerts is not None:
                alerts = self._alerts
                self._guard(lambda: alerts.warm(judged))

    def _begin(self, pid: int) -> None:
        folder, settings, name, host = self._place
        run = run_folder.find_run(folder) or RunFile()
        about = {"run": folder.name, "project": run.project, "name": run.name, "host": host}
        try:
            self._alerts = RunAlerts(
                folder, settings, about, name=name, pid=pid, targets=self._targets, tell=self._tell
            )
        except SettingError as error:  # the run was told at its start; here it may be one of another version
            self._tell("alerts_off", f"no rule is judged: {error.message}", "warning")

    def _targets(self) -> list[Target]:
        return [
            Target(item.rank, item.pid, item.pid_start, item.stack_signal)
            for item in (rank.registration for rank in self._ranks() if rank.is_alive)
        ]

    # -- what happens

    @property
    def positions(self) -> Positions:
        return self._alerts.positions if self._alerts is not None else Positions()

    @property
    def acknowledged(self) -> Positions:
        return self.positions  # what was judged is known from the lines of the alerts

    def wants(self, file: FileName) -> bool:
        return self._alerts is not None and self._alerts.wants(file)

    def see(self, batch: Batch) -> None:
        if self._alerts is not None:
            alerts = self._alerts
            self._guard(lambda: alerts.see(batch))

    def see_sample(self, sample: Sample) -> None:
        if self._alerts is not None:
            alerts, values = self._alerts, sample.values
            if sample.table == "gpu":
                values = {**values, "held_by_run": float(self._holds(sample.labels))}
            self._guard(lambda: alerts.see_sample(sample.table, sample.labels, values, sample.time))

    def see_end(self, rank: Rank, status: str, cause: Cause | None) -> None:
        """A rank has ended, by this judgement of all that is known. Of `trainvitals monitor` that is no news."""
        if rank.registration.kind == "monitor":
            return
        self._ended[rank.registration.rank] = (status, cause or Cause(detail=f"{status}; nothing is known about why"))
        self._see_rank(rank, 0.0)

    def tick(self, now: float, stalls: Mapping[int, Cause]) -> None:
        """`stalls` are, by rank, the causes of those that have stopped stepping."""
        if self._alerts is None:
            return
        if now >= self._next_ranks:
            self._next_ranks = now + RANK_SECONDS
            for rank in self._ranks():
                if rank.is_alive and rank.registration.kind == "training":
                    self._see_rank(rank, now, stalls.get(rank.registration.rank))
        self._guard(self._alerts.tick)

    def _see_rank(self, rank: Rank, now: float, cause: Cause | None = None) -> None:
        if self._alerts is None:
            return
        alerts, item = self._alerts, rank.registration
        state, why = self._ended.get(item.rank, (rank.state, cause))
        silence = rank.progress.silence(now) if now else 0.0
        self._guard(lambda: alerts.see_rank(item.rank, state, why, silence, item.world_size))

    # -- the end

    def end(self, verdict: Verdict, ranks: Iterable[Rank]) -> None:
        """The run is over, in this way."""
        if self._alerts is None:
            return
        for rank in ranks:
            alone = rank.registration.world_size == 1
            known, _ = self._ended.get(rank.registration.rank, ("", None))
            if verdict.status in BAD_ENDS and alone and known not in BAD_ENDS:
                self.see_end(rank, verdict.status, verdict.cause)
        alerts, self._alerts = self._alerts, None
        self._guard(lambda: alerts.end(verdict.status))

    def leave(self) -> None:
        """The agent ends, the run goes on."""
        if self._alerts is not None:
            self._guard(self._alerts.leave)

    def active(self) -> tuple[AlertStatus, ...]:
        """What fires now."""
        return self._alerts.active() if self._alerts is not None else ()

    def firing(self) -> list[AlertRow]:
        """Everything that fires now, each with its labels."""
        return self._alerts.firing() if self._alerts is not None else []

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - alerts are a help: a fault in them must not end the watch
            text = f"{type(error).__name__}: {error}"
            if text not in self._told:
                import traceback

                self._told.add(text)
                self._log.error("judging alerts failed", error=text, traceback=traceback.format_exc())
