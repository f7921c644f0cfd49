"""Calls of the user's modules, seen without anything on the modules themselves.

A hook on a module is a part of it: it is saved, copied, scripted and sent with it. So there is none. A module that is
called first asks for `_compiled_call_impl`, which `Module.compile()` sets on the module and which is None in the class;
`ModuleCalls` is that attribute of the class. It answers None, so that the call goes on as ever, for every module but
the outermost one that somebody watches.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from threading import get_ident
from typing import Any, Protocol

from trainvitals.trainer.tracebacks import drop_frame

Look = Callable[[Any, Any], None]
"""(module, output): a look at what a module returned."""


class CallFollower(Protocol):
    """Who is told of a call. Nothing here may raise."""

    def forward_begins(self, module: Any, args: Any, kwargs: Any) -> None: ...
    def forward_ends(self, error: BaseException | None) -> None: ...


class CallListener(Protocol):
    """Who wants to know of calls."""

    def follow_call(self, module: Any) -> CallFollower | None:
        """A module is about to be called, not from inside a call that is followed: who follows it, if anybody."""


class ModuleCalls:
    """The attribute of the class. `looks` are for parts of the model, by their id, while it is being called."""

    def __init__(self) -> None:
        self.looks: dict[int, Look] = {}
        self.quiet = False
        """Nobody wants to know of any call now: neither a listener nor, inside of a call, a look."""
        self.alone = False
        """There is one listener."""
        self._listeners: Sequence[CallListener] = ()
        self._inside = False
        self._muted = False
        self._thread = 0

    def prepare(self) -> None:
        """torch is there."""
        self._is_tracing = import_module("torch._C")._get_tracing_state
        self._is_compiling = import_module("torch.compiler").is_compiling
        self._compiler = import_module("torch._C._dynamo.eval_frame").get_eval_frame_callback

    def hear(self, listeners: Sequence[CallListener]) -> None:
        """Tell these from now on."""
        self._listeners, self.alone = listeners, len(listeners) == 1

    def mute(self, muted: bool) -> None:
        """Tell nobody of calls for now, if there is only one who would be told."""
        self._muted = muted = muted and self.alone
        self.quiet = muted or (self._inside and not self.looks)

    def __get__(self, module: Any, owner: Any = None) -> Callable[..., Any] | None:
        # First, because torch.compile takes it for a constant: what follows is in no graph and in no guard.
        if is_traced() or self.quiet or module is None:
            return None
        # What we do would become a graph, or a part of one.
        if self._compiler() or self._is_tracing() or self._is_compiling():
            return None
        if self._inside:
            look = self.looks.get(id(module)) if get_ident() == self._thread else None
            return None if look is None else partial(self._call_part, module, look)
        followers = [follower for listener in self._listeners if (follower := listener.follow_call(module))]
        return partial(self._call, module, followers) if followers else None

    def _call(self, module: Any, followers: Sequence[CallFollower], /, *args: Any, **kwargs: Any) -> Any:
        for follower in followers:
            follower.forward_begins(module, args, kwargs)
        self._inside, self._thread, self.quiet = True, get_ident(), not self.looks
        failure: BaseException | None = None
        look = self.looks.get(id(module))
        try:
            if look is not None:  # a model that is a single layer
                return self._call_part(module, look, *args, **kwargs)
            return module._call_impl(*args, **kwargs)
        except BaseException as error:
            failure = error
            drop_frame(error)
            raise
        finally:
            self._inside, self.quiet = False, self._muted
            for follower in followers:
                follower.forward_ends(failure)

    def _call_part(self, module: Any, look: Look, /, *args: Any, **kwargs: Any) -> Any:
        try:
            output = module._call_impl(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        look(module, output)
        return output


def is_traced() -> bool:
    """Replaced by torch's own function once torch is there: of its kind the one that calls no other."""
    return False


def is_anything_compiled() -> bool:
    """torch.compile has made a graph in this process."""
    utilities = sys.modules.get("torch._dynamo.utils")
    return utilities is not None and utilities.counters["stats"]["unique_graphs"] > 0


def prepare(calls: ModuleCalls) -> None:
    """torch is there."""
    global is_traced
    is_traced = import_module("torch.compiler").is_dynamo_compiling
    # torch.compile begins no graph in a function of this file of torch: nor shall it in ours, called from there.
    where = inspect.getfile(import_module("torch.nn.modules.module"))
    ModuleCalls.__get__.__code__ = ModuleCalls.__get__.__code__.replace(co_filename=where)
    calls.prepare()
