"""A run that stops stepping: each rank is reported once, with where it hangs and for whom it waits, and again when it
continues. Tested in tests/agent/test_stalls.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainvitals.agent.flight_records import find_record
from trainvitals.agent.gpu_holding import GpuHolding
from trainvitals.agent.liveness import WatchedRank
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_files import RunLines
from trainvitals.agent.stacks import EXTRACT_FRAMES, Stacks, collect_stacks
from trainvitals.alerts.environment import read_environment
from trainvitals.analysis.frames import find_collective, find_odd
from trainvitals.journal.documents.cause import STALLED, Cause
from trainvitals.journal.documents.events import Recovery, Stall
from trainvitals.journal.identity import Participant

GPU_STATE = (
    *("utilization_percent", "memory_used_mb", "power_draw_watts", "temperature_celsius"),
    *("throttle_reasons", "state"),
)
BUSY_GPU_PERCENT = 5.0
"""A rank whose GPU is used more than this is not idle."""
QUIET_SECONDS = 1.0
"""A rank that logged less than this long ago is not measured."""
GATHER_SECONDS = 1.0
"""After the first rank of a run stalls, the others that wait for the same have this long to be noticed too."""
KEPT_FRAMES = 24
"""Of each main thread in an event: enough to reach the program's own lines below those of libraries."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A rank that was found to be stalled or hung, before its stacks were looked at."""

    rank: WatchedRank
    state: str
    when: float
    data: Stall


class Stalls:
    """Judges the progress of each rank of a run. `cause` is what is wrong now, None if nothing is."""

    def __init__(
        self, context: RunContext, lines: RunLines, ranks: Ranks, holding: GpuHolding, cause: Cause | None
    ) -> None:
        self.cause = cause
        self.causes: dict[Participant, Cause] = {}
        """Of each that has stopped stepping, once its stacks have been looked at."""
        self._folder = context.folder
        self._settings = context.settings
        self._lines = lines
        self._ranks = ranks
        self._holding = holding
        self._noted: list[Standstill] = []
        self._search: threading.Thread | None = None
        self._searched_for = "stalled"
        self._stacks: Mapping[Participant, Stacks] = {}
        """Of every rank on this machine, as the last search found them."""
        self._records: tuple[str, ...] = ()

    def judge(self, rank: WatchedRank, now: float) -> None:
        """Notice a change of state of a living training rank."""
        idle = rank.idle_when_stalled if rank.state != "running" else self._measure_idleness(rank, now)
        state = rank.progress.judge(now, self._settings.stall_after, idle, rank.registration.phase)
        message = f"{rank.name} is logging again at step {rank.progress.step}"
        if (phase := rank.registration.phase) is not None and phase.since > rank.progress.last_logged:
            message = f"{rank.name} goes on: {f'it is in {phase.name} now' if phase.name else 'the phase is over'}"
        if state != "running" and rank.waits_for_its_user():
            state = "running"
            rank.progress.ignore_pause()
            message = f"{rank.name} is no longer watched for stalls until a notebook cell logs again"
        if state == "hung" and rank.state == "running":
            state = "stalled"  # where it stopped is reported first, also by an agent that looks late
        if state == rank.state:
            return
        before, rank.state = rank.state, state
        if state == "running":
            self.causes.pop(rank.participant, None)
            self._lines.write_event("recovered", message, about=rank.participant, data=Recovery(was=before))
            return
        if before == "running":
            rank.idle_when_stalled = idle
        self._noted.append(Standstill(rank, state, time.time(), self._describe_rank(rank, state, now)))
        if self._search is None:
            self._begin_search(state)

    def write_found(self) -> None:
        """Write the events of those that were noted, once their stacks have been read."""
        if self._search is None or self._search.is_alive():
            return
        self._search = None
        # The stacks of a rank that was found to hang meanwhile may have to be asked for in another way.
        states = ("stalled", "hung") if self._searched_for == "hung" else ("stalled",)
        ready = [item for item in self._noted if item.state in states]
        self._noted = [item for item in self._noted if item.state not in states]
        if ready:
            self._write_all(ready)
        if self._noted:
            self._begin_search("hung")

    # -- noticing

    def _measure_idleness(self, rank: WatchedRank, now: float) -> float:
        """For how long the rank has done nothing at all."""
        others = (item.progress.lines for item in self._ranks.training() if item is not rank)
        logs_nothing = rank.progress.lines < 2 and any(lines >= 2 for lines in others)
        if logs_nothing or rank.progress.silence(now) < QUIET_SECONDS or self._has_busy_gpu():
            rank.idleness.reset()
            return 0.0
        return rank.idleness.measure(now)

    def _has_busy_gpu(self) -> bool:
        return any(
            isinstance(used := gpu.values.get("utilization_percent"), (int, float))
            and used > BUSY_GPU_PERCENT
            and self._holding.holds(gpu.labels)
            for gpu in self._lines.gpus.values()
        )

    def _describe_rank(self, rank: WatchedRank, state: str, now: float) -> Stall:
        process_state = rank.read_process_state()
        if process_state == "stopped":
            rank.progress.ignore_pause()
        deaths = rank.children.deaths_since(rank.progress.last_logged)
        phase = rank.registration.phase
        if phase is not None and not phase.name:
            phase = None
        found = Stall(
            silent_seconds=rank.progress.silence(now),
            process_state=process_state,
            phase=phase.name if phase is not None else None,
            phase_seconds=now - phase.since if phase is not None else None,
            phase_longest=phase.longest if phase is not None else None,
            dead_children=tuple(death.describe(rank.progress.last_logged) for death in deaths) or None,
        )
        if state != "stalled":
            return found
        process = self._lines.processes.get(rank.participant)
        return replace(
            found,
            step=rank.progress.step,
            step_seconds=rank.progress.step_seconds,
            process=dict(process.values) if process else None,
            gpus=tuple(
                {**gpu.labels, **{key: gpu.values[key] for key in GPU_STATE if key in gpu.values}}
                for gpu in self._lines.gpus.values()
            ),
        )

    # -- where they are: beside the loop, for reading stacks takes seconds

    def _begin_search(self, state: str) -> None:
        self._searched_for = state
        self._search = threading.Thread(target=self._collect, args=(state == "hung",), name="stacks", daemon=True)
        self._search.start()

    def _collect(self, is_hung: bool) -> None:
        """Read the stacks of all ranks: the one for which the others wait may log nothing and not be noticed itself."""
        time.sleep(GATHER_SECONDS)
        found, records = {}, []
        for rank in self._ranks.training():
            if not rank.is_alive:
                continue
            logged = time.time() - rank.progress.silence(time.monotonic())
            records.append(find_record(read_environment(rank.registration.pid), rank.participant.rank, logged))
            if not self._settings.stack_dumps:
                continue
            # Another rank of the run may be well, and must not be interrupted.
            may_signal = is_hung and rank.state == "hung" and self._settings.hang_signal
            try:
                found[rank.participant] = collect_stacks(
                    rank.registration, rank.pidfd, rank.read_process_state(), may_signal=may_signal
                )
            except OSError as error:
                found[rank.participant] = Stacks(note=f"no stacks: {error}")
        self._stacks = found
        self._records = tuple(record for record in records if record is not None)

    # -- what is written

    def _write_all(self, noted: Sequence[Standstill]) -> None:
        odd = find_odd({participant: stacks.frames for participant, stacks in self._stacks.items()})
        for item in noted:
            self._write(item, odd)
        known = [self.causes[who] for who in odd if who in self.causes]
        if odd and not known:  # it logs nothing, so that its silence was not noticed
            seconds = max(item.data.silent_seconds or 0.0 for item in noted)
            known = [Cause(kind=STALLED, seconds=seconds, detail=self._explain(odd[0], odd)).about(odd[0])]
        self.cause = known[0] if known else self.causes.get(noted[0].rank.participant, self.cause)

    def _write(self, item: Standstill, odd: tuple[Participant, ...]) -> None:
        rank, participant = item.rank, item.rank.participant
        stacks = self._stacks.get(participant, Stacks())
        data = item.data
        parts = [*(data.dead_children or ()), _describe_phase(data), self._explain(participant, odd)]
        place = "; ".join(filter(None, parts))
        if data.process_state == "stopped":
            place = "the process is stopped (SIGSTOP, Ctrl-Z or a debugger)"
        cause = Cause(kind=STALLED, seconds=data.silent_seconds, detail=place).about(participant)
        if item.state == "hung" and not place:
            cause = self.causes.get(participant, cause)
        if rank.state != "running":
            self.causes[participant] = cause
        data = replace(data, reason=cause)
        if item.state == "stalled" or stacks.frames:
            data = self._add_stacks(data, stacks)
        self._lines.write_event(
            item.state,
            str(cause)
            if item.state == "stalled"
            else f"{rank.name} has not logged for {data.silent_seconds or 0.0:.0f} s",
            severity="warning" if item.state == "stalled" else "critical",
            about=participant,
            data=data,
            when=item.when,
        )

    def _explain(self, participant: Participant, odd: tuple[Participant, ...]) -> str:
        """Where it is, and who waits for whom; empty if that is not known."""
        stacks = self._stacks.get(participant, Stacks())
        if not odd:
            return stacks.describe()
        if participant in odd:
            waiting = [who for who, other in sorted(self._stacks.items()) if other.frames and who not in odd]
            return f"{stacks.describe()}; {', '.join(who.title for who in waiting)} waiting for it"
        operation = find_collective(stacks.frames)
        names = ", ".join(who.title for who in odd)
        return f"it waits{f' in {operation}' if operation else ''} for {names}: {self._stacks[odd[0]].describe()}"

    def _add_stacks(self, data: Stall, stacks: Stacks) -> Stall:
        """With what an event keeps of them."""
        path = stacks.path
        if path is not None and path.is_relative_to(self._folder):
            path = path.relative_to(self._folder)
        threads = {str(who): item.frames[:KEPT_FRAMES] for who, item in self._stacks.items() if item.frames}
        return replace(
            data,
            stacks=str(path) if path is not None else None,
            main_thread=tuple(stacks.extract) or None,
            main_threads=threads or None,
            workers={str(pid): tuple(frames[:EXTRACT_FRAMES]) for pid, frames in stacks.workers.items()} or None,
            note=stacks.note or None,
            flight_records=self._records or None,
        )


def _describe_phase(data: Stall) -> str:
    """In which phase it is, for how long, and how long that took before; empty where the framework reports none."""
    if data.phase is None:
        return ""
    before = f" (at most {data.phase_longest:.3g} s before)" if data.phase_longest is not None else ""
    return f"in {data.phase} for {data.phase_seconds or 0.0:.0f} s{before}"
