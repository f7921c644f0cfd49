"""Flax NNX under `trainvitals run`: steps, their times, and the loss where the step returns it.

JAX runs Python only while it traces a function; the compiled function makes no callbacks. `nnx.jit` keeps a Python
function around it, so its calls can be counted: one that updated an `nnx.Optimizer` while it was traced is a step with
each call. A step inside a bare `jax.jit` is invisible.

JAX returns before it has computed, so the duration of a call means nothing. A step is timed when its result is ready as
the next one begins, which is the case where the program reads the loss; steps in between share the time.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from trainvitals.integrations.attachment import guarded
from trainvitals.integrations.rounds import make_automatic
from trainvitals.trainer.autostart import capture
from trainvitals.trainer.autostart.trouble import note_trouble
from trainvitals.trainer.tracebacks import drop_frame

_JITS = ("JitWrapped", "SimpleJitWrapped", "SimpleJitPartialWrapped")


class Steps:
    """The steps of this program."""

    def __init__(self) -> None:
        self.attachment = make_automatic()
        self.calls: list[Any] = []
        """The compiled functions on the call stack, outermost first."""
        self.training: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that update an optimizer."""
        self._step = -1
        self._timed = -1
        self._since = 0
        """When the step `_timed` was over."""
        self._newest: Any = None
        """An array that the newest step makes."""
        self._warned = False
        self._reports = True
        """The program does not log its loss itself, with the client of a tracker."""

    def update(self, optimizer: Any) -> None:
        """An optimizer has updated its model."""
        if self.calls:
            self.training.add(self.calls[0])
        elif not isinstance(_counter_of(optimizer), import_module("jax").core.Tracer):
            self.end_step(None, optimizer, time.perf_counter_ns(), self.is_ready())
        elif not self._warned:
            self._warned = True
            note_trouble("flax: steps inside jax.jit are invisible; use nnx.jit, or log them with trainvitals.log")

    def is_ready(self) -> bool:
        """Whether the newest step is finished, not only dispatched."""
        return self._newest is not None and bool(self._newest.is_ready())

    @guarded
    def end_step(self, result: Any, optimizer: Any, began: int, was_ready: bool) -> None:
        """A step was dispatched at `began`; `was_ready` if the one before it was finished by then."""
        run = self.attachment.run
        if run is None:
            run = self.attachment.begin({})
            self._step = self._timed = run.step
            self._since = began
            self._reports = not capture.is_logging()
        elif was_ready and self._step > self._timed:
            seconds = (began - self._since) / 1e9 / (self._step - self._timed)
            run.write_row(self._step, {"batch_time": seconds}, time.time_ns() // 1000)
            self._since, self._timed = began, self._step
        self._step += 1
        loss = find_loss(result)
        self._newest = loss if loss is not None else _counter_of(optimizer)
        if loss is not None and self._reports:
            run.log({"loss": loss}, step=self._step)
        run.advance(self._step)


def _counter_of(optimizer: Any) -> Any:
    """The array in which it counts its steps; None without an optimizer."""
    return None if optimizer is None else optimizer.step.get_value()


def find_loss(result: Any) -> Any:
    """The loss in the return value of a step: a scalar, the first of several values, or the one of that name."""
    if isinstance(result, Mapping):
        result = result.get("loss")
    elif isinstance(result, (tuple, list)) and result:
        result = result[0]
    is_scalar = getattr(result, "shape", None) == () and hasattr(result, "is_ready")
    return result if is_scalar and "float" in str(getattr(result, "dtype", "")) else None


def autostart() -> None:
    """Flax NNX was imported under `trainvitals run`."""
    steps = Steps()
    compilation = import_module("flax.nnx.transforms.compilation")
    for name in _JITS:
        kind = getattr(compilation, name, None)
        if kind is not None:
            kind.__call__ = _wrap_call(kind.__call__, steps)
    optimizer = import_module("flax.nnx").Optimizer
    optimizer.update = _wrap_update(optimizer.update, steps)


def _wrap_call(original: Any, steps: Steps) -> Any:
    optimizers = import_module("flax.nnx").Optimizer

    @functools.wraps(original)
    def __call__(jitted: Any, *args: Any, **kwargs: Any) -> Any:
        is_inner = bool(steps.calls)  # within the trace of another one
        began, was_ready = time.perf_counter_ns(), steps.is_ready()
        steps.calls.append(jitted)
        try:
            result = original(jitted, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            steps.calls.pop()
        if jitted in steps.training and not is_inner:
            given = (item for item in (*args, *kwargs.values()) if isinstance(item, optimizers))
            steps.end_step(result, next(given, None), began, was_ready)
        return result

    return __call__


def _wrap_update(original: Any, steps: Steps) -> Any:
    @functools.wraps(original)
    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(optimizer, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        steps.update(optimizer)
        return result

    return update
