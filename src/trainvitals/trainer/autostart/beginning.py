"""The first step of an optimizer, in a program that did not ask to be watched: from there on it is.

Until then there are only two hooks on all optimizers and a look at each loss, placed when torch is imported.
"""

from __future__ import annotations

from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainvitals.trainer.autostart.trouble import note_trouble

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run
    from trainvitals.trainer.watch.loop import Watch


class Beginning:
    """Passes the optimizers' steps on to the watch of the current run, which it starts if there is none."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._watch: Watch | None = None
        self._given_up = False
        self._losses: deque[Any] = deque(maxlen=64)
        self._unscaled: tuple[Any, Any] | None = None

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        watch = self._find_watch()
        if watch is not None:
            watch.optimizer_begins(optimizer, args, kwargs)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watch is not None:
            self._watch.optimizer_ends(optimizer, args, kwargs)

    def _find_watch(self) -> Watch | None:
        if self._given_up:
            return None
        try:
            from trainvitals.trainer.current import current_run

            run = current_run()
            if run is None or run is not self._run:
                self._watch = self._begin(run)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program
            self._given_up = True
            self._watch = None
            note_trouble(f"the training is not watched: {error!r:.300}")
        return self._watch

    def _begin(self, run: Run | None) -> Watch | None:
        from trainvitals.trainer.start import begin_automatically
        from trainvitals.trainer.watch import taps
        from trainvitals.trainer.watch.loop import Watch
        from trainvitals.trainer.watch.options import read_options

        ours = run is None
        if run is None:
            run = begin_automatically()
        self._run = run
        if run.watching is not None:
            return None  # the program watches its training itself
        # The program's own lines have its loss; without any, it is taken from backward().
        watch = Watch(run, read_options(run.settings, {"report": ours}))
        watch.automatic = True
        watch.discover(optimizers=False, models=True)
        if ours:
            watch.add_losses(self._losses)
        self._losses.clear()
        taps.stop(self)
        run.watching = watch
        return watch

    # -- what is heard before the first step (`taps.LoopListener`): only the loss, for the line of that step

    def backward_begins(self, tensors: Any) -> None:
        if self._unscaled is not None and self._unscaled[0] is tensors:
            tensors = self._unscaled[1]
        self._unscaled = None
        self._losses.append(tensors)

    def loss_is_scaled(self, loss: Any, scaled: Any) -> None:
        self._unscaled = (scaled, loss)

    def sees(self, module: Any) -> bool:
        return False

    def forward_begins(self, module: Any, args: Any, kwargs: Any) -> None: ...
    def forward_ends(self, error: BaseException | None) -> None: ...
    def data_begins(self, iterator: Any) -> None: ...
    def data_ends(self, batch: Any, exhausted: bool) -> None: ...
    def backward_ends(self, error: BaseException | None) -> None: ...
    def norm_is_known(self, norm: Any) -> None: ...


def autostart() -> None:
    """torch is there: wait for the first step. Nothing else is imported or started until then."""
    optimizers = import_module("torch.optim.optimizer")
    beginning = Beginning()
    for refused in import_module("trainvitals.trainer.watch.taps").listen(beginning):
        note_trouble(f"not seen by the phases: {refused}")
    optimizers.register_optimizer_step_pre_hook(beginning.before)
    optimizers.register_optimizer_step_post_hook(beginning.after)
