"""Finding the model that an optimizer trains, where nobody said which it is, and the optimizer inside a wrapper."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from importlib import import_module
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
