"""A run that was asked to stop (`trainvitals.journal.stop_requests`): its processes get a SIGTERM, as from the alert
action `stop`, and a SIGKILL after `alerts.kill_after` if that is set."""

from __future__ import annotations

from trainvitals import runtime
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.run_account import RunAccount
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_files import RunLines
from trainvitals.alerts.actions import Means, Target, act
from trainvitals.journal.documents.rows import AlertRow, new_alert_row
from trainvitals.journal.documents.run import MONITOR, Origin
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.stop_requests import STOP_FILE, find_request, withdraw
from trainvitals.ownership import explain_foreign
from trainvitals.trackers.intake.keys import STATE_FILE

CLIENT_SECONDS = 60.0
"""How long the client of another tracker gets to stop its program in its own way: W&B's asks every 15 seconds."""


class Stopping:
    """Used by the thread of one run."""

    def __init__(self, context: RunContext, account: RunAccount, ranks: Ranks, lines: RunLines) -> None:
        self._context = context
        self._account = account
        self._ranks = ranks
        self._lines = lines
        self._seen: float | None = None
        """When the request that is being dealt with was made, in seconds since 1970."""
        self._due: float | None = None
        """When to send the signal, by the monotonic clock."""

    def look(self, now: float) -> None:
        """Do what was asked for, once for each request."""
        asked = find_request(self._context.folder)
        if asked is not None and asked != self._seen:
            self._seen = asked
            if asked >= (parse_time(self._account.file.started) or 0.0):  # else it was meant for an earlier attempt
                self._take(now)
        if self._due is not None and now >= self._due:
            self._due = None
            self._stop()

    def _take(self, now: float) -> None:
        folder = self._context.folder
        distrust = explain_foreign(folder) or explain_foreign(folder / STOP_FILE)
        if distrust is not None:
            self._write(f"a request to stop is ignored: another user may have made it, {distrust}", "warning")
        elif self._account.file.origin is not None:
            # The process that writes it is ours, not the training.
            self._write("asked to stop: its client is asked when it next reports")
        elif Origin.parse(runtime.read_json(folder / STATE_FILE, own=True)).tool == "wandb":
            self._write("asked to stop: W&B's client is asked when it next reports")
            self._due = now + CLIENT_SECONDS
        else:
            self._due = now

    def _stop(self) -> None:
        withdraw(self._context.folder)  # another agent must not send it again
        if self._account.read().has_ended(self._account.attempt):
            return  # the program goes on without the run, as a notebook does, or with another one
        watched = [rank.registration for rank in self._ranks.alive() if rank.registration.kind != MONITOR]
        # Of two registrations of one process only one signal.
        targets = {item.pid: Target(item.pid, item.pid_start, item.stack_signal) for item in watched}
        settings = self._context.settings
        means = Means(settings.alerts_kill_after, settings.alerts_checkpoint_signal)
        act("stop", new_alert_row(rule="stop"), "", list(targets.values()), means, self._record)

    def _record(self, row: AlertRow) -> None:
        self._write(f"asked to stop: {row.result}")

    def _write(self, message: str, severity: str = "info") -> None:
        self._lines.write_event("stop", message, severity=severity)
