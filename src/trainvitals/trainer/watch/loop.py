"""A training loop, watched: where its steps begin and end, which phase each moment belongs to, and one line per step.

A step is what one iteration of the loop does: it ends where the next batch is asked for after the optimizer has
stepped, or where the next forward begins without one. Gradient accumulation, several optimizers and
several forwards are all inside one step.

The loop only leaves marks; they are added up and written when the step is over and 100 ms have passed since the last
time, so short steps are handled many at once, which is several times cheaper than one by one.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from trainvitals.conditions import Conditions
from trainvitals.handlers import is_from_handler
from trainvitals.trainer.watch import batches, device, discovery, flops, memory, taps
from trainvitals.trainer.watch.clock import (
    AFTER_DATA,
    AFTER_FORWARD,
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PHASES,
    StepClock,
)
from trainvitals.trainer.watch.lines import FinishedStep, StepLines
from trainvitals.trainer.watch.measures import Measures
from trainvitals.trainer.watch.options import Options

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

FLOPS_STEP = 2
"""The step whose forward is counted: the first ones may still compile or allocate."""

MOST_STEPS = 32
"""Steps of one optimizer for which another one is waited for before both have made a step together."""
WRITE_EVERY = 100_000_000
"""Nanoseconds between two times that finished steps are written. A step longer than that is written as it ends."""

_now = time.perf_counter_ns

P = ParamSpec("P")


def _guarded(method: Callable[Concatenate[Watch, P], None]) -> Callable[Concatenate[Watch, P], None]:
    """Around everything that runs inside the user's loop: its time is counted, its failure ends the watching."""

    @functools.wraps(method)
    def guarded(self: Watch, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.alive:
            return
        began = _now()
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's loop: nothing of ours may stop it.
            self._give_up(method.__name__, error)
        self._cost += _now() - began

    return guarded


class Watch:
    """Made by `Run.watch`. Ends with the run, or with `remove()`."""

    def __init__(self, run: Run, options: Options) -> None:
        self.options = options
        self.clock = StepClock()
        self.steps = 0
        """Steps seen to their end."""
        self._run = run
        self._torch = import_module("torch")
        conditions = Conditions(run.settings.alerts_thresholds)
        self._measures = Measures(options, conditions, self._tell, self._report)
        self._models: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._loader: weakref.ref[Any] | None = None
        self._handles: list[Any] = []
        self._parts: dict[int, weakref.ref[Any]] = {}
        self._thread: int | None = None
        self._told: set[str] = set()
        self.alive = True
        """False after `remove()`, after the run ended, or after something of ours failed."""
        self.automatic = False
        """Started by `trainvitals run`, so an explicit `watch()` takes its place."""
        self._device: Any = None
        self._timer: device.DeviceTimer | None = None
        self._lines = StepLines(run, self._tell)
        self._lines.flops = options.flops_per_step
        self._lines.peak = options.peak_flops
        self._last = run.step
        self._seen = run.step
        self._cost = 0
        self._written = 0
        self._begun = False
        """The loop has been seen from its first batch or forward on; a step that we came into is not timed."""
        # of the step under way
        self._entered = False
        self._data_depth = 0
        self._data_seen = False
        self._forward_seen = False
        self._backward_seen = False
        self._stepped: set[int] = set()
        self._optimizer_steps = 0
        self._optimizer_depth = 0
        self._optimizer_mark = 0
        self._shapes: list[tuple[Any, Any]] = []
        self._losses: list[Any] = []
        # of the whole training
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._epoch = 0
        self._named: int | None = None
        self._named_epoch: float | None = None
        self._unscaled: tuple[Any, Any] | None = None
        self._counter: Any = None
        self._counting = False
        self._learning_rate: Any = None
        self._find_models = False
        for refused in taps.listen(self):
            self._tell(refused, f"not seen by the phases: {refused}")

    # -- what is watched

    @property
    def models(self) -> list[Any]:
        """The models that are watched and still alive."""
        return [model for model in (reference() for reference in self._models) if model is not None]

    def add(self, models: Iterable[Any], optimizers: Iterable[Any], loader: Any) -> None:
        """Watch these too. Whatever is already watched stays as it is."""
        watched = {id(model) for model in self.models}
        for model in models:
            if id(model) not in watched:
                self._add_model(model)
        watched = {id(reference()) for reference in self._optimizers}
        for optimizer in optimizers:
            inner = discovery.unwrap_optimizer(optimizer)
            if inner is None:
                self._tell("optimizer", f"a {type(optimizer).__name__} is no torch optimizer: its steps are not seen")
            elif id(inner) not in watched:
                self._optimizers.append(weakref.ref(inner))
                self._known.add(inner)
                self._handles.append(inner.register_step_pre_hook(self.optimizer_begins))
                self._handles.append(inner.register_step_post_hook(self.optimizer_ends))
        if loader is not None:
            self._add_loader(loader)

    def discover(self, *, optimizers: bool, models: bool) -> None:
        """Watch every optimizer of this process, and the models they train, found at the first step."""
        if optimizers:
            module = import_module("torch.optim.optimizer")
            self._handles.append(module.register_optimizer_step_pre_hook(self.optimizer_begins))
            self._handles.append(module.register_optimizer_step_post_hook(self.optimizer_ends))
        self._find_models = models

    def _add_model(self, model: Any) -> None:
        if isinstance(model, type) or not isinstance(model, self._torch.nn.Module):
            what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            self._tell(what, f"{what} is no torch module: its forward is not seen")
            return
        self._models.append(weakref.ref(model))
        self._parts |= {id(part): weakref.ref(part) for part in model.modules()}
        if next(model.parameters(), None) is None:
            self._tell("parameters", f"{type(model).__name__} has no parameters: no gradients or layers to look at")
        self._find_device()

    def _add_loader(self, loader: Any) -> None:
        if hasattr(loader, "_index_sampler"):
            self._loader = weakref.ref(loader)
        else:
            self._tell(
                "loader",
                f"a {type(loader).__name__} cannot be timed in place: for data_time, use watch.batches(loader)",
            )

    # -- for loops and callbacks that mark their phases themselves

    def name_step(self, number: int, epoch: float | None = None) -> None:
        """The framework's own number of the step under way, and its epoch: a resumed training goes back."""
        self._named = number
        if epoch is not None:
            self._named_epoch = epoch

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`with watch.phase("transfer"):` around a part of the loop that no hook can see."""
        if name not in PHASES:
            self._tell("phase", f"phase '{name}' is not one of {', '.join(PHASES)}: counted as other")
            name = "other"
        self.clock.enter(PHASES.index(name))
        try:
            yield
        finally:
            self.clock.leave()

    def batches(self, loader: Iterable[Any]) -> Batches:
        """`for batch in watch.batches(generator):` times any source of batches."""
        return Batches(self, loader)

    @_guarded
    def end_step(self) -> None:
        """End the step here: for loops whose steps have no torch optimizer."""
        self._close_step()

    @_guarded
    def pause(self) -> None:
        """The loop has ended or was interrupted, and may go on later, as in a notebook: write what there is. A step
        that was not finished is dropped, and the time until it goes on belongs to no step."""
        if self._stepped:
            self._close_step(trim=True)
        if self._counting:
            self._counting = False
            self._counter.__exit__(None, None, None)
        self._measures.drop()
        self._entered = False
        self._data_depth = self._optimizer_depth = 0
        self._data_seen = self._forward_seen = self._backward_seen = self._begun = False
        self._shapes, self._losses = [], []
        self.clock.begin_step()
        self._lines.write_ready()

    # -- moments of the loop

    @_guarded
    def data_begins(self, iterator: Any) -> None:
        """The loop asks for a batch (`taps.LoopListener`)."""
        if self._is_foreign_thread():
            return
        if self._data_depth:  # a loader inside a loader
            self._data_depth += 1
            return
        if not self._is_for_training(iterator):
            self._data_depth = -1
            self.clock.enter(OTHER)
            return
        if self._stepped:
            self._close_step()
        self._begin()
        self._data_depth = 1
        self._data_seen = True
        self.clock.forget_nesting()
        self.clock.enter(DATA)

    @_guarded
    def data_ends(self, batch: Any, exhausted: bool) -> None:
        if self._is_foreign_thread() or not self._data_depth:
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
            self._epoch += 1
            return
        self._add_size(batch)
        if self._is_elsewhere():
            self.clock.moved = batches.lies_on_host(batch)

    def sees(self, module: Any) -> bool:
        """The module is a model that is watched, or a part of one (`module_calls.CallListener`)."""
        part = self._parts.get(id(module))
        # An id is somebody else's once its owner is gone.
        return part is not None and part() is module and self.alive and not self._is_foreign_thread(claim=True)

    @_guarded
    def forward_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        clock = self.clock
        self._entered = clock.slot != BACKWARD  # activation checkpointing runs the forward again
        if not self._entered:
            return
        if not (module.training and self._torch.is_grad_enabled()):
            clock.enter(OTHER)
            return
        if self._stepped and self._all_stepped() and clock.slot != OPTIMIZER:
            self._close_step()
        if not self._data_seen:
            self._begin()
            self._add_size(args or kwargs)
        self._forward_seen = True
        self._measures.before_forward(self)
        if self.options.count_flops and self._lines.flops is None and self.steps == FLOPS_STEP:
            self._counter = self._counter or flops.make_counter()
            self._counting = True
            self._counter.__enter__()
        clock.enter(FORWARD)

    @_guarded
    def forward_ends(self, error: BaseException | None) -> None:
        if error is not None:
            self.save_memory_summary(error)
        if self._counting:
            self._counting = False
            self._counter.__exit__(None, None, None)
        if not self._entered:
            return
        self._entered = False
        self.clock.leave(AFTER_FORWARD if self.clock.slot == FORWARD else OTHER)
        self._measures.after_forward()

    @_guarded
    def backward_begins(self, tensors: Any) -> None:
        """`loss.backward()` begins (`taps.LoopListener`)."""
        if self._is_foreign_thread(claim=True):
            return
        self._backward_seen = True
        if self.options.report:
            self._keep_loss(tensors)
        self.clock.enter(BACKWARD)

    @_guarded
    def backward_ends(self, error: BaseException | None) -> None:
        if self._is_foreign_thread():
            return
        self.clock.leave()
        if error is not None:
            self.save_memory_summary(error)

    @_guarded
    def norm_is_known(self, norm: Any) -> None:
        """`clip_grad_norm_` computed it (`taps.LoopListener`)."""
        if not self._is_foreign_thread():
            self._measures.norm_is_known(norm)

    @_guarded
    def loss_is_scaled(self, loss: Any, scaled: Any) -> None:
        """`GradScaler.scale` (`taps.LoopListener`): what is reported is the loss before."""
        if self.options.report:
            self._unscaled = (scaled, loss)

    @_guarded
    def optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_foreign_thread(claim=True):
            return
        if self._optimizer_depth and self.clock.count == self._optimizer_mark:
            self._optimizer_depth += 1  # a subclass calls the step of its parent, which has the same hooks
            return
        if self._optimizer_depth:  # the last step raised, so its end was never told
            self.clock.forget_nesting()
        # Once more without a forward in between: it runs in a closure, or it was not seen.
        if id(optimizer) in self._stepped and self._all_stepped():
            self._close_step()
        self._known.add(optimizer)
        if self._find_models:
            self._discover_models(optimizer)
        self._measures.before_optimizer(optimizer, self)
        self.clock.enter(OPTIMIZER)
        self._optimizer_depth = 1
        self._optimizer_mark = self.clock.count

    @_guarded
    def optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_foreign_thread():
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth > 0:
            return
        self._optimizer_depth = 0
        self.clock.leave()
        self._stepped.add(id(optimizer))
        self._optimizer_steps += 1
        if self._optimizer_steps > MOST_STEPS:  # the others are no longer in use
            self._known = weakref.WeakSet([optimizer])
        if self._device is None and not self._models:
            self._find_device(optimizer)
        self._measures.after_optimizer(self._device)
        if self.options.report and len(self._stepped) == 1:
            self._learning_rate = optimizer.param_groups[0].get("lr")
        if not self._data_seen and not self._forward_seen and self._all_stepped():
            self._close_step()

    # -- the end of a step

    def _begin(self) -> None:
        if not self._begun and self.clock.slot != OPTIMIZER:
            self._begun = not self._backward_seen and not self._stepped
            self.clock.begin_step()

    def _close_step(self, *, trim: bool = False) -> None:
        marks = self.clock.end_step(trim=trim)
        logged = self._run.step
        # The step that the user's own lines of this iteration have, else one more than the last.
        number = logged if logged != self._seen and logged > self._last else self._last + 1
        if self._named is not None:
            number, self._named = self._named, None
        self._last = number
        values, parts = self._measures.collect(self._losses, self._run, number)
        if self.options.report:
            self._report_progress(values)
        if self._counter is not None:
            self._close_counter()
        timer = self._timer if self._timer is not None and self._timer.is_complete(marks) else None
        self._lines.add(FinishedStep(number, self._begun, marks, timer, values, parts, self._shapes, self._cost))
        self._begun = True
        self._cost = 0
        self._data_seen = self._forward_seen = self._backward_seen = False
        self._stepped.clear()
        self._optimizer_steps = 0
        self._shapes = []
        if self._losses:
            self._losses = []
        self.steps += 1
        self._run.advance(number)
        self._seen = self._run.step
        if marks.host_end - self._written > WRITE_EVERY:
            self._written = marks.host_end
            self._find_device()
            self._lines.write_ready()

    def _report_progress(self, values: dict[str, float]) -> None:
        if isinstance(self._learning_rate, (int, float)):
            values["learning_rate"] = float(self._learning_rate)
        if self._named_epoch is not None:
            values["epoch"] = self._named_epoch
        elif self._epoch or self._data_seen:
            values["epoch"] = self._epoch

    def _close_counter(self) -> None:
        self._lines.flops = float(self._counter.flops * flops.BACKWARD_FACTOR) or None
        self._counter = None
        if self._lines.flops is None:
            self._tell("flops", "no operation that the FLOP counter knows: give flops_per_step=")

    # -- the end of watching

    def remove(self) -> None:
        """Take every hook off the optimizers and torch. What was measured is kept."""
        self.alive = False
        taps.stop(self)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._measures.drop()

    def close(self, exception: BaseException | None = None) -> None:
        """The run ends: write the last step, and what arrives from the device within a few seconds."""
        try:
            if exception is not None:
                self.save_memory_summary(exception)
            if self._stepped and self.alive:
                self._close_step(trim=True)
            self._lines.finish()
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program, at its end
            self._tell("close", f"the last steps could not be written: {error!r:.300}")
        self.remove()

    def save_memory_summary(self, error: BaseException) -> None:
        """If memory ran out on the device, keep the allocator's state in `reports/`."""
        if type(error).__name__ != "OutOfMemoryError" or "oom" in self._told:
            return
        self._told.add("oom")
        path = memory.save_summary(
            self._run.folder, f"{self._run.participant.file_part}.step{self._last + 1}", error, self._device
        )
        if path is not None:
            self._run.event("out_of_memory", f"allocator state saved: reports/{path.name}", severity="critical")

    # -- small questions

    def _is_foreign_thread(self, *, claim: bool = False) -> bool:
        """Another thread than the one that trains: its phases are not ours. The first to train is the one."""
        me = threading.get_ident()
        if self._thread == me:
            return False
        if self._thread is None:
            if claim:
                self._thread = me
            return False
        return True

    def _all_stepped(self) -> bool:
        return len(self._stepped) >= len(self._known)

    def _is_for_training(self, iterator: Any) -> bool:
        if isinstance(iterator, Batches):
            return True
        loader = self._loader() if self._loader is not None else None
        if loader is not None and getattr(iterator, "_index_sampler", None) is not loader._index_sampler:
            return False
        evaluating = self._models and not any(model.training for model in self.models)
        return not evaluating and bool(self._torch.is_grad_enabled())

    def _is_elsewhere(self) -> bool:
        return self._device is not None and self._device.type != "cpu"

    def _add_size(self, batch: Any) -> None:
        first = batches.find_first(batch)
        if first is not None:
            self._shapes.append((first.shape, first.dtype))

    def add_losses(self, losses: Iterable[Any]) -> None:
        """Of backwards of this step that happened before it was watched."""
        for loss in losses:
            self._keep_loss(loss)

    def _keep_loss(self, tensors: Any) -> None:
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if self._unscaled is not None and self._unscaled[0] is loss:
            loss = self._unscaled[1]
        self._unscaled = None
        if hasattr(loss, "numel") and loss.numel() == 1 and not loss.is_complex() and loss.device.type != "meta":
            self._losses.append(loss.detach())

    def _discover_models(self, optimizer: Any) -> None:
        self._find_models = False
        parameters = [p for parameter_group in optimizer.param_groups for p in parameter_group["params"]]
        found = discovery.find_models(parameters)
        for model in found:
            self._add_model(model)
        if not found:
            self._tell("models", "no module holds what the optimizer trains: forward is what happens before backward")

    def _find_device(self, optimizer: Any = None) -> None:
        """Where the model is now; it may have been moved."""
        parameter = next((p for model in self.models for p in model.parameters()), None)
        if parameter is None and optimizer is not None:
            parameter = next((p for group in optimizer.param_groups for p in group["params"]), None)
        if parameter is None or parameter.device == self._device:
            return
        self._device = parameter.device
        self._timer = device.find_timer(self._device)
        self.clock.time_device(None if self._timer is None else self._timer.mark)
        if self._lines.peak is None:
            self._lines.peak = flops.peak_flops(flops.read_device_name(self._device))

    # -- telling

    def _tell(self, topic: str, text: str) -> None:
        """Once per topic, as an event of the run."""
        if topic not in self._told:
            self._told.add(topic)
            self._run.event("watch", text, severity="warning")

    def _report(self, finding: Any) -> None:
        self._run.event(finding.event, finding.message, severity=finding.severity, layer=finding.layer)

    def _give_up(self, where: str, error: Exception) -> None:
        # The hooks stay where they are until the end: torch goes through its list of them at this very moment.
        self.alive = False
        self._tell("failed", f"the training is not watched any more, {where} failed: {error!r:.300}")


class Batches:
    """Batches of any source, with the time that each took to come."""

    def __init__(self, watch: Watch, loader: Iterable[Any]) -> None:
        self._watch = watch
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        while True:
            self._watch.data_begins(self)
            batch, exhausted = None, True
            try:
                batch = next(iterator)
                exhausted = False
            except StopIteration:
                return
            finally:
                self._watch.data_ends(batch, exhausted)
            yield batch
