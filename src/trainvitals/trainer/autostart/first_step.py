"""The start of a training in a program that does not call `watch`: it is watched from its first batch on.

When torch is imported, two hooks on all optimizers and `Moments` are placed, which only take notes; the run begins when
something is trained for the first time, and has what was noted until then.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainvitals.trainer.autostart.capture import is_logging
from trainvitals.trainer.autostart.trouble import note_trouble
from trainvitals.trainer.watch import module_calls

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run
    from trainvitals.trainer.watch.moments import Moments


class Beginning:
    """Passes the optimizers' steps on to the moments of the current run, which it starts if there is none."""

    def __init__(self, moments: Moments) -> None:
        self._moments: Moments | None = moments
        self._run: Run | None = None
        self._given_up = False

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if module_calls.is_traced():
            return  # first of all, because torch.compile takes it for a constant: nothing in a step that is compiled
        if self._moments is not None and self._moments.light.takes(optimizer):
            return  # the run is the same as before
        if self._moments is not None and self._moments.observer is None and self._moments.is_foreign_thread():
            return  # the thread that is followed begins the run, or is doing so now: two at once would begin it twice
        self.begin_if_new()
        if self._moments is not None:
            self._moments.before_step(optimizer, args, kwargs)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not module_calls.is_traced() and self._moments is not None:
            self._moments.light.update_ends(optimizer)

    def begin_if_new(self) -> None:
        """Watch the current run, if it is a new one."""
        if self._given_up:
            return
        try:
            from trainvitals.trainer.current import current_run

            run = current_run()
            if run is None or run is not self._run:
                with nullcontext() if self._moments is None else self._moments.clock.left_out():
                    self._begin(run)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program
            self._given_up = True
            self._stop()
            note_trouble(f"the training is not watched: {error!r:.300}")

    def _begin(self, run: Run | None) -> None:
        from trainvitals.trainer.start import begin_automatically
        from trainvitals.trainer.watch.loop import Watch
        from trainvitals.trainer.watch.options import read_options

        ours = run is None
        if run is None:
            run = begin_automatically()
        self._run = run
        if run.watching is not None:  # the program watches its training itself
            self._stop()
            return
        noted = self._moments if self._moments is not None and self._moments.observer is None else None
        # The program's own lines have its loss; without any, it is taken from backward().
        watch = Watch(run, read_options(run.settings, {"report": ours and not is_logging()}), noted)
        watch.automatic = True
        watch.discover(optimizers=False, models=True)
        self._moments = watch.moments
        run.watching = watch

    def _stop(self) -> None:
        if self._moments is not None and self._moments.observer is None:
            self._moments.alive = False
            import_module("trainvitals.trainer.watch.taps").stop(self._moments)
        self._moments = None


def autostart() -> None:
    """torch is imported: wait for a training. Nothing else is started until then."""
    optimizers = import_module("torch.optim.optimizer")
    moments = import_module("trainvitals.trainer.watch.moments").Moments()
    beginning = Beginning(moments)
    moments.begin_observing = beginning.begin_if_new
    for refused in import_module("trainvitals.trainer.watch.taps").listen(moments):
        note_trouble(f"not included in the phases: {refused}")
    optimizers.register_optimizer_step_pre_hook(beginning.before)
    optimizers.register_optimizer_step_post_hook(beginning.after)
