"""The runs that an agent watches: begun when a process registers, let go when they are over, tried again when the watch
of one failed. Tested in tests/agent/test_agent.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainvitals import runtime
from trainvitals.agent.dead_runs import Backlog, Entry
from trainvitals.agent.log import BoundLog
from trainvitals.agent.roster import Roster
from trainvitals.agent.run import WatchedRun
from trainvitals.agent.run_context import AgentServices
from trainvitals.agent.run_settings import resolve_of_run
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration

RETRY_SECONDS = 10.0
"""After which a run whose watch failed is tried again; twice as long each time if its processes are dead."""
LONGEST_RETRY_SECONDS = 300.0
GIVE_UP_SECONDS = 1200.0
"""For how long it is tried to write down the end of a run whose processes are dead."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A run whose watch went wrong: since when, and how long until it is tried again."""

    since: float
    until: float
    pause: float


class Watches:
    """Runs by their folder, and the registrations that ask for them."""

    def __init__(self, folder: Path, machine: AgentServices, log: BoundLog, prepare: Callable[[], None]) -> None:
        """`folder` has the registrations; `prepare` is called before the first line of a new run is read."""
        self.runs: dict[str, WatchedRun] = {}
        self.idle_timeout: float | None = None
        """Of the run that ended last: for how long the agent waits for another."""
        self._machine = machine
        self._log = log
        self._prepare = prepare
        self._roster = Roster(folder, machine.host, log)
        self._backlog = Backlog(log)
        self._assigned: dict[Path, Registration] = {}
        self._failed: dict[str, Retry] = {}

    def __bool__(self) -> bool:
        """Whether there is one, or one is to come."""
        return bool(self.runs or self._assigned)

    @property
    def files(self) -> tuple[Path, ...]:
        """Of the registrations in use."""
        return tuple(self._assigned)

    def read_registrations(self) -> None:
        """Take in which processes have come and gone."""
        now = time.monotonic()
        retry = any(failure.until <= now and folder not in self.runs for folder, failure in self._failed.items())
        if not retry and not self._roster.has_changed():
            return
        found = self.find_registrations()
        for path, known in list(self._assigned.items()):
            if path not in found:
                del self._assigned[path]
                self._backlog.forget(path, known)
                if known.folder in self.runs:
                    self.runs[known.folder].leave_rank(known, path)
        new: dict[str, list[Entry]] = {}
        for path, registration in found.items():
            if self._assigned.get(path) != registration:
                self._assigned[path] = registration
                new.setdefault(registration.folder, []).append((path, registration))
        for folder, entries in new.items():
            if folder in self.runs or any(runtime.is_same_process(item.pid, item.pid_start) for _, item in entries):
                self._watch(folder, [*entries, *self._backlog.take(folder)])
            else:
                self._backlog.put(entries)

    def find_registrations(self) -> dict[Path, Registration]:
        """Those of this host whose watch has not failed just now."""
        now, found = time.monotonic(), self._roster.read()
        present = {item.folder for item in found.values()}
        self._failed = {folder: failure for folder, failure in self._failed.items() if folder in present}
        waiting = {folder for folder, failure in self._failed.items() if failure.until > now}
        return {path: item for path, item in found.items() if item.folder not in waiting}

    def close_past(self) -> None:
        """Runs that ended while no agent was there."""
        for entries in self._backlog.next(run.began for run in self.runs.values() if run.past):
            self._watch(entries[0][1].folder, entries)

    def _watch(self, folder: str, entries: list[Entry]) -> None:
        run = self.runs.get(folder)
        if run is not None and (run.over or run.finishing):
            for path, _ in entries:
                del self._assigned[path]
            self._roster.look_again()  # when it is out of the way
            return
        known = run
        if run is None:
            first = entries[0][1]
            run = self.runs[folder] = WatchedRun(first, resolve_of_run(first, self._log), self._machine, self._log)
        for path, registration in entries:
            run.join_rank(registration, path)
        if known is None:
            self._prepare()
            run.start()

    def forget_over(self) -> None:
        """Let go of the runs that have ended, or whose watch failed."""
        for folder, run in list(self.runs.items()):
            if run.over and not run.is_alive:
                self.idle_timeout = run.settings.agent_idle_timeout
                del self.runs[folder]
                entries = [(path, known) for path, known in self._assigned.items() if known.folder == folder]
                for path, _ in entries:
                    del self._assigned[path]
                if run.failed:
                    self._fail(run, entries)
                else:
                    self._failed.pop(folder, None)
                self._roster.look_again()

    def _fail(self, run: WatchedRun, entries: list[Entry]) -> None:
        """Try again later; give up in the end where nothing lives that could be missed."""
        folder, now = str(run.folder), time.monotonic()
        before = self._failed.get(folder)
        since, pause = (before.since, before.pause) if before else (now, RETRY_SECONDS)
        if run.past and now - since > GIVE_UP_SECONDS:
            self._log.warning("giving up writing the end of a run", folder=folder)
            self._failed.pop(folder, None)
            for path, registration in entries:
                registrations.unregister(path, registration)
            return
        longer = min(2 * pause, LONGEST_RETRY_SECONDS) if run.past else RETRY_SECONDS
        self._failed[folder] = Retry(since, now + pause, longer)
