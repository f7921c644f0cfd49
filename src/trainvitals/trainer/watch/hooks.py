"""Hooks on the user's modules that are no part of them.

A model that is watched is saved, copied, sent to another process and compiled as if it were not: whoever copies or
pickles it gets a hook in place of ours that does nothing and is known to every Python, with trainvitals or without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any


class Guest:
    """A forward hook or forward pre-hook of ours. Inside a compiled graph there is nothing to see, so it looks away."""

    def __init__(self, look: Callable[..., None]) -> None:
        self._look = look
        self._is_compiling = import_module("torch.compiler").is_compiling

    def __call__(self, *given: Any) -> None:
        if not self._is_compiling():
            self._look(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes whatever a hook is given, does nothing, returns None


@contextmanager
def shown_out(model: Any) -> Iterator[None]:
    """Our hooks are off the model and all its parts for a while, and then where they were."""
    places = [hooks for part in model.modules() for hooks in (part._forward_pre_hooks, part._forward_hooks)]
    taken = [(hooks, dict(hooks)) for hooks in places if any(isinstance(hook, Guest) for hook in hooks.values())]
    for hooks, before in taken:
        for number, hook in before.items():
            if isinstance(hook, Guest):
                del hooks[number]
    try:
        yield
    finally:
        for hooks, before in taken:
            added = {number: hook for number, hook in hooks.items() if number not in before}
            kept = {number: hook for number, hook in before.items() if number in hooks or isinstance(hook, Guest)}
            hooks.clear()
            hooks.update(kept | added)
