"""Updates on Keras' torch backend, which Keras' own optimizers make: shown to torch as steps of an optimizer, so that
whoever follows torch's optimizers follows them too, with phases, gradient norm and layers. Tested in
tests/integrations/test_keras.py."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

import torch

from trainvitals.handlers import is_from_handler
from trainvitals.stderr import print_line
from trainvitals.trainer.current import current_run
from trainvitals.trainer.tracebacks import drop_frame

Found = TypeVar("Found")


class Updates(torch.optim.Optimizer):
    """Stands for a Keras optimizer. Updates nothing itself: a step is the call of Keras' own update."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        super().__init__(parameters, {})

    def step(self, update: Callable[[], Any]) -> Any:  # type: ignore[override]
        return update()


class Fit:
    """A `fit()` under way: which step is the next."""

    def __init__(self) -> None:
        self.step = 0
        """The last one, as Keras counts."""
        self.over = False
        self._updates: Updates | None = None

    def update(self, grads: Any, variables: Any, update: Callable[[], Any]) -> Any:
        self.step += 1
        shown = self._guard(lambda: self._show(grads, variables))
        result = update() if shown is None else shown.step(update)
        self._guard(self._name_step)
        return result

    def _guard(self, do: Callable[[], Found]) -> Found | None:
        """Around what is ours within the user's update: after a failure, which is told of, no further one is shown."""
        if self.over:
            return None
        try:
            return do()
        except Exception as error:
            if is_from_handler(error):
                raise
            self.over = True
            print_line(f"updates of Keras are no longer followed, training continues without: {error!r:.300}")
            return None

    def _name_step(self) -> None:
        run = current_run()
        if run is not None and run.watching is not None:
            run.watching.name_step(self.step)

    def _show(self, grads: Any, variables: Any) -> Updates | None:
        """None if the gradients are not those that backward left: scaled, or computed in another way."""
        parameters = [variable.value for variable in variables or ()]
        if not parameters or not all(
            gradient is parameter.grad and parameter.is_leaf
            for gradient, parameter in zip(grads, parameters, strict=False)
        ):
            return None
        known = [] if self._updates is None else self._updates.param_groups[0]["params"]
        if [id(parameter) for parameter in known] != [id(parameter) for parameter in parameters]:
            self._updates = Updates(parameters)
        return self._updates


fits: weakref.WeakKeyDictionary[Any, Fit] = weakref.WeakKeyDictionary()
"""By Keras optimizer."""


def autostart() -> None:
    """Show every update inside of a `fit()` that is followed."""
    base = import_module("keras.src.optimizers.base_optimizer").BaseOptimizer
    original = base.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        fit = None if torch.compiler.is_compiling() else fits.get(self)
        update = functools.partial(original, self, grads, trainable_variables)
        scaled = self.loss_scale_factor is not None
        try:
            if fit is None or fit.over:
                return update()
            return fit.update(grads, () if scaled else trainable_variables, update)
        except BaseException as error:
            drop_frame(error)
            raise

    base.apply = apply
