"""What every callback has: a run to write to, and a guard around everything it does in the user's training.
Tested in tests/integrations/test_transformers.py."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from trainvitals import settings
from trainvitals.errors import MetricError, TrainvitalsError
from trainvitals.handlers import is_from_handler
from trainvitals.stderr import print_line
from trainvitals.trainer.autostart import capture
from trainvitals.trainer.current import current_run
from trainvitals.trainer.outcomes import Outcome
from trainvitals.trainer.run import Run
from trainvitals.trainer.start import begin_automatically, init
from trainvitals.trainer.watch.options import read_options

if TYPE_CHECKING:
    from trainvitals.trainer.watch.loop import Watch

# What `init` takes besides settings.
_INIT = ("name", "config", "tags", "notes", "resume", "role", "rank", "world_size")
RL_STALL_SECONDS = 600.0
"""For reinforcement learning: a step takes minutes, in which the process that logs only waits for others."""


class Attachment:
    """A callback's attachment to a run: the program's, or one that it starts.

    A run that it started stays open after the training, for a later `evaluate()` and `test()`. It ends with the
    program, with `trainvitals.finish()`, or when the next training begins.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        watch: bool | Mapping[str, Any],
        *,
        automatic: bool = False,
        stall_after: float | None = None,
    ) -> None:
        """SettingError at once for an unknown option. `watch` is False, True, or the options of `Run.watch`.
        `stall_after` is what suits the framework, in seconds, unless somebody has set it."""
        given = {key: value for key, value in options.items() if key not in _INIT and value is not None}
        effective = settings.resolve_for_training(given)
        if watch:
            read_options(effective, watch if isinstance(watch, Mapping) else {})
        self.run: Run | None = None
        self.watching: Watch | None = None
        self.failed = False
        """Something of ours raised; it was reported once, and from then on nothing is done."""
        self._options = dict(options)
        if stall_after is not None and effective.origin("stall_after") == "default":
            self._options["stall_after"] = stall_after
        self._watch = watch
        self.automatic = automatic
        """Installed by `trainvitals run`, not by the program."""
        self.reported_to: frozenset[str] = frozenset()
        """Clients of trackers that the framework reports to, such as `wandb`."""
        self._own = False

    def begin(self, config: Mapping[str, Any], *, resume: str | None = None, fresh: bool = False) -> Run:
        """The run to write to, with `config` added. `resume` is the run that a checkpoint came from; `fresh` requests
        a new run instead of the one that this callback had before."""
        run = current_run()
        if run is not None and (self._own and fresh if run is self.run else run in _over):
            run.finish()
            run = None
        if run is None or (run.automatic and not self.automatic):
            run = self._begin_own(resume)
            self._own = True
        elif run is not self.run:
            self._own = False
        self.run = run
        run.add_config(config)
        return run

    def _begin_own(self, resume: str | None) -> Run:
        if self.automatic:
            return begin_automatically()
        options = dict(self._options)
        if resume is not None and "resume" not in options:
            try:
                return init(**{**options, "resume": resume})
            except TrainvitalsError:
                print_line(f"run {resume} of the checkpoint does not exist: starting a new one")
        return init(**options)

    def watch(self, model: Any = None, optimizer: Any = None, *, report: bool = True) -> None:
        """Measure phases, gradients and memory, unless the program does that itself. With `report`, each step's
        loss and learning rate are written too."""
        assert self.run is not None
        there = self.run.watching
        if not self._watch or (there is not None and there.alive and not there.automatic):
            return
        options = dict(self._watch) if isinstance(self._watch, Mapping) else {}
        report = report and not self.is_logged_by_tracker
        self.watching = self.run.watch(model, optimizer, **{"report": report, **options})

    @property
    def reports(self) -> bool:
        """The loss, learning rate and gradient norm of every step are written by the watch."""
        return self.watching is not None and self.watching.alive and self.watching.options.report

    @property
    def is_logged_by_tracker(self) -> bool:
        """The framework reports the same numbers to a tracker whose client logs into this run."""
        return self.automatic and any(capture.is_pointed_here(client) for client in self.reported_to)

    def leave_reporting(self) -> None:
        """The program logs its own loss: that line is used."""
        if self.watching is not None and self.watching.options.report:
            self.watching.options = replace(self.watching.options, report=False)

    def end_training(self) -> None:
        """The training is over: write its last step. The run stays open until another training begins."""
        if self.watching is not None:
            self.watching.close()
            self.watching = None
        if self.run is not None and self._own and not self.automatic:
            _over.add(self.run)

    def finish(self, exception: BaseException | None = None) -> None:
        """End the run, if this callback started it and it is still active."""
        if self.run is not None and self._own and self.run is current_run():
            if isinstance(exception, KeyboardInterrupt):
                self.run.__exit__(type(exception), exception, None)
            else:
                self.run.finish("finished" if exception is None else "failed", exception=exception)

    def end_as(self, outcome: Outcome) -> None:
        """The same, as far as it is known how the training ended."""
        if self.run is not None and self._own and self.run is current_run():
            self.run.end_as(outcome)

    def fail(self, where: str, error: Exception) -> None:
        self.failed = True
        text = f"{where} failed, training continues without it: {error!r:.300}"
        print_line(text)
        if self.run is not None:
            self.run.event("integration", text, severity="warning")


_over: weakref.WeakSet[Run] = weakref.WeakSet()
"""Runs of callbacks whose training is over."""


class Attached(Protocol):
    """A callback."""

    attachment: Attachment


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Around everything that a framework calls: a failure is reported once, and the training continues."""

    @functools.wraps(method)
    def call(self: Attached, /, *args: Any, **kwargs: Any) -> None:
        if self.attachment.failed:
            return
        try:
            method(self, *args, **kwargs)
        except MetricError:
            raise  # strict mode
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's training.
            self.attachment.fail(f"{type(self).__name__}.{method.__name__}", error)

    return call
