"""Ranks that come, step, stop stepping and go: what each of them does, as events of the run.
Tested in tests/agent/test_agent.py."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainvitals import runtime
from trainvitals.agent.exit_causes import ExitVerdict
from trainvitals.agent.liveness import WatchedRank, status_key
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.run_account import RunAccount
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_files import read_rank_events
from trainvitals.agent.run_parts import PIECE, RunParts
from trainvitals.journal import registrations
from trainvitals.journal.documents.events import ProcessEnd, ProcessEvent
from trainvitals.journal.documents.registration import RAY, Registration
from trainvitals.journal.documents.run import COMMAND, TRAINING
from trainvitals.journal.failures import explain_exit_code
from trainvitals.journal.identity import Participant

GOODBYE_SECONDS = 3.0
"""A process that lives on and logs nothing this long after the run was finished is left alone, as in a notebook."""


class RegistrationChange(NamedTuple):
    """The registration of a rank has come or gone."""

    what: Literal["join", "leave"]
    registration: Registration
    path: Path


class RankWatch:
    """Used by the thread of one run."""

    def __init__(self, context: RunContext, account: RunAccount, ranks: Ranks, parts: RunParts) -> None:
        self._context = context
        self._account = account
        self._ranks = ranks
        self._parts = parts
        self._lines = parts.lines
        self._known = parts.before.ranks
        self._written = read_rank_events(context.folder, context.host)
        self.has_news = False
        """A rank has come or gone: status.json is not to wait for its turn."""
        self._last_look: float | None = None

    # -- they come and go

    def take(self, changes: deque[RegistrationChange], now: float) -> None:
        """Take in which registrations have come and gone."""
        while changes:
            change = changes.popleft()
            registration = change.registration
            known = self._ranks.get(registration.participant, registration.kind)
            if change.what == "leave":
                if known is not None and known.is_alive and not known.is_over and not change.path.exists():
                    # A cleaner of temporary files removed it; the run continues.
                    registrations.register(known.registration)
            elif known is None or known.registration.pid != registration.pid:
                if registration.attempt > self._account.attempt:
                    self._begin_attempt(registration.attempt)
                if known is not None:
                    self._replace(known, registration)
                self._join(registration, change.path, now)
            elif known.registration.is_same(registration):
                # The client of a tracker was here first, and now the training itself; or one of them has ended.
                known.registration = registration
                self._parts.consoles.join(registration)

    def _begin_attempt(self, attempt: int) -> None:
        """A launcher started the ranks again in the same folder: the same run, another attempt."""
        self._account.begin_attempt(attempt)
        self._lines.begin_attempt(attempt)
        self._lines.write_event("attempt_started", f"attempt {attempt} started")

    def _replace(self, old: WatchedRank, new: Registration) -> None:
        if not old.is_over:
            message = f"{old.name} is now process {new.pid} (was {old.registration.pid})"
            self._lines.write_event(
                "rank_replaced", message, severity="warning", about=old.participant, data=ProcessEvent(pid=new.pid)
            )
        old.close()

    def _join(self, registration: Registration, path: Path, now: float) -> None:
        known = self._known.get(status_key(registration))
        if known is not None and known.pid != registration.pid:
            known = None
        rank = WatchedRank(registration, path, now, known)
        self._ranks.add(rank)
        if self._parts.before.is_over:
            return
        self._parts.consoles.join(registration)
        if registration.kind == TRAINING:
            training = [item.registration for item in self._ranks if item.registration.kind == TRAINING]
            # Ranks of a machine follow each other, so the lowest is known before it has registered.
            lowest = min(Participant(item.role, max(item.rank - item.local_rank, 0)) for item in training)
            self._parts.training_log.summarised = lowest
            self._parts.relay.ask_again()
            if known is not None:
                rank.progress.restore(known, self._parts.silence(registration.participant), now)
                rank.state = known.state or "running" if rank.is_alive else rank.state
        if ("rank_started", registration.participant, registration.pid) not in self._written:
            self._lines.write_event(
                "rank_started",
                f"{rank.name} is process {registration.pid} on {self._context.host}",
                about=registration.participant,
                data=ProcessEvent(pid=registration.pid, kind=registration.kind),
            )
        self.has_news = True

    # -- they step

    def follow(self, now: float, tick: float) -> bool:
        """Read a piece of what the ranks logged, for all who listen. False if the ranks have nothing new.

        `tick` is how long after the last look this one was due. On a busy machine or a slow disk it comes later, and
        that delay is ours: it is not to be learned as a pause of the training.
        """
        since = tick if self._last_look is None else max(tick, now - self._last_look)
        self._last_look = now
        self._parts.relay.poll(PIECE)
        found = self._parts.training_log.take_growth()
        for participant, growth in found.items():
            rank = self._ranks.get(participant)
            if rank is None:
                continue
            # What was logged before we came was not logged just now.
            silent = 0.0 if rank.progress.lines else self._parts.silence(participant)
            rank.grow(growth.lines, since, now, silent)
            rank.progress.step = growth.step if growth.step is not None else rank.progress.step
            rank.progress.last_log = growth.timestamp or rank.progress.last_log
        return bool(found)

    def look(self, now: float, ended: frozenset[int]) -> None:
        """Look at every process; `ended` are the pidfds whose end the kernel has reported."""
        for rank in self._ranks:
            self._look(rank, now, ended)
        self._parts.stalls.write_found()

    def _look(self, rank: WatchedRank, now: float, ended: frozenset[int]) -> None:
        was_over = rank.is_over
        memory = rank.look(now, ended)
        if memory == "group":
            message = f"the kernel's OOM killer killed a process in the cgroup of {rank.name}"
            self._lines.write_event("oom_kill", message, severity="warning", about=rank.participant)
        if was_over:
            return
        if rank.is_over:
            self._explain(rank)
            self._write_end(rank)
        elif rank.is_alive:
            self._judge_progress(rank, now)

    def _judge_progress(self, rank: WatchedRank, now: float) -> None:
        if self._account.has_ended and rank.registration.kind != COMMAND:
            silent = rank.progress.silence(now)
            # Other ranks may have lines to write still; a monitor writes none and waits for us.
            patience = GOODBYE_SECONDS if rank.registration.kind == TRAINING else 0.0
            ended_at = self._account.ended_at
            if ended_at is not None and min(silent, now - ended_at) >= patience:
                rank.said_goodbye = True
            return
        if rank.registration.kind == TRAINING and not (rank.registration.goodbye and rank.state == "running"):
            self._parts.stalls.judge(rank, now)

    # -- they end

    def _explain(self, rank: WatchedRank) -> None:
        """An exit code is less useful than its exception, which the rank or a program of the command wrote."""
        verdict = rank.verdict
        if verdict is None or verdict.status != "failed":
            return
        cause = None
        if rank.registration.kind == TRAINING:
            own = (item.cause for item in self._account.failures() if item.participant == rank.participant)
            cause = next(own, None)
        if cause is None and verdict.exit_code and rank.registration.world_size == 1:
            cause = explain_exit_code(self._context.folder, verdict.exit_code)
        if cause is not None:
            rank.verdict = replace(verdict, cause=cause)

    def _write_end(self, rank: WatchedRank) -> None:
        participant, verdict = rank.participant, rank.verdict
        if verdict is None or ("rank_ended", participant, rank.registration.pid) in self._written:
            return
        data = describe_verdict(verdict, pid=rank.registration.pid)
        # What it wrote of itself holds, but "finished", written at exit, does not hold against a bad exit status.
        leads = self._account.is_led_by(rank.registration)
        excused = self._account.has_ended and (leads or verdict.signal is None)
        tentative = leads and self._account.file.tentative and not (verdict.exit_code or verdict.signal)
        peaceful = verdict.status == "finished" or excused or tentative or self._goes_with_its_driver(rank)
        self._parts.alerting.see_end(rank, "finished" if peaceful else verdict.status, verdict.cause)
        if peaceful:
            self._lines.write_event("rank_ended", f"{rank.name} ended", about=participant, data=data)
        else:
            message = f"{rank.name} died: {verdict.cause}"
            self._lines.write_event("rank_lost", message, severity="critical", about=participant, data=data)
        self.has_news = True

    def _goes_with_its_driver(self, rank: WatchedRank) -> bool:
        """Whether Ray has killed it because the job is over."""
        if rank.registration.launcher != RAY:
            return False
        drivers = [item.registration for item in self._ranks.training() if item.registration.launcher != RAY]
        return any(not runtime.is_same_process(driver.pid, driver.pid_start) for driver in drivers)


def describe_verdict(verdict: ExitVerdict, **more: Any) -> ProcessEnd:
    """What an event keeps of it; `more` are other fields."""
    return ProcessEnd(exit_code=verdict.exit_code, signal=verdict.signal, reason=verdict.cause, **more)
