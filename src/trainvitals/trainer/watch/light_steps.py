"""Short steps without their phases: their time, loss, learning rate and the norm that the training itself computes.

To follow a loop through its phases takes some 0.1 ms per step, which a step of 2 ms notices. So once the phases have
had their share of the time (`budget_percent`), steps are only counted until they may be measured again: `LightSteps`
takes the place of `Moments` among the listeners, looks only at what every step needs, and gives the loop back where a
step begins. Its steps begin and end at the same moments as those of `Moments`.

Only a loop whose steps are all alike is followed so: one optimizer, no closure. Anything else that happens, such as a
second optimizer, gives the loop back at once.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from trainvitals.trainer.watch import discovery, taps
from trainvitals.trainer.watch.clock import StepMarks
from trainvitals.trainer.watch.iteration import Iteration, Timing
from trainvitals.trainer.watch.losses import Backward

if TYPE_CHECKING:
    from trainvitals.trainer.watch.moments import Moments, Observer

CALLS_COST = 5_000
"""Nanoseconds of a step that its own clocks do not see: calls of our functions, and torch's of our hooks. Measured with
warm caches and a model of 13 modules; more where other things have pushed us out of the caches."""

_now = time.perf_counter_ns


class LightStep(NamedTuple):
    """A step that is over."""

    number: int
    marks: StepMarks
    """Without phases."""
    epoch: int | None
    learning_rate: Any
    loss: float | None
    """Of the only backward, if it was read at once."""
    backwards: Sequence[Backward]
    """Else."""
    norms: Sequence[Any]
    """Of the gradients, where the training computed them."""
    cost: int
    """Nanoseconds that watching took."""


class LightSteps:
    """A `taps.LoopListener`, while it is `active`."""

    def __init__(self, moments: Moments) -> None:
        self.active = False
        self._moments = moments
        self._observer: Observer
        self._thread = 0
        self._optimizer: weakref.ref[Any] | None = None
        self.key = 0
        """The id of the optimizer."""
        self._one_part = False
        self._by_batch = False
        self._iterator: Any = None
        self._data_depth = 0
        self._updating = False
        self._updated_at = 0
        """When the optimizer stepped, 0 if it has not yet."""
        self._updated_before_scaler = 0
        self._learning_rate: Any = None
        self._loss: float | None = None
        """Of the only backward so far, if that is enough to keep of it; else there are `_backwards`."""
        self._backwards: list[Backward] = []
        self._norms: list[Any] = []
        self._cost = 0
        self._calls = taps.module_calls()

    def begin(self, optimizer: weakref.ref[Any], *, one_part: bool, iterator: Any = None) -> None:
        """A step begins, with a batch from `iterator` if there is one. `one_part`: all backwards of a step are of one
        batch; else each is of a micro-batch of its own."""
        assert self._moments.observer is not None
        taps.replace(self._moments, self)
        self.active = True
        self._observer = self._moments.observer
        self._thread = get_ident()
        self._optimizer, self.key = optimizer, id(optimizer())
        self._one_part = one_part
        self._by_batch = iterator is not None
        self._iterator, self._data_depth = iterator, int(self._by_batch)
        self._calls = taps.module_calls()
        self._calls.mute(True)

    def end(self) -> None:
        """Give the loop back to `Moments`, in the middle of a step if it is not at its beginning."""
        if not self.active:
            return
        self.active = False
        taps.replace(self, self._moments)
        self._calls.mute(False)
        iteration = self._moments.iterations.current = Iteration(timing=Timing.WHOLE)
        iteration.batches, iteration.forwards = int(self._by_batch), int(not self._by_batch)
        self._keep_all()
        iteration.backwards, self._backwards = self._backwards, []
        iteration.trained = bool(iteration.backwards) or bool(self._updated_at)
        norms, self._norms = self._norms, []
        if self._updated_at:
            self._observer.go_on(self._learning_rate, norms)
            self._moments.clock.mark(self._updated_at)
            iteration.updated.add(self.key)
            iteration.assign_losses(self.key)
        else:
            for norm in norms:
                self._moments.norm_is_known(norm)
        self._updated_at = 0
        self._iterator, self._data_depth = None, 0

    # -- where a step begins

    def follow_call(self, module: Any) -> Moments | None:
        if not self._updated_at or get_ident() != self._thread:
            return None
        moments = self._moments
        if not module.training or not moments.sees(module) or not moments.records_gradients():
            return None
        self._begin_step(by_batch=False)
        return None if self.active else moments

    def data_begins(self, iterator: Any) -> None:
        if get_ident() != self._thread:
            return
        self._data_depth += 1
        if self._data_depth > 1:  # a loader inside a loader
            return
        self._iterator = iterator
        if self._updated_at and self._observer.is_for_training(iterator):
            self._begin_step(by_batch=True)
            if not self.active:
                self._moments.data_begins(iterator)

    def data_ends(self, batch: Any, exhausted: bool) -> None:
        if not self.active:
            self._moments.data_ends(batch, exhausted)
            return
        if get_ident() != self._thread:
            return
        if self._data_depth:
            self._data_depth -= 1
        if not self._data_depth:
            iterator, self._iterator = self._iterator, None
            if exhausted and self._observer.is_for_training(iterator):
                self._moments.epoch_ends()

    def _begin_step(self, *, by_batch: bool) -> None:
        """End the step that has been made and begin another, which `Moments` follows if this is no longer active."""
        began = _now()
        moments = self._moments
        try:
            is_chosen = self._observer.end_light(
                moments.clock.end_unmarked(),
                moments.epoch,
                self._learning_rate,
                self._loss,
                self._backwards or (),
                self._norms or (),
                self._cost + CALLS_COST,
            )
            self._loss, self._updated_at, self._updating, self._by_batch = None, 0, False, by_batch
            if self._backwards:
                self._backwards = []
            if self._norms:
                self._norms = []
            self._calls.quiet = self._calls.alone
            if is_chosen:
                self.end()
                moments.iterations.current = Iteration()
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self.end()
            moments.fail("a short step", error)
        self._cost = _now() - began

    # -- what every step needs

    def backward_begins(self, tensors: Any) -> None:
        if get_ident() != self._thread:
            return
        if self._updated_at:  # of a model that nobody knows yet
            self.end()
            self._moments.backward_begins(tensors)
            return
        is_first = self._loss is None and not self._backwards
        if self._updating and not is_first:  # a closure evaluates again
            return
        began = _now()
        try:
            if is_first and (loss := self._moments.losses.read_plain(tensors)) is not None:
                self._loss = loss
            else:
                self._keep_all()
                part = 1 if self._one_part else len(self._backwards) + 1
                self._backwards += self._moments.losses.read(tensors, part)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self.end()
            self._moments.fail("backward_begins", error)
        self._cost += _now() - began

    def _keep_all(self) -> None:
        """The only backward so far is not the only one."""
        if self._loss is not None:
            self._backwards.append(Backward(self._loss, 1, None))
            self._loss = None

    def backward_ends(self, error: BaseException | None) -> None:
        if not self.active:
            self._moments.backward_ends(error)
        elif error is not None:
            self._observer.save_memory_summary(error)

    def norm_is_known(self, norm: Any) -> None:
        if get_ident() == self._thread:
            self._norms.append(norm)

    def norm_is_clipped(self, limit: float) -> None:
        pass  # the steps with phases show it

    def loss_is_scaled(self, loss: Any, scaled: Any) -> None:
        self._moments.losses.scaled(loss, scaled)

    def scaler_begins(self, optimizer: Any) -> None:
        self._updated_before_scaler = self._updated_at
        self._moments.scaler_begins(optimizer)

    def scaler_ends(self, optimizer: Any) -> None:
        inner = discovery.unwrap_optimizer(optimizer)
        if self.active and self._updated_at != self._updated_before_scaler:
            return
        if self.active and inner is not None and self.takes(inner):
            self._norms = []  # of gradients that were scaled too high, and thrown away
            self.update_ends(inner)
        else:
            self._moments.scaler_ends(optimizer)

    def takes(self, optimizer: Any) -> bool:
        """An update by this optimizer is what is expected next. If it is not, `Moments` follows from here on."""
        if not self.active:
            return False
        if get_ident() != self._thread:
            return True  # none of ours
        if self._updated_at or self._optimizer is None or self._optimizer() is not optimizer:
            self.end()
            return False
        self._updating = True
        return True

    def update_ends(self, optimizer: Any) -> None:
        if not self.active:
            self._moments.optimizer_ends(optimizer)
        elif get_ident() == self._thread:
            self._updating = False
            self._updated_at = self._moments.clock.now()
            self._learning_rate = optimizer.param_groups[0].get("lr")
            self._calls.quiet = False
