"""Finished steps on their way into the journal: added up and written when their numbers have come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trainvitals.handlers import is_from_handler
from trainvitals.trainer.row_values import MeasuredRow
from trainvitals.trainer.watch import batches
from trainvitals.trainer.watch.clock import StepMarks, StepTimes
from trainvitals.trainer.watch.device import DeviceTimer
from trainvitals.trainer.watch.iteration import Timing
from trainvitals.trainer.watch.measures import Part

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

PENDING_LIMIT = 1000
"""Steps that may wait for their device; beyond, a device that hangs would fill the memory."""
END_SECONDS = 5.0


class FinishedStep(NamedTuple):
    """A step that is over; some of its numbers may still be on the device."""

    number: int
    timing: Timing
    marks: StepMarks
    timer: DeviceTimer | None
    """Of the device whose clock counts, None for the host's."""
    values: dict[str, float]
    parts: Sequence[Part]
    shapes: Sequence[tuple[Any, Any]]
    cost: int
    """Nanoseconds that watching took."""
    with_data: bool = True
    """Batches were seen to come, so the time for them is known; else it is missing, not 0."""
    with_backward: bool = True
    """A backward was seen."""
    with_update: bool = True
    """A step of an optimizer was seen."""

    def is_ready(self) -> bool:
        if self.parts and not all(part.ready() for part in self.parts):
            return False
        return self.timer is None or self.timer.has_happened(self.marks)


def wall_offset() -> int:
    """The wall clock less the clock of the marks, in nanoseconds."""
    return time.time_ns() - time.perf_counter_ns()


class StepLines:
    """One line per step, in order."""

    def __init__(self, run: Run, tell: Callable[[str, str], None]) -> None:
        self.flops: float | None = None
        """Of one step, forward and backward, where known."""
        self.peak: float | None = None
        """FLOP/s that the card could do at most, where known."""
        self._run = run
        self._tell = tell
        self._pending: deque[FinishedStep | MeasuredRow] = deque()

    def add(self, step: FinishedStep) -> None:
        self._pending.append(step)

    def add_whole(self, number: int, values: dict[str, float], ended: int, cost: int) -> None:
        """A step whose numbers are all there; it ended so many nanoseconds after 1970."""
        values["watch_time"] = cost // 100 / 1e7
        self._pending.append(MeasuredRow(number, values, ended // 1000))

    def forget(self) -> None:
        """Write none of those that have been added."""
        self._pending.clear()

    def write_ready(self) -> None:
        """Write what has come; nothing is waited for."""
        pending, offset = self._pending, wall_offset()
        rows = []
        while pending:
            step = pending[0]
            ready = isinstance(step, MeasuredRow) or step.is_ready()
            if not ready and len(pending) <= PENDING_LIMIT:
                break
            pending.popleft()
            rows.append(step if isinstance(step, MeasuredRow) else self._make_row(step, ready, offset))
        self._run.write_rows(rows)

    def finish(self) -> None:
        """Wait a few seconds for what is still on the device, then write the rest without it."""
        deadline = time.monotonic() + END_SECONDS
        while self._pending and time.monotonic() < deadline:
            self.write_ready()
            if self._pending:
                time.sleep(0.005)
        offset = wall_offset()
        self._run.write_rows(
            [step if isinstance(step, MeasuredRow) else self._make_row(step, False, offset) for step in self._pending]
        )
        self._pending.clear()

    def _make_row(self, step: FinishedStep, ready: bool, offset: int) -> MeasuredRow:
        values = step.values
        if ready and step.timer is not None:
            self._add_times(values, step, step.marks.device_times())
            step.timer.recycle(step.marks)
        elif step.timing is Timing.WHOLE:
            values["batch_time"] = step.marks.whole()
        else:
            self._add_times(values, step, step.marks.times())
        values["watch_time"] = step.cost // 100 / 1e7
        if ready:
            for part in step.parts:
                values |= self._read(part)
        return MeasuredRow(step.number, values, (step.marks.host_end + offset) // 1000)

    def _add_times(self, values: dict[str, float], step: FinishedStep, times: StepTimes) -> None:
        if step.timing is Timing.WHOLE:
            values["batch_time"] = times.batch_time
        elif step.timing is Timing.PHASES:
            values.update(zip(StepTimes._fields, times, strict=True))
            if not step.with_data:
                del values["data_time"], values["transfer_time"]
            if not step.with_backward and not times.backward_time:
                del values["backward_time"]
            if not step.with_update and not times.optimizer_time:
                del values["optimizer_time"]
            if times.batch_time > 0:
                self._add_rates(values, step.shapes, times.batch_time)

    def _add_rates(self, values: dict[str, float], shapes: Sequence[tuple[Any, Any]], seconds: float) -> None:
        sizes = [batches.measure(*shape) for shape in shapes]
        samples, tokens = sum(size.samples for size in sizes), sum(size.tokens for size in sizes)
        if samples:
            values["throughput_samples_per_sec"] = samples / seconds
        if tokens:
            values["throughput_tokens_per_sec"] = tokens / seconds
        if self.flops:
            values["flops_per_sec"] = self.flops / seconds
            if self.peak:
                values["mfu_percent"] = 100 * self.flops / seconds / self.peak

    def _read(self, part: Part) -> dict[str, float]:
        try:
            return part.numbers()
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's loop: the rest of the line is kept.
            self._tell(type(part).__name__, f"{type(part).__name__} could not be read: {error!r:.300}")
            return {}
