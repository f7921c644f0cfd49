"""Watching a training from inside: phases of a step, gradients, activations, memory.

`Run.watch` is the door; `StepClock` is for callbacks that know their phases themselves. Nothing here imports torch
until something of torch is watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainvitals.trainer.watch.clock import StepClock as StepClock
from trainvitals.trainer.watch.clock import StepTimes as StepTimes
from trainvitals.trainer.watch.options import read_options

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run
    from trainvitals.trainer.watch.loop import Watch


def watch(run: Run, model: Any = None, optimizer: Any = None, loader: Any = None, **options: Any) -> Watch:
    """Watch the training of `model` by `optimizer` with batches from `loader`, until the run ends or `remove()`.

    Each may be one, a list of several, or None: then optimizers are watched as they step, and the models they train
    are found at the first step. Called again for the same run, it adds to what is watched.
    """
    from trainvitals.trainer.watch.loop import Watch

    models, optimizers = _several(model), _several(optimizer)
    current = run.watching
    if current is not None and (current.automatic or not current.alive):
        current.close()
        current = None
    if current is None:
        current = Watch(run, read_options(run.settings, options))
        current.discover(optimizers=not optimizers, models=not models)
        run.watching = current
    elif options and read_options(run.settings, options) != current.options:
        run.event("watch", "watch() was called again with other options: the first ones count", severity="warning")
    current.add(models, optimizers, loader)
    return current


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
