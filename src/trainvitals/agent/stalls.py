"""A rank that stops stepping: reported once, with where it hangs, and again when it continues.
Tested in tests/agent/test_agent.py."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from trainvitals.agent.liveness import WatchedRank
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_files import RunLines
from trainvitals.agent.stacks import EXTRACT_FRAMES, Stacks, collect_stacks
from trainvitals.journal.documents.cause import STALLED, Cause
from trainvitals.journal.identity import Participant

GPU_STATE = (
    *("utilization_percent", "memory_used_mb", "power_draw_watts", "temperature_celsius"),
    *("throttle_reasons", "state"),
)


@dataclass(frozen=True, slots=True)
class Standstill:
    """What is known of a stall, once the stacks have been asked for."""

    rank: WatchedRank
    when: float
    data: dict[str, Any]
    stacks: Stacks


class Stalls:
    """Judges the progress of each rank of a run. `cause` is what is wrong now, None if nothing is."""

    def __init__(self, context: RunContext, lines: RunLines, cause: Cause | None) -> None:
        self.cause = cause
        self.causes: dict[Participant, Cause] = {}
        """Of each that has stopped stepping, once its stacks have been looked at."""
        self._folder = context.folder
        self._settings = context.settings
        self._lines = lines
        self._found: deque[Standstill] = deque()

    def judge(self, rank: WatchedRank, now: float) -> None:
        """Notice a change of state of a living training rank."""
        state = rank.progress.judge(now, self._settings.stall_after)
        message = f"{rank.name} is logging again at step {rank.progress.step}"
        if state != "running" and rank.waits_for_its_user():
            state = "running"
            rank.progress.ignore_pause()
            message = f"{rank.name} is no longer watched for stalls until a notebook cell logs again"
        if state == rank.state:
            return
        before, rank.state = rank.state, state
        silence = rank.progress.silence(now)
        if state == "running":
            self.causes.pop(rank.participant, None)
            self._lines.write_event("recovered", message, about=rank.participant, data={"was": before})
        elif before == "running":
            self._investigate(rank, silence)
        else:
            self._lines.write_event(
                "hung",
                f"{rank.name} has not logged for {silence:.0f} s",
                severity="critical",
                about=rank.participant,
                data={"process_state": rank.read_process_state(), "silent_seconds": silence},
            )

    def write_found(self) -> None:
        """Write the events of stalls whose stacks have arrived."""
        while self._found:
            found = self._found.popleft()
            place, data = self._describe(found)
            participant = found.rank.participant
            cause = Cause(kind=STALLED, seconds=data["silent_seconds"], detail=place).about(participant)
            if found.rank.state != "running":
                self.causes[participant] = cause
            self.cause = cause
            data["reason"] = cause.as_json()
            self._lines.write_event(
                "stalled", str(cause), severity="warning", about=participant, data=data, when=found.when
            )

    def _investigate(self, rank: WatchedRank, silence: float) -> None:
        """Collect where it hangs, outside the loop: requesting stacks takes seconds."""
        process = self._lines.processes.get(rank.participant)
        state = rank.read_process_state()
        if state == "stopped":
            rank.progress.ignore_pause()
        data: dict[str, Any] = {
            "silent_seconds": silence,
            "step": rank.progress.step,
            "step_seconds": rank.progress.step_seconds,
            "process_state": state,
            "process": dict(process.values) if process else None,
            "gpus": [
                {**gpu.labels, **{key: gpu.values[key] for key in GPU_STATE if key in gpu.values}}
                for gpu in self._lines.gpus.values()
            ],
        }
        when = time.time()

        def ask() -> None:
            stacks = Stacks()
            if self._settings.stack_dumps:
                try:
                    stacks = collect_stacks(rank.registration, rank.pidfd, state)
                except OSError as error:
                    stacks = Stacks(note=f"no stacks: {error}")
            self._found.append(Standstill(rank, when, data, stacks))

        threading.Thread(target=ask, name=f"stacks of {rank.name}", daemon=True).start()

    def _describe(self, found: Standstill) -> tuple[str, dict[str, Any]]:
        """In words where it is (empty if that is not known), and everything that was found."""
        data = {key: value for key, value in found.data.items() if value is not None}
        stacks = found.stacks
        place = ""
        if data.get("process_state") == "stopped":
            place = "the process is stopped (SIGSTOP, Ctrl-Z or a debugger)"
        else:
            place = stacks.describe()
        if stacks.path is not None:
            inside = stacks.path.is_relative_to(self._folder)
            data["stacks"] = str(stacks.path.relative_to(self._folder) if inside else stacks.path)
        if stacks.extract:
            data["main_thread"] = list(stacks.extract)
        if stacks.workers:
            data["workers"] = {str(pid): list(frames[:EXTRACT_FRAMES]) for pid, frames in stacks.workers.items()}
        if stacks.note:
            data["note"] = stacks.note
        return place, data
