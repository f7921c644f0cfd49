"""The clock itself, with time that passes only when told to."""

from __future__ import annotations

import pytest

from trainvitals.trainer.watch.clock import (
    AFTER_DATA,
    AFTER_FORWARD,
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    StepClock,
)
from trainvitals.trainer.watch.device import DeviceTimer


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.nanoseconds = 1_000

    def __call__(self) -> int:
        return self.nanoseconds

    def move(self, seconds: float) -> None:
        self.nanoseconds += round(seconds * 1e9)


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_phases_nest_and_add_up_to_the_step(hand: Hand) -> None:
    clock = StepClock(hand)
    clock.begin_step()
    with clock.phase("forward"):
        hand.move(1)
        with clock.phase("data"):
            hand.move(2)
        hand.move(3)
    hand.move(4)
    times = clock.end_step().times()
    assert times._asdict() == {
        "batch_time": 10,
        "data_time": 2,
        "transfer_time": 0,
        "forward_time": 4,
        "backward_time": 0,
        "optimizer_time": 0,
        "other_time": 4,
    }


def test_a_step_begins_where_the_last_one_ended(hand: Hand) -> None:
    clock = StepClock(hand)
    hand.move(5)
    clock.begin_step()  # what was before belongs to no step
    hand.move(1)
    first = clock.end_step().times()
    hand.move(2)
    second = clock.end_step().times()
    assert (first.batch_time, second.batch_time) == (1, 2)


@pytest.mark.parametrize(
    ("then", "phase"), [(BACKWARD, "forward_time"), (FORWARD, "forward_time"), (OPTIMIZER, "other_time")]
)
def test_time_after_a_forward_is_the_loss_only_if_a_backward_follows(hand: Hand, then: int, phase: str) -> None:
    clock = StepClock(hand)
    clock.enter(FORWARD)
    hand.move(1)
    clock.leave(AFTER_FORWARD)
    hand.move(3)
    clock.enter(then)
    assert getattr(clock.end_step().times(), phase) == (4 if phase == "forward_time" else 3)


def test_time_after_a_forward_that_is_far_longer_than_it_is_not_the_loss(hand: Hand) -> None:
    clock = StepClock(hand)
    clock.enter(FORWARD)
    hand.move(0.004)
    clock.leave(AFTER_FORWARD)
    hand.move(0.08)  # the next batch is read from a slow disk
    clock.enter(BACKWARD)
    hand.move(0.01)
    clock.leave()
    times = clock.end_step().times()
    assert (times.forward_time, times.backward_time, times.other_time) == (0.004, 0.01, 0.08)


def test_time_that_is_set_apart_is_other_time_back_to_the_last_phase(hand: Hand) -> None:
    clock = StepClock(hand)
    clock.enter(FORWARD)
    hand.move(1)
    clock.leave(AFTER_FORWARD)
    hand.move(1)
    clock.enter(DATA)
    hand.move(1)
    clock.leave(AFTER_DATA)
    hand.move(1)
    clock.set_apart()
    clock.enter(BACKWARD)
    times = clock.end_step().times()
    assert (times.forward_time, times.data_time, times.other_time) == (1, 1, 2)


@pytest.mark.parametrize(("moved", "phase"), [(True, "transfer_time"), (False, "other_time")])
def test_time_between_batch_and_forward_is_the_copy_if_the_batch_had_to_move(
    hand: Hand, moved: bool, phase: str
) -> None:
    clock = StepClock(hand)
    clock.enter(DATA)
    clock.leave(AFTER_DATA)
    clock.moved = moved
    hand.move(2)
    clock.enter(FORWARD)
    assert getattr(clock.end_step().times(), phase) == 2


def test_a_backward_without_a_forward_was_preceded_by_one_that_nobody_saw(hand: Hand) -> None:
    clock = StepClock(hand)
    hand.move(2)
    clock.enter(BACKWARD)
    hand.move(1)
    clock.leave()
    times = clock.end_step().times()
    assert (times.forward_time, times.backward_time) == (2, 1)


def test_the_last_step_ends_with_its_optimizer_and_not_with_the_program(hand: Hand) -> None:
    clock = StepClock(hand)
    clock.enter(OPTIMIZER)
    hand.move(1)
    clock.leave()
    for _ in range(3):  # an evaluation
        hand.move(100)
        clock.enter(OTHER)
        hand.move(100)
        clock.leave()
    assert clock.end_step(trim=True).times().batch_time == 1


def test_leaving_more_often_than_entering_is_harmless(hand: Hand) -> None:
    clock = StepClock(hand)
    clock.leave()
    hand.move(1)
    assert clock.end_step().times().other_time == 1
    assert clock.slot == OTHER


def test_an_unknown_phase_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"'loading' is not one of data, transfer, .* other"),
        StepClock().phase("loading"),
    ):
        pass


# -- a device's own clock, played by a stand-in for torch.cuda.Event: no GPU is needed to know the order of calls


class Stream:
    """A device that works through what is queued when told to."""

    def __init__(self) -> None:
        self.queue: list[StandInEvent] = []
        self.milliseconds = 0.0
        self.made = 0

    def make(self) -> StandInEvent:
        self.made += 1
        return StandInEvent()

    def record(self, event: StandInEvent) -> None:
        event.at = None
        self.queue.append(event)

    def run(self, milliseconds: float, count: int = 1) -> None:
        """Work for a while, then reach the next events."""
        self.milliseconds += milliseconds
        for _ in range(count):
            self.queue.pop(0).at = self.milliseconds


class StandInEvent:
    at: float | None = None

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, end: StandInEvent) -> float:
        if self.at is None or end.at is None:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end.at - self.at

    def synchronize(self) -> None:
        raise AssertionError("the training would wait for the device")


def test_a_device_that_lags_behind_tells_its_own_times_later_and_is_never_waited_for(hand: Hand) -> None:
    stream = Stream()
    timer = DeviceTimer(stream.record, stream.make, lambda: False)
    clock = StepClock(hand, timer.mark)
    clock.enter(FORWARD)
    clock.leave()
    clock.enter(BACKWARD)
    clock.leave()
    hand.move(0.001)  # the host has queued everything within a millisecond
    step = clock.end_step()
    assert timer.is_complete(step)
    assert not timer.has_happened(step)
    stream.run(0)
    stream.run(10)  # reaches the begin of forward
    stream.run(20)
    stream.run(30)
    assert not timer.has_happened(step)
    stream.run(40)
    stream.run(0)
    assert timer.has_happened(step)
    times = step.device_times()
    assert (times.forward_time, times.backward_time, times.other_time) == (0.05, 0.04, 0.01)
    assert times.batch_time == 0.1
    assert step.times().batch_time == 0.001


def test_events_are_used_again_once_they_were_read(hand: Hand) -> None:
    stream = Stream()
    timer = DeviceTimer(stream.record, stream.make, lambda: False)
    clock = StepClock(hand, timer.mark)
    for _ in range(50):
        clock.enter(FORWARD)
        clock.leave()
        step = clock.end_step()
        stream.run(1, len(stream.queue))
        assert timer.has_happened(step)
        assert step.device_times().batch_time >= 0
        timer.recycle(step)
    assert stream.made < 10


def test_while_a_cuda_graph_is_captured_nothing_is_recorded_and_the_host_clock_counts(hand: Hand) -> None:
    stream = Stream()
    capturing = [False]
    timer = DeviceTimer(stream.record, stream.make, lambda: capturing[0])
    clock = StepClock(hand, timer.mark)
    capturing[0] = True
    clock.enter(FORWARD)
    capturing[0] = False
    clock.leave()
    assert not timer.is_complete(clock.end_step())
    clock.enter(FORWARD)
    clock.leave()
    assert timer.is_complete(clock.end_step())


def test_work_of_ours_is_left_out_of_the_phase_and_the_step_also_when_the_step_goes_on(hand: Hand) -> None:
    clock = StepClock(hand)
    clock.begin_step()
    with clock.phase("forward"):
        hand.move(1)
    begun = clock.end_step()
    with clock.phase("backward"):
        hand.move(2)
        with clock.left_out():
            hand.move(100)
        hand.move(3)
    clock.rejoin(begun)
    hand.move(4)
    times = clock.end_step().times()
    assert times._asdict() == {
        "batch_time": 10,
        "data_time": 0,
        "transfer_time": 0,
        "forward_time": 1,
        "backward_time": 5,
        "optimizer_time": 0,
        "other_time": 4,
    }
    hand.move(1)
    clock.rejoin(clock.end_step())
    assert clock.end_step().times().batch_time == 1
