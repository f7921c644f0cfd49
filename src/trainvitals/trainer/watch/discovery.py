"""Finding the model that an optimizer trains, where nobody said which it is, its name, and the optimizers there are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Container, Iterable, Sequence
from importlib import import_module
from itertools import takewhile
from types import FrameType
from typing import Any


def find_models(parameters: Iterable[Any]) -> list[Any]:
    """The outermost modules alive in this process that hold one of the parameters.

    Looks at every object once; a wrapper (DDP, FSDP, a compiled module) is found instead of what it wraps, because
    it is what the loop calls.
    """
    module_class = import_module("torch.nn").Module
    wanted = {id(parameter) for parameter in parameters}
    # By its type, never by isinstance: that would wake up lazy proxies.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), module_class)]
    parents: dict[int, list[Any]] = {}
    climbing = []
    for module in modules:
        inside = module.__dict__  # a module half-built has neither entry
        for child in inside.get("_modules", {}).values():
            parents.setdefault(id(child), []).append(module)
        if any(id(parameter) in wanted for parameter in inside.get("_parameters", {}).values()):
            climbing.append(module)
    tops: dict[int, Any] = {}
    seen: set[int] = set()
    while climbing:
        module = climbing.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if id(module) in parents:
            climbing.extend(parents[id(module)])
        else:
            tops[id(module)] = module
    return list(tops.values())


def find_optimizers() -> list[Any]:
    """The optimizers alive in this process that have something to train."""
    optimizer_class = import_module("torch.optim").Optimizer
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), optimizer_class)]
    return [optimizer for optimizer in found if optimizer.__dict__.get("param_groups")]


def parameters_of(optimizer: Any) -> list[Any]:
    """What an optimizer trains."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def trains_any(optimizer: Any, parameters: Container[int]) -> bool:
    """It trains one of these, given by their ids."""
    return any(id(parameter) in parameters for parameter in parameters_of(optimizer))


def name_trained(optimizer: Any, models: Sequence[Any] = ()) -> str:
    """What an optimizer trains, in a word: the part of the model that holds all of its parameters, else the variable
    that the model is kept in, else the model's class. `models`: those it trains, if they are known."""
    parameters = parameters_of(optimizer)
    models = models or find_models(parameters)
    if not models:
        return type(optimizer).__name__
    model, wanted = models[0], {id(parameter) for parameter in parameters}
    paths = [name.split(".")[:-1] for name, parameter in model.named_parameters() if id(parameter) in wanted]
    owns_all = all(id(parameter) in wanted for parameter in model.parameters())
    shared = list(takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False)))
    if shared and not owns_all:
        return ".".join(names[0] for names in shared)
    return _variable_of(model) or type(model).__name__


def _variable_of(thing: Any) -> str | None:
    """The global name that the running functions have for it, the innermost first. Local names stay unread: Python
    would keep a copy of them, and so keep alive what the program deletes."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        for name, value in list(frame.f_globals.items()):
            if value is thing and name not in ("model", "net", "module"):
                return name
        frame = frame.f_back
    return None


def unwrap_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside what Accelerate, Lightning and others wrap around it; None if there is none."""
    for _ in range(4):
        if hasattr(optimizer, "register_step_pre_hook") and hasattr(optimizer, "param_groups"):
            inner = getattr(optimizer, "optimizer", None)
            if inner is None or not hasattr(inner, "register_step_pre_hook"):
                return optimizer
            optimizer = inner
        else:
            optimizer = getattr(optimizer, "optimizer", getattr(optimizer, "_optimizer", None))
    return None
