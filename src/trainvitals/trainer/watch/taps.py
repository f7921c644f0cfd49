"""The few places in torch that have no hook of their own: the data loader's next batch, the call of a module, backward,
gradient clipping.

Each is wrapped once per process, whoever listens, and put back when nobody listens any more. A wrapper calls the
original with the very same arguments and returns its very result. While torch.compile traces a function the wrappers
only pass on, so that nothing of ours ends up in a graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from trainvitals.trainer.tracebacks import drop_frame
from trainvitals.trainer.watch.module_calls import CallListener, Look, ModuleCalls, prepare


class LoopListener(CallListener, Protocol):
    """Who wants to know. Nothing here may raise."""

    def data_begins(self, iterator: Any) -> None: ...
    def data_ends(self, batch: Any, exhausted: bool) -> None: ...
    def backward_begins(self, tensors: Any) -> None: ...
    def backward_ends(self, error: BaseException | None) -> None: ...
    def norm_is_known(self, norm: Any) -> None: ...
    def norm_is_clipped(self, limit: float) -> None: ...
    def loss_is_scaled(self, loss: Any, scaled: Any) -> None: ...
    def scaler_begins(self, optimizer: Any) -> None: ...
    def scaler_ends(self, optimizer: Any) -> None: ...


class _Place(NamedTuple):
    """Where a function stands: `torch.autograd:backward`, and what stands there instead."""

    owner: str
    attribute: str
    wrap: Callable[[Any], Any]


_listeners: tuple[LoopListener, ...] = ()
"""Replaced as a whole, so that a call which began with some of them ends with the same ones."""
_placed: list[tuple[Any, str, Any, Any]] = []  # owner, attribute, original, ours
_calls = ModuleCalls()


def listen(listener: LoopListener) -> list[str]:
    """Tell `listener` from now on. What could not be wrapped, in words."""
    refused = [] if _listeners else _place_all()
    _tell((*_listeners, listener))
    _calls.mute(False)
    return refused


def stop(listener: LoopListener) -> None:
    """Tell it no more; the last one to leave puts torch back as it was."""
    _tell(tuple(other for other in _listeners if other is not listener))
    if not _listeners:
        while _placed:
            owner, attribute, original, ours = _placed.pop()
            if owner.__dict__.get(attribute) is ours:  # else somebody wrapped us in turn: ours just passes on
                setattr(owner, attribute, original)


def replace(listener: LoopListener, other: LoopListener) -> None:
    """Tell `other` from now on what `listener` was told."""
    _tell(tuple(other if told is listener else told for told in _listeners))


def _tell(listeners: tuple[LoopListener, ...]) -> None:
    global _listeners
    _listeners = listeners
    _calls.hear(listeners)


def module_calls() -> ModuleCalls:
    """Where calls of modules are seen, if torch could be wrapped there."""
    return _calls


def look_at_parts(looks: Mapping[int, Look]) -> None:
    """While the model is being called, show each of these modules, by their id, what it returned; none to stop."""
    _calls.looks = dict(looks)


def _place_all() -> list[str]:
    refused = []
    for place in _PLACES:
        module, _, class_name = place.owner.partition(":")
        try:
            owner = import_module(module)
            owner = getattr(owner, class_name) if class_name else owner
            original = getattr(owner, place.attribute)
            ours = place.wrap(original)
            setattr(owner, place.attribute, ours)
            _placed.append((owner, place.attribute, original, ours))
        except (ImportError, AttributeError, TypeError) as error:
            refused.append(f"{place.owner.replace(':', '.')}.{place.attribute} ({error})")
    return refused


def _wrap_calls(_: Any) -> ModuleCalls:
    prepare(_calls)
    return _calls


def _wrap_next(original: Any) -> Any:
    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:
        listeners = _listeners
        for listener in listeners:
            listener.data_begins(iterator)
        batch, exhausted = None, True
        try:
            batch = original(iterator)
            exhausted = False
            return batch
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            for listener in listeners:
                listener.data_ends(batch, exhausted)

    return __next__


def _wrap_backward(original: Any) -> Any:
    compiler = import_module("torch.compiler")
    get_compiler = import_module("torch._C._dynamo.eval_frame").get_eval_frame_callback

    def backward(*args: Any, **kwargs: Any) -> Any:
        if compiler.is_compiling() or get_compiler():  # in a whole step that is compiled, what we do would be, too
            return original(*args, **kwargs)
        listeners = _listeners
        tensors = args[0] if args else kwargs.get("tensors")
        for listener in listeners:
            listener.backward_begins(tensors)
        failure: BaseException | None = None
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            failure = error
            drop_frame(error)
            raise
        finally:
            for listener in listeners:
                listener.backward_ends(failure)

    # torch.compile begins no graph in a function of this file of torch, where the original is: nor shall it in ours.
    where = inspect.getfile(import_module("torch.autograd"))
    backward.__code__ = backward.__code__.replace(co_filename=where)
    return functools.wraps(original)(backward)


def _wrap_total_norm(original: Any) -> Any:
    compiler = import_module("torch.compiler")

    @functools.wraps(original)
    def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        norm = original(tensors, norm_type, *args, **kwargs)
        if norm_type == 2.0 and not compiler.is_compiling():
            for listener in _listeners:
                listener.norm_is_known(norm)
        return norm

    return total_norm


def _wrap_clip(original: Any) -> Any:
    compiler = import_module("torch.compiler")

    @functools.wraps(original)
    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if not compiler.is_compiling():
            for listener in _listeners:
                listener.norm_is_clipped(max_norm)
        return original(parameters, max_norm, *args, **kwargs)

    return clip


def _wrap_scale(original: Any) -> Any:
    compiler = import_module("torch.compiler")

    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if compiler.is_compiling():
            return scaled
        for listener in _listeners:
            listener.loss_is_scaled(outputs, scaled)
        return scaled

    return scale


def _wrap_scaler_step(original: Any) -> Any:
    compiler = import_module("torch.compiler")

    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if compiler.is_compiling():
            return original(scaler, optimizer, *args, **kwargs)
        listeners = _listeners
        for listener in listeners:
            listener.scaler_begins(optimizer)
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        for listener in listeners:
            listener.scaler_ends(optimizer)
        return result

    return step


def _wrap_grad(original: Any) -> Any:
    """`torch.autograd.grad` of a loss with respect to parameters is a backward, unless its result is derived again."""
    compiler = import_module("torch.compiler")
    tensor, parameter = import_module("torch").Tensor, import_module("torch.nn").Parameter

    def find_first(inputs: Any) -> Any:
        if isinstance(inputs, tensor):
            return inputs
        several = inputs.values() if isinstance(inputs, dict) else inputs
        return next(iter(several), None) if isinstance(several, Iterable) else None

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        derived_again = kwargs.get("create_graph", args[2] if len(args) > 2 else False)
        if derived_again or compiler.is_compiling():
            return original(outputs, inputs, *args, **kwargs)
        listeners: tuple[LoopListener, ...] = ()
        failure: BaseException | None = None
        try:
            if isinstance(inputs, Iterator):  # can be gone through only once: `model.parameters()`
                inputs = tuple(inputs)
            if isinstance(find_first(inputs), parameter):
                listeners = _listeners
            for listener in listeners:
                listener.backward_begins(outputs)
            return original(outputs, inputs, *args, **kwargs)
        except BaseException as error:
            failure = error
            drop_frame(error)
            raise
        finally:
            for listener in listeners:
                listener.backward_ends(failure)

    return grad


_PLACES = (
    _Place("torch.utils.data.dataloader:_BaseDataLoaderIter", "__next__", _wrap_next),
    _Place("torch.nn.modules.module:Module", "_compiled_call_impl", _wrap_calls),
    _Place("torch.autograd", "backward", _wrap_backward),  # Tensor.backward calls it by this name
    # What clip_grad_norm_ computes is the norm before clipping, for free; it calls it by this name.
    _Place("torch.nn.utils.clip_grad", "_get_total_norm", _wrap_total_norm),
    _Place("torch.nn.utils.clip_grad", "_clip_grads_with_norm_", _wrap_clip),
    _Place("torch.autograd", "grad", _wrap_grad),
    _Place("torch.amp.grad_scaler:GradScaler", "scale", _wrap_scale),
    _Place("torch.amp.grad_scaler:GradScaler", "step", _wrap_scaler_step),
)
