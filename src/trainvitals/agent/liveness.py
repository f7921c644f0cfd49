"""Is a rank still there, and is it still stepping?

Time is CLOCK_MONOTONIC, which stops while a machine sleeps, so a training on a closed laptop has not stalled.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.agent import exit_causes
from trainvitals.agent.children import Children
from trainvitals.agent.exit_causes import ExitStatus, ExitVerdict, Suspects
from trainvitals.agent.idleness import Idleness
from trainvitals.agent.pidfds import open_pidfd
from trainvitals.journal import registrations
from trainvitals.journal.documents.cause import CUT_OFF, Cause
from trainvitals.journal.documents.registration import RAY, PhaseNote, Registration
from trainvitals.journal.documents.run import ENDED, TRAINING
from trainvitals.journal.documents.status import RankStatus
from trainvitals.journal.encoding import format_time
from trainvitals.journal.identity import Participant
from trainvitals.sources.procfs import read_stat

STALL_FACTOR = 10.0
"""A silence this many times as long as a usual pause is a stall, if it is also longer than `stall_after`."""
USUAL_SHARE = 0.9
"""A usual pause is one that this share of the recent ones do not exceed."""
IDLE_FACTOR = 1 / 3
"""Of a rank that does nothing at all, this share of `stall_after` is enough: 20 seconds of a minute, for a first
checkpoint or evaluation may well wait for a disk for ten."""
KNOWN_PAUSES = 3
"""Of a rank that went on after so many silences of `STALL_FACTOR` usual pauses, evaluations and checkpoints are known:
no more patience is needed while it computes. Until then a first evaluation may be longer than anything before."""
LONG_PAUSE = 5.0
"""Seconds; what is shorter tells nothing of how long an evaluation takes."""
SHORTEST_IDLE = 5.0
"""But not less than this many seconds, unless `stall_after` is shorter."""
START_FACTOR = 30.0
"""Before its second line, a rank that does nothing for this many times `stall_after` is stalled."""
HUNG_FACTOR = 5.0
"""A silence this many times as long as what makes a stall where nothing is known of pauses is a hang."""
PAUSE_FACTOR = 2.0
"""A silence this many times as long as the longest pause that ended by itself is more than another such pause."""
FIRST_PHASE_FACTOR = 3.0
"""A phase that has not ended before may take this many times `stall_after`: caches fill, kernels are compiled."""
LONGEST_LIMIT = 3600.0
"""However long pauses have been, no more than this many seconds of silence are taken for another one."""
REMEMBERED_STEPS = 64
POLL_SECONDS = 1.0
"""Seconds between two checks for the process where the kernel does not report its end."""
EXIT_STATUS_SECONDS = 1.5
"""How long a process that is gone is asked for its exit status: its parent may not have collected it yet."""
RAY_EXIT = ExitStatus(1, None)
"""How Ray ends its processes, by `ray.kill` and when their job is over: no exception, no Python exit."""
LOOK_SECONDS = 5.0
"""Seconds between two looks at the counters of the kernel's out-of-memory killer."""

_TO_MILLISECONDS = len("2026-11-15T22:36:01.123")


class RankProgress:
    """When a rank logged, and how long it usually takes between two steps."""

    def __init__(self, now: float) -> None:
        self.lines = 0
        self.step: int | None = None
        self.last_log: str | None = None
        self.longest_pause: float | None = None
        """The longest time between two lines after which the rank went on by itself: an evaluation, a checkpoint."""
        self.long_pauses = 0
        """After how many silences of `STALL_FACTOR` usual pauses, and of `LONG_PAUSE`, it went on."""
        self._last = now
        self._intervals: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._counts = True

    def restore(self, known: RankStatus, silent: float, now: float) -> None:
        """Go on from what an earlier agent knew; `silent` is for how long nothing has been logged."""
        self.lines = known.lines or 0
        self.step = known.step
        self.last_log = known.last_log
        self.longest_pause = known.longest_pause
        if known.step_seconds is not None:
            self._intervals.append(known.step_seconds)
        self._last = now - silent

    def grow(self, lines: int, gap_of_one_look: float, now: float, silent: float = 0.0) -> None:
        """`lines` were logged since the last look; the newest `silent` seconds ago.

        Lines that came within one look share its time; after a longer silence they came together, and the silence is
        what this rank's next silence is to be measured against.
        """
        gap = now - silent - self._last
        pause = gap if gap > 2 * gap_of_one_look else gap / lines
        if self.lines >= 2 and self._counts and pause > max(STALL_FACTOR * self.usual_pause, LONG_PAUSE):
            self.long_pauses += 1
        if self.lines and gap > 0 and self._counts:
            self._intervals.append(pause)
        if self.lines >= 2 and self._counts:  # what came before the second line was start-up, which comes once
            self.longest_pause = max(pause, self.longest_pause or 0.0)
        self._counts = True
        self.lines += lines
        self._last = max(self._last, now - silent) if self.lines > lines else now - silent

    @property
    def step_seconds(self) -> float | None:
        """Median time between two steps; None before the second."""
        return statistics.median(self._intervals) if self._intervals else None

    @property
    def usual_pause(self) -> float:
        """The longest of the usual times between two lines; 0 before the second."""
        ordered = sorted(self._intervals)
        return ordered[int(USUAL_SHARE * (len(ordered) - 1))] if ordered else 0.0

    @property
    def last_logged(self) -> float:
        """When the newest line was seen, or the rank itself before the first."""
        return self._last

    def silence(self, now: float) -> float:
        return now - self._last

    def ignore_pause(self) -> None:
        """The current silence is not a pause of the training itself: nothing is learned from its length."""
        self._counts = False

    def judge(self, now: float, stall_after: float, idle: float = 0.0, phase: PhaseNote | None = None) -> str:
        """`running`, `stalled` or `hung`; `idle` is for how many seconds of its silence it has done nothing at all.

        A rank that reports its phases is judged by how long each of them took before: its steps may take minutes, and
        it does nothing then but wait for others.
        """
        silence = self.silence(now)
        if phase is not None:
            silence = min(silence, now - phase.since)
        if phase is not None and phase.name:
            took = FIRST_PHASE_FACTOR * stall_after if phase.longest is None else PAUSE_FACTOR * phase.longest
            limit = max(took, stall_after)
            return "running" if silence <= limit else "hung" if silence > 2 * limit else "stalled"
        if self.lines < 2:  # start-up and compilation may take any time
            return "stalled" if min(silence, idle) > START_FACTOR * stall_after else "running"
        soon = idle_after(stall_after)
        is_idle = idle >= soon / 2  # else it may have been at work until just now
        is_known = self.long_pauses >= KNOWN_PAUSES
        usual = max(soon if is_idle or is_known else stall_after, STALL_FACTOR * self.usual_pause)
        limit = max(usual, min(PAUSE_FACTOR * (self.longest_pause or 0.0), LONGEST_LIMIT))
        if silence <= limit:
            return "running"
        return "hung" if silence > max(HUNG_FACTOR * usual, 2 * limit) else "stalled"


def idle_after(stall_after: float) -> float:
    """After how many seconds a rank that does nothing at all is stalled, where its pace is not slower than that."""
    return min(stall_after, max(SHORTEST_IDLE, IDLE_FACTOR * stall_after))


class WatchedRank:
    """One registered process."""

    def __init__(self, registration: Registration, path: Path, now: float, known: RankStatus | None) -> None:
        self.registration = registration
        self.path = path
        self.progress = RankProgress(now)
        self.state = "running"
        """running, stalled, hung while it lives; its verdict's status afterwards"""
        self.idle_when_stalled = math.inf
        """For how long it had done nothing when it was found to be stalled; of one that an earlier agent found, more
        than enough: it is stalled until it logs."""
        self.gpus: tuple[str, ...] = known.gpus if known is not None else ()
        """Those that it computed on when that was last known."""
        self.verdict: ExitVerdict | None = None
        self.said_goodbye = False
        self.gone_at: float | None = None
        self._next_look = now
        self._next_poll = now
        self.pidfd = open_pidfd(registration.pid)
        self.children = Children(registration.pid)
        self.idleness = Idleness(registration.pid)
        self.watched = runtime.is_same_process(registration.pid, registration.pid_start)
        """Whether it was alive when we came."""
        if not self.watched:
            self.gone_at = now
            self.close()  # at best a zombie, at worst another process with the same pid
        self.suspects = Suspects(
            registration.pid, exit_causes.parse_oom_counts(known.oom_kills if known is not None else None)
        )

    @property
    def participant(self) -> Participant:
        return self.registration.participant

    @property
    def status_key(self) -> str:
        """How it is called in status.json: its participant, with the kind where it is not a training."""
        return status_key(self.registration)

    @property
    def name(self) -> str:
        """In a sentence."""
        kind = self.registration.kind
        is_named = kind == TRAINING or not self.participant.is_trainer
        return self.participant.title if is_named else f"the {kind}"

    @property
    def is_over(self) -> bool:
        return self.verdict is not None or self.said_goodbye

    @property
    def is_alive(self) -> bool:
        return self.gone_at is None

    @property
    def pidfds(self) -> list[int]:
        """Its own and those of its children, while it lives."""
        own = [self.pidfd] if self.pidfd is not None else []
        return own + self.children.pidfds if self.is_alive else []

    def close(self) -> None:
        self.children.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def unregister(self) -> None:
        """Take its registration away unless another one has taken its place."""
        registrations.unregister(self.path, self.registration)

    def look(self, now: float, ended: frozenset[int]) -> str | None:
        """Notice its end, and then its verdict; `ended` are the pidfds the kernel has reported.

        Returns where the kernel killed for memory meanwhile, if it did.
        """
        if self.gone_at is None:
            self._notice_end(now, ended)
        if self.gone_at is None:
            self.children.look(now, ended)
            if now < self._next_look:
                return None
            self._next_look = now + LOOK_SECONDS
            return self.suspects.look()
        if self.verdict is None:
            self._settle(now)
        return None

    def _notice_end(self, now: float, ended: frozenset[int]) -> None:
        if self.pidfd is not None:
            if self.pidfd in ended:
                self.gone_at = now
        elif now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            if not runtime.is_same_process(self.registration.pid, self.registration.pid_start):
                self.gone_at = now

    def _settle(self, now: float) -> None:
        assert self.gone_at is not None
        status = exit_causes.read_exit_status(self.registration.pid, self.registration.pid_start, self.pidfd)
        if status is None and self.watched and now - self.gone_at < EXIT_STATUS_SECONDS:
            return
        is_in_ray = self.registration.launcher == RAY
        # Ray kills its processes, also those that are done, so how they were killed means little then.
        if (status is None or is_in_ray) and (goodbye := self._read_goodbye()):
            self.verdict = ExitVerdict(goodbye, None)
            self.state = goodbye
            return
        if is_in_ray and self._is_ended_by_ray(status):
            # A loop that had returned would have reported it. Nobody knows when the work of an actor is done.
            is_training = self.participant.is_trainer
            self.verdict = ExitVerdict("killed", Cause(kind=CUT_OFF)) if is_training else ExitVerdict("finished", None)
            self.state = self.verdict.status
            return
        self.verdict = exit_causes.judge(
            status,
            out_of_memory=self.suspects.out_of_memory(),
            out_of_cpu_time=self.suspects.out_of_cpu_time(),
            watched=self.watched,
            stalled=self.state if self.state in ("stalled", "hung") else None,
        )
        self.state = self.verdict.status

    def _is_ended_by_ray(self, status: ExitStatus | None) -> bool:
        """Whether Ray ended it, as it ends an actor that is no longer needed, and everything of a job that is over. An
        unknown status of an actor is taken for that, too: few kernels report it once Ray has collected it."""
        if status is None:
            return not self.participant.is_trainer and not self.suspects.out_of_memory()
        return status == RAY_EXIT

    def _read_goodbye(self) -> str | None:
        """The status that it reported at its end; None if it vanished without one."""
        found = Registration.read(self.path)
        is_ours = found is not None and self.registration.is_same(found)
        return found.goodbye if found is not None and is_ours and found.goodbye in ENDED else None

    def waits_for_its_user(self) -> bool:
        """In a notebook: no cell is being run, or the one that is has logged nothing yet and may take any time."""
        if self.registration.cell is None:
            return False
        found = Registration.read(self.path)
        cell = None if found is None else found.cell
        if cell is None:
            return False
        return not cell or (self.progress.last_log or "")[:_TO_MILLISECONDS] < cell[:_TO_MILLISECONDS]

    def grow(self, lines: int, gap_of_one_look: float, now: float, silent: float = 0.0) -> None:
        """`lines` were logged since the last look; the newest `silent` seconds ago."""
        if self.waits_for_its_user():  # until just now: the silence before a cell's first line is not the training's
            self.progress.ignore_pause()
        self.progress.grow(lines, gap_of_one_look, now, silent)

    def read_process_state(self) -> str | None:
        """running, sleeping, disk sleep, stopped ...; None where it cannot be read."""
        stat = read_stat("/proc", self.registration.pid)
        return stat.state if stat is not None else None

    def describe(self) -> RankStatus:
        """For status.json: what a reader wants to know, and what the next agent needs to continue."""
        progress, item = self.progress, self.registration
        return RankStatus(
            pid=item.pid,
            kind=item.kind,
            alive=self.is_alive,
            state=self.state,
            lines=progress.lines,
            step=progress.step,
            last_log=progress.last_log,
            **_describe_phase(item.phase),
            step_seconds=progress.step_seconds,
            longest_pause=progress.longest_pause,
            gpus=self.gpus,
            exit_code=self.verdict.exit_code if self.verdict else None,
            signal=self.verdict.signal if self.verdict else None,
            cause=self.verdict.cause if self.verdict else None,
            oom_kills=self.suspects.counts.as_json(),
        )


def _describe_phase(phase: PhaseNote | None) -> dict[str, Any]:
    if phase is None or not phase.name:
        return {}
    return {"phase": phase.name, "phase_since": format_time(time.time() - (time.monotonic() - phase.since))}


def status_key(registration: Registration) -> str:
    key, kind = str(registration.participant), registration.kind
    return key if kind == TRAINING else f"{kind}{key}"
