"""Where an iteration of the user's loop begins and ends, judged from the little of it that can be seen.

Seen are a batch that is asked for, a training forward, a backward, and an update (a step of an optimizer, also one that
`GradScaler` skips). An iteration is over once it has updated something and the loop begins again:

| loop | an iteration ends at |
|---|---|
| one optimizer | the next batch or forward after its update |
| gradient accumulation | the same: the batches and forwards before the update belong to it |
| a step that `GradScaler` skips | the same: the attempt counts as the update |
| a closure (LBFGS) | the optimizer's next step, for the forwards are inside of it |
| several optimizers and a loader | the next batch after all of them, or before the first of them comes again |
| the same, once all have stepped with one batch | the next batch after any of them |
| several optimizers and no loader | the forward after all of them, or the one before the first of them comes again |
| an optimizer that steps only now and then | the same: the others come again without it |
| an optimizer of its own for each task or fold | the same, and before the first step of a new one |
| weights updated by hand, no optimizer anywhere | the next batch or forward after a backward |

Where another optimizer may still belong to it, an iteration is held back until the next update decides: the same
optimizer again begins a new one, another one joins the one held back. So the first iteration is as right as any other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from trainvitals.trainer.watch.clock import StepMarks
from trainvitals.trainer.watch.losses import Backward

if TYPE_CHECKING:
    from trainvitals.trainer.watch.measures import Collected

IDLE = 32
"""Iterations after which an optimizer that does not step is no longer waited for."""


class Timing(Enum):
    """What is known of the time that an iteration took."""

    NOTHING = 0
    """It was not seen from its beginning."""
    WHOLE = 1
    """Its time, not that of its phases."""
    PHASES = 2


@dataclass(slots=True)
class Iteration:
    """What was seen of one iteration."""

    timing: Timing = Timing.PHASES
    batches: int = 0
    forwards: int = 0
    shapes: list[tuple[Any, Any]] = field(default_factory=list)
    """(shape, type) of the tensor that tells the size of each batch."""
    sized_at: int = -1
    """Where forwards tell it: how many backwards there had been when the last one was added."""
    backwards: list[Backward] = field(default_factory=list)
    """Those that no update followed yet."""
    losses: dict[int, list[Backward]] = field(default_factory=dict)
    """By the id of the optimizer that stepped next."""
    trained: bool = False
    """A backward was seen."""
    is_new: bool = False
    """No update followed the last backward yet."""
    trainings: int = 0
    """Updates with a backward of their own."""
    clip_norm: float | None = None
    """What the norm of the gradients is clipped to."""
    updated: set[int] = field(default_factory=set)
    """Ids of the optimizers that stepped."""
    # Known at its end:
    number: int | None = None
    marks: StepMarks | None = None
    measured: Collected | None = None
    cost: int = 0
    """Nanoseconds that watching took."""

    @property
    def is_seen(self) -> bool:
        """A batch or a forward was seen, so the next one will be."""
        return bool(self.batches or self.forwards)

    def join(self, later: Iteration) -> None:
        """It was not over: go on with what has come since."""
        parts = self.batches or self.forwards
        with_batch = later.batches or not self.batches  # else it went on with the batch that was there
        self.backwards += [
            backward._replace(part=parts + backward.part if with_batch else parts) for backward in later.backwards
        ]
        self.batches += later.batches
        self.forwards += later.forwards
        self.shapes += later.shapes
        self.sized_at = later.sized_at
        self.trained |= later.trained
        self.is_new |= later.is_new
        self.trainings += later.trainings
        self.clip_norm = later.clip_norm or self.clip_norm

    @property
    def sizes(self) -> list[tuple[Any, Any]]:
        """Of its batches. Without a loader, and where several optimizers have a backward each, nobody knows which of
        their batches are the same one."""
        return self.shapes if self.batches or self.trainings < 2 else []

    def assign_losses(self, optimizer: int) -> None:
        """The backwards so far were for this optimizer."""
        self.trainings += self.is_new
        self.is_new = False
        if self.backwards:
            self.losses.setdefault(optimizer, []).extend(self.backwards)
            self.backwards = []


class Iterations:
    """Cuts what happens into iterations. `cut` ends the one under way at this moment; `rejoin` takes that back;
    `release` is given each that is over."""

    def __init__(
        self,
        cut: Callable[[Iteration], None],
        rejoin: Callable[[Iteration], None],
        release: Callable[[Iteration], None],
    ) -> None:
        self.current = Iteration(timing=Timing.NOTHING)
        self.by_hand = False
        """There is no optimizer: every backward is for an update that cannot be seen."""
        self._undecided = True
        self._cut, self._rejoin, self._release = cut, rejoin, release
        self._held: Iteration | None = None
        self._held_at_batch = False
        self._expected: dict[int, weakref.ref[Any]] = {}
        self._idle: dict[int, int] = {}
        self._stepping: set[int] = set()
        self._cycles: set[frozenset[int]] = set()
        self._batch_is_whole = False
        """All optimizers have stepped with one batch, so one that is left out with another is not to be waited for."""

    @property
    def several(self) -> bool:
        """More than one optimizer steps here; one that is only there does not count."""
        return len(self._stepping) > 1

    @property
    def single(self) -> weakref.ref[Any] | None:
        """The one optimizer that there is, if each of its steps ends an iteration, and nothing is undecided."""
        if self._held is not None or self._undecided or self.by_hand or len(self._expected) != 1:
            return None
        return next(iter(self._expected.values()))

    def expect(self, optimizers: Iterable[Any]) -> None:
        """These are there and may be about to step."""
        for optimizer in optimizers:
            self._expected[id(optimizer)] = weakref.ref(optimizer)
            self._idle[id(optimizer)] = 0

    def loop_begins_again(self, *, batch: bool) -> bool:
        """A batch is asked for, or a training forward begins: maybe the next iteration. Whether one ended here."""
        now = self.current
        if not now.updated and not (now.trained and (self.by_hand or self._undecided)):
            return False
        if now.batches and not batch and self.several:
            return False  # a loader says where iterations begin, and there are several forwards in one
        if self._held is not None:
            self._join_held()
            now = self.current
        self._cut(now)
        self.current = Iteration()
        self._held, self._held_at_batch = now, batch
        all_updated = now.updated.issuperset(self._waited_for())
        self._batch_is_whole |= batch and now.batches == 1 and all_updated and self.several
        if not self._undecided and (all_updated or (batch and self._batch_is_whole and now.updated)):
            self._release_held()
        return self._held is None

    def decide_by_hand(self) -> None:
        """Nothing here could step."""
        self.by_hand, self._undecided = True, False
        if self._held is not None:
            self._release_held()

    def update_begins(self, optimizer: Any) -> None:
        key = id(optimizer)
        self.by_hand = self._undecided = False
        known = self._expected.get(key)
        begins_anew = False
        if known is None or known() is not optimizer:  # an id is somebody else's once its owner is gone
            self.expect([optimizer])
            begins_anew = self.current.is_new
        held = self._held
        if held is None:
            now = self.current
            is_again = key in now.updated and not (now.batches and self.several)
            if (begins_anew and frozenset(now.updated) in self._cycles) or (is_again and now.is_new):
                self._end_unnoticed()
            elif is_again:
                self.end_here()
        elif (
            key in held.updated
            or (held.updated.isdisjoint(self._waited_for()) and held.updated)  # another one in place of those before
            or ((self._held_at_batch or begins_anew) and frozenset(held.updated) in self._cycles)
        ):
            self._release_held()
        else:
            self._join_held()

    def update_ends(self, optimizer: Any) -> None:
        self.current.updated.add(id(optimizer))
        self._stepping.add(id(optimizer))
        self.current.assign_losses(id(optimizer))

    def end_if_all_updated(self) -> None:
        if self.current.updated.issuperset(self._waited_for()):
            self.end_here()

    def end_here(self) -> None:
        """The iteration under way is over, whatever it has done."""
        if self._held is not None:
            self._join_held()
        now = self.current
        self._cut(now)
        self.current = Iteration()
        self._held = now
        self._release_held()

    def _end_unnoticed(self) -> None:
        """What came after the update is of a model that nobody saw being called: it is the next iteration, whose times
        nobody knows either."""
        now = self.current
        backwards, now.backwards = now.backwards, []
        accumulates = any(len({backward.part for backward in before}) > 1 for before in now.losses.values())
        now.timing = Timing.NOTHING
        self.end_here()
        self.current.timing = Timing.NOTHING
        self.current.trained = self.current.is_new = True
        self.current.backwards = [
            backward._replace(part=number if accumulates else 1) for number, backward in enumerate(backwards, 1)
        ]

    def finish(self) -> None:
        """The loop has ended, or was interrupted: an iteration that has updated nothing is dropped."""
        if self._held is not None and self._held.updated:
            self._release_held()
        elif self.current.updated or (self.by_hand and self.current.trained):
            self.end_here()
        self._held = None
        self.current = Iteration(timing=Timing.NOTHING)

    def _join_held(self) -> None:
        """What was held back is not over."""
        held, self._held = self._held, None
        assert held is not None
        self._rejoin(held)
        held.join(self.current)
        self.current = held

    def _release_held(self) -> None:
        held, self._held = self._held, None
        assert held is not None
        self._cycles.add(frozenset(held.updated))
        for key in list(self._expected):
            self._idle[key] += 1
            if self._idle[key] > IDLE or self._expected[key]() is None:
                del self._expected[key], self._idle[key]
                self._stepping.discard(key)
        for key in held.updated:
            if key in self._idle:
                self._idle[key] = 0
        self._release(held)

    def _waited_for(self) -> set[int]:
        return {key for key, optimizer in self._expected.items() if optimizer() is not None}
