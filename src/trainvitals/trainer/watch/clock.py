"""Where the time of a step goes: one line of time, cut into phases that add up to it by construction.

Nothing here knows a framework. Hooks, callbacks and loops say which phase begins and ends; `StepClock` keeps the marks
and adds them up when the step is over. The same marks may be kept a second time on a device's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import sub
from typing import Any, NamedTuple

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, OTHER, AFTER_DATA, AFTER_FORWARD, UNRELATED = range(9)
# What OTHER, AFTER_DATA and AFTER_FORWARD were is known only when the next phase begins: see `_settle`. UNRELATED is
# other time, whatever follows.

LOSS_AT_MOST = 3
"""Forwards that the time between a forward and its backward may take: a loop that takes longer does something else
there, such as loading the next batch."""
LOSS_AT_LEAST = 1_000_000
"""Nanoseconds below which it is never that: Python alone takes some."""

Mark = tuple[int, Any]


class StepTimes(NamedTuple):
    """Seconds of one step, to a tenth of a microsecond; the phases add up to `batch_time`."""

    batch_time: float
    data_time: float
    transfer_time: float
    forward_time: float
    backward_time: float
    optimizer_time: float
    other_time: float


class StepMarks(NamedTuple):
    """A finished step: what began when, on the host's clock and, where there is one, on the device's."""

    host: Sequence[Mark]
    host_end: int
    device: Sequence[Mark]
    device_end: Any
    moved: bool
    """The batch had to be copied to a device, so the time between batch and forward was the copy."""

    def whole(self) -> float:
        """Seconds of the step by the host's clock, as in `StepTimes`."""
        begin: int = self.host[0][1]
        return (self.host_end - begin) // 100 / 1e7

    def times(self) -> StepTimes:
        """By the host's clock."""
        return add_up(self.host, self.host_end, sub, self.moved)

    def device_times(self) -> StepTimes:
        """By the device's clock; only when all its events have happened."""
        return add_up(self.device, self.device_end, _event_nanoseconds, self.moved)


class StepClock:
    """Cuts time into steps and steps into phases.

    clock = StepClock()
    clock.begin_step()
    with clock.phase("forward"):
        ...
    times = clock.end_step().times()

    Phases nest: the inner one gets its time, the outer one the rest. What is in no phase is `other`.
    """

    def __init__(
        self,
        now: Callable[[], int] = time.perf_counter_ns,
        mark_device: Callable[[], Any] | None = None,
    ) -> None:
        """`now` in nanoseconds; `mark_device` records an event on a device's stream, or None if it cannot now."""
        self.now = now
        self.mark_device = mark_device
        self.moved = False
        self.slot = OTHER
        self._stack: list[int] = []
        self._gone = 0
        """Nanoseconds of this step that were left out."""
        self._marks: list[Mark] = [(OTHER, now())]
        self._device: list[Mark] = []
        if mark_device is not None:
            self._device.append((OTHER, mark_device()))

    @property
    def count(self) -> int:
        """Marks in this step: the same number means that nothing has begun or ended since."""
        return len(self._marks)

    def begin_step(self) -> None:
        """Start a step here: time since the end of the last one belongs to no step."""
        self.end_step()

    def end_step(self, *, trim: bool = False) -> StepMarks:
        """The step that ends here; the next one begins at the same moment. With `trim`, time in no phase at the end
        is left out: nothing comes after the last step that it could belong to."""
        now = self.now()
        event = None if self.mark_device is None else self.mark_device()
        host, end, device, device_end = self._marks, now, self._device, event
        while trim and len(host) > 1 and host[-1][0] >= OTHER:
            end, host = host[-1][1], host[:-1]
            if device:
                device_end, device = device[-1][1], device[:-1]
        done = StepMarks(host, end, device, device_end, self.moved)
        self._stack = []
        self._gone = 0
        self.slot = OTHER
        self.moved = False
        self._marks = [(OTHER, now)]
        self._device = [] if self.mark_device is None else [(OTHER, event)]
        return done

    def end_unmarked(self) -> StepMarks:
        """The step that ends here, in which no phase was entered, with as little code as possible."""
        if self.mark_device is not None or len(self._marks) > 1:
            return self.end_step()
        now, marks = self.now(), self._marks
        self._gone = 0
        self._marks = [(OTHER, now)]
        # What the class itself would call is a function of Python's.
        return tuple.__new__(StepMarks, (marks, now, (), None, False))

    def mark(self, moment: int) -> None:
        """What comes after this moment, which has passed, is in no phase."""
        self._marks.append((OTHER, moment))
        self._device = []

    def rejoin(self, step: StepMarks) -> None:
        """The step that ended last was not over."""
        self._marks = [*_later(step.host, self._gone), *self._marks]
        if step.device and self._device:
            self._device = [*step.device, *self._device]
        else:
            self._device = []
        self.moved |= step.moved

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Around work of ours that the program does not do, once, such as starting a run: it is in no phase."""
        began = self.now()
        try:
            yield
        finally:
            gone = self.now() - began
            self._gone += gone
            self._marks = _later(self._marks, gone)
            self._device = []

    def time_device(self, mark_device: Callable[[], Any] | None) -> None:
        """From the next step on, mark the phases on this device too, or on none."""
        self.mark_device = mark_device
        self._device = []

    def enter(self, slot: int) -> int:
        """Begin a phase inside the present one."""
        self._stack.append(self.slot)
        now = self.now()
        if slot == self.slot == OTHER:  # an evaluation, of any length
            return now
        self.slot = slot
        self._marks.append((slot, now))
        if self._device:
            self._mark_device(slot)
        return now

    def leave(self, after: int = OTHER) -> int:
        """End the phase entered last. What follows belongs to the phase around it, or to `after` outside of any."""
        outer = self._stack.pop() if self._stack else OTHER
        slot = outer if outer < OTHER else after
        now = self.now()
        if slot == self.slot == OTHER:
            return now
        self.slot = slot
        self._marks.append((slot, now))
        if self._device:
            self._mark_device(slot)
        return now

    def _mark_device(self, slot: int) -> None:
        assert self.mark_device is not None
        self._device.append((slot, self.mark_device()))

    def set_apart(self) -> None:
        """What has passed since the last phase has nothing to do with the one that begins now."""
        for marks in (self._marks, self._device):
            for place in range(len(marks) - 1, -1, -1):
                slot, moment = marks[place]
                if slot < OTHER:
                    break
                marks[place] = (UNRELATED, moment)

    def forget_nesting(self) -> None:
        """A phase was left by an exception that nobody told us: the present one is inside of none."""
        self._stack = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`with clock.phase("forward"):`, for a loop or callback that marks its phases itself."""
        self.enter(slot_of(name))
        try:
            yield
        finally:
            self.leave()


def _later(marks: Sequence[Mark], nanoseconds: int) -> list[Mark]:
    return [(slot, moment + nanoseconds) for slot, moment in marks]


def slot_of(name: str) -> int:
    """The slot of a phase's name."""
    if name not in PHASES:
        raise ValueError(f"phase '{name}' is not one of {', '.join(PHASES)}")
    return PHASES.index(name)


def add_up(marks: Sequence[Mark], end: Any, between: Callable[[Any, Any], int], moved: bool) -> StepTimes:
    """The time of each phase. `between(end, begin)` gives the nanoseconds from one moment to another."""
    sums = [0, 0, 0, 0, 0, 0]
    after = 0
    following = OTHER
    for slot, moment in reversed(marks):
        span = between(end, moment)
        phase = slot if slot < OTHER else _settle(slot, following, moved)
        sums[phase] += span
        if slot == AFTER_FORWARD and phase == FORWARD:
            after += span
        following = slot
        end = moment
    if after > LOSS_AT_LEAST and after > LOSS_AT_MOST * (sums[FORWARD] - after):
        sums[FORWARD] -= after
        sums[OTHER] += after
    data, transfer, forward, backward, optimizer, other = sums
    # Whole tenths of a microsecond: a quarter of the digits that nobody needs, for a line of every step.
    return StepTimes(
        sum(sums) // 100 / 1e7,
        data // 100 / 1e7,
        transfer // 100 / 1e7,
        forward // 100 / 1e7,
        backward // 100 / 1e7,
        optimizer // 100 / 1e7,
        other // 100 / 1e7,
    )


def _settle(slot: int, following: int, moved: bool) -> int:
    """Which phase the time between two phases belongs to."""
    if slot == UNRELATED:
        return OTHER
    if slot == AFTER_FORWARD:  # the loss, if a backward follows; else whatever the loop does next
        return FORWARD if following in (BACKWARD, FORWARD) else OTHER
    if slot == AFTER_DATA and following == FORWARD:
        return TRANSFER if moved else OTHER
    # A backward that no forward was seen before: a compiled model or a plain function was called in between.
    return FORWARD if following == BACKWARD else OTHER


def _event_nanoseconds(end: Any, begin: Any) -> int:
    return int(begin.elapsed_time(end) * 1e6)  # torch.cuda.Event and torch.xpu.Event count in milliseconds
