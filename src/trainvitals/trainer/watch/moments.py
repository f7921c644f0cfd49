"""What happens in the user's loop, moment by moment: which phase begins, what the loss is, when an iteration is over.

The loop only leaves marks here; everything that costs more is left to the observer, which there may not be yet: in a
program that did not ask to be watched, the first iteration is under way before anybody knows that it is a training.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, Protocol

from trainvitals.handlers import is_from_handler
from trainvitals.trainer.watch import batches, discovery, module_calls
from trainvitals.trainer.watch.clock import (
    AFTER_DATA,
    AFTER_FORWARD,
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    StepClock,
    StepMarks,
)
from trainvitals.trainer.watch.iteration import Iteration, Iterations, Timing
from trainvitals.trainer.watch.light_steps import LightSteps
from trainvitals.trainer.watch.losses import Backward, LossReader, find_leaves, is_made_before

MOST_MARKS = 4096
"""Marks that are kept while nobody observes: a program that only evaluates would collect them for ever."""
MOST_LOSSES = 1024
"""Losses that are kept for one update."""

_now = time.perf_counter_ns

P = ParamSpec("P")


def _guarded(method: Callable[Concatenate[Moments, P], None]) -> Callable[Concatenate[Moments, P], None]:
    """Around everything that runs inside the user's loop: its time is counted, its failure ends the watching."""

    @functools.wraps(method)
    def guarded(self: Moments, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.alive or self.is_foreign_thread():
            return
        began = _now()
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop: nothing of ours may stop it
            self.fail(method.__name__, error)
        self._cost += _now() - began

    return guarded


class Observer(Protocol):
    """Who looks at the training at these moments."""

    @property
    def reports(self) -> bool: ...
    def is_for_training(self, iterator: Any) -> bool: ...
    def is_elsewhere(self) -> bool: ...
    def before_forward(self) -> None: ...
    def after_forward(self) -> None: ...
    def before_optimizer(self, optimizer: Any) -> None: ...
    def after_optimizer(self, optimizer: Any, *, skipped: bool) -> None: ...
    def norm_is_known(self, norm: Any) -> None: ...
    def save_memory_summary(self, error: BaseException) -> None: ...
    def wants_phases(self) -> bool: ...
    def measure(self, iteration: Iteration) -> None: ...
    def go_on(self, learning_rate: Any, norms: Sequence[Any]) -> None: ...
    def end_light(
        self,
        marks: StepMarks,
        epoch: int | None,
        learning_rate: Any,
        loss: float | None,
        backwards: Sequence[Backward],
        norms: Sequence[Any],
        cost: int,
    ) -> bool: ...
    def write(self, iteration: Iteration) -> None: ...
    def interrupted(self) -> None: ...
    def moment_failed(self, where: str, error: Exception) -> None: ...


class Moments:
    """Hears of everything (`taps.LoopListener`), in the thread that trains."""

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer
        self.begin_observing: Callable[[], None] | None = None
        """Called when this is known to be a training and there is no observer: sets one."""
        self.alive = True
        """False after the end, or after something of ours failed."""
        self.clock = StepClock()
        self.iterations = Iterations(self._cut, self._rejoin, self._release)
        self.epoch: int | None = None
        """Complete passes through a loader; None where none was seen."""
        self.losses = LossReader()
        self.accumulates = False
        """Several backwards make one update here."""
        self.light = LightSteps(self)
        self._has_closures = False
        self._one_part: bool | None = False
        """All backwards of the last iteration were of one batch; None if neither they were nor each of its own."""
        self._parts: dict[int, weakref.ref[Any]] | None = None
        self._thread: int | None = None
        self.records_gradients: Callable[[], bool] = import_module("torch").is_grad_enabled
        self._cost = 0
        self._trimming = False
        self._begun = False
        """The loop has been seen from its first batch or forward on; a step that we came into is not timed."""
        self._in_forward = False
        self._forward_depth = 0
        autograd = import_module("torch._C._autograd")
        self._count_operations: Callable[[], int | None] = getattr(autograd, "_get_sequence_nr", lambda: None)
        self._returned_at: int | None = None
        """The number of autograd's next operation when the model returned last, where torch tells it."""
        self._data_depth = 0
        self._backwards = 0
        self._updates = 0
        self._updates_before_scaler = 0
        self._optimizer_depth = 0
        self._optimizer_mark = 0
        self._is_evaluated = False
        """The closure under way has called backward; what follows is the same loss at other weights."""
        self._norm: Any = None

    def follow_call(self, module: Any) -> Moments | None:
        return self if self.alive and not self.is_foreign_thread() and self.sees(module) else None

    def sees(self, module: Any) -> bool:
        """The module is a model that is watched, or a part of one; any, as long as no model is known."""
        if self._parts is None:
            return True
        part = self._parts.get(id(module))
        return part is not None and part() is module  # an id is somebody else's once its owner is gone

    def see(self, models: Iterable[Any]) -> None:
        """From now on, see these and their parts only."""
        self._parts = (self._parts or {}) | {
            id(part): weakref.ref(part) for model in models for part in model.modules()
        }

    # -- batches

    @_guarded
    def data_begins(self, iterator: Any) -> None:
        if self.light.active:
            self.light.data_begins(iterator)
            return
        if self._data_depth:  # a loader inside a loader
            self._data_depth += 1
            return
        observer = self.observer
        if not (self.records_gradients() if observer is None else observer.is_for_training(iterator)):
            self._data_depth = -1
            self.clock.enter(OTHER)
            return
        if self.iterations.loop_begins_again(batch=True) and self._begin_light(iterator):
            return
        self._begin()
        self._data_depth = 1
        self.clock.forget_nesting()
        self.clock.enter(DATA)

    @_guarded
    def data_ends(self, batch: Any, exhausted: bool) -> None:
        if self.light.active:
            self.light.data_ends(batch, exhausted)
            return
        if not self._data_depth:
            return
        if self._data_depth > 1:
            self._data_depth -= 1
            return
        training = self._data_depth == 1
        self._data_depth = 0
        self.clock.leave(AFTER_DATA if training and not exhausted else OTHER)
        if not training:
            return
        if exhausted:
            self.epoch_ends()
            return
        self.epoch = self.epoch or 0
        self.iterations.current.batches += 1
        self._add_size(batch)
        if self.observer is not None and self.observer.is_elsewhere():
            self.clock.moved = batches.lies_on_host(batch)

    def epoch_ends(self) -> None:
        if self.epoch is not None and self._backwards:
            self.epoch += 1

    # -- forward and backward

    @_guarded
    def forward_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        if self.light.active and self.light.follow_call(module) is None:
            return
        self._forward_depth += 1
        if self._forward_depth > 1:
            return
        clock = self.clock
        self._in_forward = clock.slot != BACKWARD  # activation checkpointing runs the forward again
        if not self._in_forward:
            return
        if not (module.training and self.records_gradients()):
            clock.enter(OTHER)
            return
        if clock.slot != OPTIMIZER and self.iterations.loop_begins_again(batch=False) and self._begin_light():
            self._forward_depth, self._in_forward = 0, False
            return
        iteration = self.iterations.current
        if not iteration.batches:
            self._begin()
            self._add_part_size(args or kwargs)
        iteration.forwards += 1
        if self.observer is not None:
            self.observer.before_forward()
        clock.enter(FORWARD)

    @_guarded
    def forward_ends(self, error: BaseException | None) -> None:
        if error is not None and self.observer is not None:
            self.observer.save_memory_summary(error)
        self._forward_depth = max(self._forward_depth - 1, 0)
        if self._forward_depth or not self._in_forward:
            return
        self._in_forward = False
        if self.clock.slot == FORWARD:
            self._returned_at = self._count_operations()
        self.clock.leave(AFTER_FORWARD if self.clock.slot == FORWARD else OTHER)
        if self.observer is not None:
            self.observer.after_forward()

    @_guarded
    def backward_begins(self, tensors: Any) -> None:
        self._claim_thread()
        self._backwards += 1
        # Once, twice, four times without an update: maybe the weights are updated by hand.
        if not self._updates and self._backwards > 1 and not self._backwards & (self._backwards - 1):
            self._look_for_optimizers(tensors)
        if self.clock.slot != OPTIMIZER and not self.iterations.current.is_seen:
            self.iterations.loop_begins_again(batch=False)
        self.iterations.current.trained = self.iterations.current.is_new = True
        self._has_closures |= self._optimizer_depth > 0
        if self.observer is None or self.observer.reports:
            self._keep_loss(tensors)
        if self._returned_at is not None and is_made_before(tensors, self._returned_at):
            self.clock.set_apart()  # the model returned the loss: it is not what the loop did since
        self.clock.enter(BACKWARD)

    @_guarded
    def backward_ends(self, error: BaseException | None) -> None:
        self.clock.leave()
        if error is not None and self.observer is not None:
            self.observer.save_memory_summary(error)

    @_guarded
    def loss_is_scaled(self, loss: Any, scaled: Any) -> None:
        self.losses.scaled(loss, scaled)

    @_guarded
    def norm_is_known(self, norm: Any) -> None:
        """`clip_grad_norm_` computed it."""
        if self.observer is None:
            self._norm = norm
        else:
            self.observer.norm_is_known(norm)

    @_guarded
    def norm_is_clipped(self, limit: float) -> None:
        """`clip_grad_norm_` keeps the norm to this; infinity if it was only called to compute it."""
        if math.isfinite(limit):
            self.iterations.current.clip_norm = float(limit)

    # -- updates

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A hook of torch's optimizers. First of all, because torch.compile takes it for a constant, nothing in a step
        that is compiled."""
        if not module_calls.is_traced() and not self.light.takes(optimizer):
            self.optimizer_begins(optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A hook of torch's optimizers."""
        if not module_calls.is_traced():
            self.light.update_ends(optimizer)

    @_guarded
    def optimizer_begins(self, optimizer: Any) -> None:
        self._claim_thread()
        if self._optimizer_depth and self.clock.count == self._optimizer_mark:
            self._optimizer_depth += 1  # a subclass calls the step of its parent, which has the same hooks
            return
        if self._optimizer_depth:  # the last step raised, so its end was never told
            self.clock.forget_nesting()
        self._begin_update(optimizer)
        if self.observer is not None:
            self.observer.before_optimizer(optimizer)
        self._is_evaluated = False
        self.clock.enter(OPTIMIZER)
        self._optimizer_depth = 1
        self._optimizer_mark = self.clock.count

    @_guarded
    def optimizer_ends(self, optimizer: Any) -> None:
        self._optimizer_depth -= 1
        if self._optimizer_depth > 0:
            return
        self._optimizer_depth = 0
        self.clock.leave()
        self._end_update(optimizer, skipped=False)

    @_guarded
    def scaler_begins(self, optimizer: Any) -> None:
        self._updates_before_scaler = self._updates

    @_guarded
    def scaler_ends(self, optimizer: Any) -> None:
        inner = discovery.unwrap_optimizer(optimizer)
        if self._updates == self._updates_before_scaler and inner is not None:
            self._begin_update(inner)
            self._end_update(inner, skipped=True)

    def _observe(self) -> None:
        """This is a training: whoever waited for one comes in."""
        if self.observer is None and self.begin_observing is not None:
            self.begin_observing()
        if self.observer is not None and self._norm is not None:
            self.observer.norm_is_known(self._norm)
        self._norm = None

    def _begin_update(self, optimizer: Any) -> None:
        self._observe()
        if not self._updates:
            self._look_for_optimizers()
        self.iterations.update_begins(optimizer)

    def _end_update(self, optimizer: Any, *, skipped: bool) -> None:
        self._updates += 1
        self.iterations.update_ends(optimizer)
        if self.observer is not None:
            self.observer.after_optimizer(optimizer, skipped=skipped)
        if not self.iterations.current.is_seen:
            self.iterations.end_if_all_updated()  # nothing else will be seen to end it

    def _look_for_optimizers(self, losses: Any = None) -> None:
        with self.clock.left_out():
            found = discovery.find_optimizers()
        if self._parts is not None:
            trained = {id(p) for part in self._parts.values() for p in getattr(part(), "_parameters", {}).values()}
            found = [optimizer for optimizer in found if discovery.trains_any(optimizer, trained)]
        is_closure = self._optimizer_depth > 0
        if found and (is_closure or self._backwards == 1 or not self._are_gone(found, losses)):
            self.iterations.expect(found)
            return
        self._observe()
        self.iterations.decide_by_hand()

    def _are_gone(self, optimizers: Sequence[Any], losses: Any) -> bool:
        """In a program that compiles, no gradient is left of the backward before: a step that cannot be seen, for it is
        compiled, has been made. Asked are those that train what the losses come from: an optimizer of an earlier cell
        of a notebook may hold its gradients for ever."""
        if not module_calls.is_anything_compiled():
            return False
        leaves = {id(leaf) for leaf in find_leaves(losses)}
        concerned = [optimizer for optimizer in optimizers if discovery.trains_any(optimizer, leaves)] or optimizers
        parameters = [parameter for optimizer in concerned for parameter in discovery.parameters_of(optimizer)]
        return all(parameter.grad is None for parameter in parameters)

    # -- the end of an iteration

    @_guarded
    def end_step(self) -> None:
        """The loop itself says so."""
        self.light.end()
        self.iterations.end_here()

    @_guarded
    def pause(self) -> None:
        """The loop was interrupted, and may go on later."""
        self.finish()
        if self.observer is not None:
            self.observer.interrupted()

    def finish(self) -> None:
        """Nothing more comes, or not soon: what the loop does after its last update belongs to no step."""
        self.light.end()
        self._trimming = True
        try:
            self.iterations.finish()
        finally:
            self._trimming = False
        self._in_forward = self._begun = False
        self._data_depth = self._optimizer_depth = self._forward_depth = 0
        self.clock.begin_step()

    def _begin(self) -> None:
        iteration = self.iterations.current
        if not self._begun and self.clock.slot != OPTIMIZER:
            self._begun = not iteration.trained and not iteration.updated
            iteration.timing = Timing.PHASES if self._begun else Timing.NOTHING
            self.clock.begin_step()
        elif self.observer is None and self.clock.count > MOST_MARKS and not iteration.trained:
            self.clock.begin_step()
            iteration.shapes.clear()

    def _cut(self, iteration: Iteration) -> None:
        iteration.marks = self.clock.end_step(trim=self._trimming)
        iteration.cost, self._cost = iteration.cost + self._cost, 0
        self._begun = True
        if self.observer is not None:
            self.observer.measure(iteration)

    def _rejoin(self, iteration: Iteration) -> None:
        assert iteration.marks is not None
        self.clock.rejoin(iteration.marks)

    def _release(self, iteration: Iteration) -> None:
        parts = [backward.part for backwards in iteration.losses.values() for backward in backwards]
        distinct = len(set(parts))
        self._one_part = distinct < len(parts) if distinct in (0, 1, len(parts)) else None
        if self.observer is not None:
            self.observer.write(iteration)

    # -- small questions

    def is_foreign_thread(self) -> bool:
        """Another thread than the one that trains: its phases are not ours. The first to call backward is the one: a
        forward may be inference."""
        return self._thread is not None and self._thread != threading.get_ident()

    def _claim_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()
            self._forward_depth, self._in_forward = 0, False  # of another, which is not heard of any more

    def _add_size(self, batch: Any) -> None:
        first = batches.find_first(batch)
        if first is not None:
            self.iterations.current.shapes.append((first.shape, first.dtype))

    def _add_part_size(self, inputs: Any) -> None:
        """Without a loader, what is called before a backward is called with one and the same batch: the parts of a
        model in turn, a cell for each element of a sequence, or a model for both halves of a pair."""
        iteration = self.iterations.current
        if self.clock.slot == OPTIMIZER and iteration.shapes:
            return  # a closure evaluates again
        if iteration.sized_at != self._backwards:
            iteration.sized_at = self._backwards
            self._add_size(inputs)
            return
        first = batches.find_first(inputs)
        if first is not None and (not iteration.shapes or first.shape[:1] > iteration.shapes[-1][0][:1]):
            iteration.shapes[-1:] = [(first.shape, first.dtype)]

    def _keep_loss(self, tensors: Any) -> None:
        in_closure = self._optimizer_depth > 0
        if in_closure and self._is_evaluated:
            return
        self._is_evaluated = in_closure
        iteration = self.iterations.current
        self.losses.with_divisors = self.accumulates or not self._updates or bool(iteration.backwards)
        iteration.backwards += self.losses.read(tensors, iteration.batches or iteration.forwards)
        del iteration.backwards[:-MOST_LOSSES]

    def _begin_light(self, iterator: Any = None) -> bool:
        """Whether the step that begins now is followed by `light`."""
        optimizer = self.iterations.single
        if (
            self.observer is None
            or optimizer is None
            or self._one_part is None
            or self._has_closures
            or self.observer.wants_phases()
        ):
            return False
        self.light.begin(optimizer, one_part=self._one_part, iterator=iterator)
        return True

    def fail(self, where: str, error: Exception) -> None:
        """Called where `error` is being handled: watch no more, unless it is one that the program raised."""
        if is_from_handler(error):
            raise error
        self.alive = False
        if self.observer is not None:
            self.observer.moment_failed(where, error)
