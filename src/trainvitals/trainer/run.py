"""A run, as the training sees it: what it is (`trainer/described_run.py`), what is logged to it
(`trainer/logging_run.py`), and here its beginning, its end and all else that can be asked of it."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainvitals.errors import JournalError, TrainvitalsError
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.events import ProgramFailure
from trainvitals.journal.documents.registration import PhaseNote
from trainvitals.journal.documents.rows import FAILED
from trainvitals.journal.documents.run import ENDED, RunFile
from trainvitals.settings import Settings
from trainvitals.trainer import current, failure_text, join, notices, outcomes, stacks
from trainvitals.trainer.logging_run import LoggingRun
from trainvitals.trainer.media_log import MediaLog
from trainvitals.trainer.outcomes import Outcome
from trainvitals.trainer.presence import Presence
from trainvitals.trainer.ranks import Rank

if TYPE_CHECKING:
    from trainvitals.journal.documents.benchmark import Benchmark
    from trainvitals.trainer.media import RunMedia
    from trainvitals.trainer.watch.loop import Watch

CLOSE_SECONDS = 1.0
"""How long the exit of a program may wait for disk space."""


class Run(LoggingRun):
    """One training run of this process. Made by `init`; also a context manager."""

    def __init__(self, folder: Path, rank: Rank, effective: Settings, file: RunFile, *, first_step: int = 0) -> None:
        super().__init__(folder, rank, effective, file, first_step=first_step)
        self.automatic = False
        """Started by `trainvitals run`, not by the program."""
        self.watching: Watch | None = None
        """What `watch` started."""
        self._owner = os.getpid()
        self._leads = False
        self._presence = Presence(folder, file, rank, effective, self._refusals)
        self._media = MediaLog(folder, rank.participant, effective, self._refusals)

    # -- the beginning

    def start(self, *, homeless: bool, leads: bool) -> None:
        """Start, in the process that called `init`. `homeless` if there is no folder yet; the process that `leads`
        speaks for the run on the terminal."""
        self._leads = leads
        self._files.is_homeless = homeless
        atexit.register(self._at_exit)
        if self._files and not homeless:
            self._presence.announce(self._end_cell)
            if leads:
                notices.announce(self.id, self.folder, self._settings)

    def _end_cell(self) -> None:
        if self.watching is not None:
            self.watching.pause()

    def _every_second(self, second: int) -> None:
        if self._files.is_homeless and self.is_of_this_process:
            self._move_in()
        super()._every_second(second)
        if self.is_of_this_process and not self._has_ended:
            self._presence.look_after_agent()

    def _move_in(self) -> None:
        """Create the folder that could not be created when the run began, if that is possible by now."""
        try:
            self._document.create()
        except (JournalError, OSError):
            return  # not yet
        self._files.is_homeless = False
        self._presence.announce(self._end_cell)

    # -- media

    def log_image(self, name: str, image: Any, step: int | None = None, *, caption: str = "") -> None:
        """Log an image: an array or tensor, a PIL image, a matplotlib figure, a file, or a list of them. Without
        `step`, the last one logged. All kinds of media: docs/media.md."""
        self._log_media(name, step, lambda media, name, at: media.log_image(name, image, at, caption))

    def log_table(
        self, name: str, table: Any, step: int | None = None, *, columns: Sequence[Any] | None = None
    ) -> None:
        """Log a table: rows as lists or mappings, a mapping of columns, or a frame of pandas or polars."""
        self._log_media(name, step, lambda media, name, at: media.log_table(name, table, at, columns))

    def log_histogram(self, name: str, values: Any, step: int | None = None, *, bins: int = 64) -> None:
        """Log how numbers are distributed; or the `(counts, edges)` that numpy made of them."""
        self._log_media(name, step, lambda media, name, at: media.log_histogram(name, values, at, bins))

    def log_text(self, name: str, text: str, step: int | None = None) -> None:
        """Log a text, such as what the model generated."""
        self._log_media(name, step, lambda media, name, at: media.log_text(name, text, at))

    def _log_media(self, name: str, step: int | None, write: Callable[[RunMedia, str, int | None], None]) -> None:
        if self._has_ended:
            text = f"media logged after finish(): run {self.id} has ended, not logged"
            self._refusals.warn_once("media after the end", text)
        if self._writer is not None:
            self._media.write(name, step, self._step, write)

    @property
    def media_left_out(self) -> int:
        """Images, tables, texts and histograms that were over a limit or found no room on the disk."""
        return self._media.left_out.total()

    # -- watching

    def watch(self, model: Any = None, optimizer: Any = None, loader: Any = None, **options: Any) -> Watch:
        """Measure the training from inside: phases of every step, gradients, layers, memory (docs/watch.md)."""
        from trainvitals.trainer.watch import watch

        return watch(self, model, optimizer, loader, **options)

    def benchmark(
        self, model: Any, example_input: Any, *, wait: bool = False, device: str | None = None, **options: Any
    ) -> Benchmark | None:
        """Measure the model as it is now, in another process (docs/bench.md): into the run, on its page and in its
        report. `options` are those of the command: `variants=("fp32", "bf16")`, `batches=(1, 8)`, `seconds=5`.

        The loop goes on meanwhile, if there are cores that it does not use; else this is refused with a warning. With
        `wait` the loop is paused and the result returned. Nothing is raised.
        """
        if self._has_ended or self.rank != 0 or not self._files:
            return None
        from trainvitals.bench import beside

        try:
            return beside.benchmark(
                model,
                example_input,
                self.folder,
                attempt=self.attempt,
                step=max(self._step, 0),
                wait=wait,
                device=device,
                ranks=self._rank.local_world_size,
                **options,
            )
        except TrainvitalsError as error:
            text = beside.describe_refusal(error)
            self.event(beside.FAILED_EVENT, text, severity="warning")
            self._refusals.warn_once("benchmark", text)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)
        return None

    def note_phase(self, phase: PhaseNote) -> None:
        """What this process is doing within its step: a sign of life for the agent, where steps take minutes."""
        if not self._has_ended:
            self._presence.note_phase(phase)

    def _ipython_display_(self) -> None:
        """`run` at the end of a cell: the run below it, as by `trainvitals.show`."""
        from trainvitals.trainer import showing

        if showing.find_kernel_shell() is None:
            raise NotImplementedError  # IPython in a terminal: its words for "print the repr"
        showing.show(self)

    # -- the end

    def finish(self, status: str = "finished", *, exception: BaseException | None = None) -> None:
        """End the run. `status` is `finished` or `failed`; safe to call twice."""
        if status not in ENDED:
            raise TrainvitalsError(f"status '{status}' is not one of {', '.join(ENDED)}", hint='use finish("failed")')
        self._finish(Outcome(status, exception))

    def end_loop(self, error: BaseException | None) -> None:
        """The training loop has returned, or this exception ended it; the process may be killed at any time now."""
        self._finish(Outcome("finished" if error is None else "failed", error))

    def end_as(self, outcome: Outcome) -> None:
        """End as a framework has made known before, or as far as it is known."""
        self._finish(outcome)

    def leave(self) -> None:
        """A supervisor ends this process amid its loop, and the run goes on without it, or is ended by the supervisor:
        that the process is killed next is no news."""
        if not self._has_ended and self.is_of_this_process:
            with contextlib.suppress(OSError):
                self._presence.end("finished")

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(outcomes.of_block(error))

    def _at_exit(self) -> None:
        self._finish(outcomes.at_exit())

    def _finish(self, outcome: Outcome) -> None:
        if self._has_ended or not self.is_of_this_process:
            return
        current.note_end(self)
        atexit.unregister(self._at_exit)
        join.note_end(self.folder)
        try:
            if self.watching is not None:
                self.watching.close(outcome.exception)
            self._drain()
            if self._files.is_homeless:
                self._move_in()
            cause = outcome.explain()
            self._write_last_events(outcome, cause)
            self._has_ended = True
            self._close(outcome, cause)
        except Exception as error:  # noqa: BLE001 - the end of the user's program must not fail because of us
            self._has_ended = True
            self._refusals.warn_once("finish", f"the end of run {self.id} could not be written: {error!r:.300}")

    def _write_last_events(self, outcome: Outcome, cause: Cause | None) -> None:
        exception, trace = outcome.exception, outcome.traceback
        if exception is not None:
            trace = failure_text.format_traceback(exception)
        if trace is not None and cause is not None:
            self.event(
                FAILED, str(cause), severity="critical", **ProgramFailure(reason=cause, traceback=trace).as_json()
            )
        if exception is not None:
            failure_text.note_written(exception)
        if self.refused:
            self.event("refused", f"{self.refused} values were not numbers and were not logged", severity="warning")
        if left_out := self._media.left_out:
            text = "; ".join(f"{count:,} {why}" for why, count in left_out.items())
            self.event("media_left_out", f"media not kept: {text}", severity="warning")
        if self._python_rules is not None:
            self._python_rules.close()

    def _close(self, outcome: Outcome, cause: Cause | None) -> None:
        newest = self._writer.path if self._writer is not None else None
        self._close_writers(0.0 if self._files.is_homeless else CLOSE_SECONDS)
        stacks.disarm()
        self._presence.let_go()
        if not self._files.is_homeless:
            last_step = self._step if self._step >= 0 else None
            self._document.write_end(outcome.status, cause, last_step, outcome.is_tentative)
        self._presence.end(outcome.status)
        if self._leads:
            notices.sum_up(self.id, self.folder, self._settings, outcome.status, self._step, newest)

    def hand_over(self) -> None:
        """The program calls init() itself: hand over the folder as it was found."""
        self._presence.let_go()
        if self.watching is not None:
            self.watching.close()
        self._has_ended = True
        self._close_writers(CLOSE_SECONDS)
        atexit.unregister(self._at_exit)
        self._document.leave_to_command()

    # -- copies: there is one run, and a worker process that receives it writes a separate file

    def __copy__(self) -> Run:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Run:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._settings.as_json()
        return current.reach, (self.folder, self._rank, given, self._document.file, self._owner, self._step)

    def reach(self, owner: int) -> None:
        """Be a copy in another process than `owner`: write a separate file, and leave the end to the owner."""
        self._owner = owner
        for writer in (self._writer, self._events):
            if writer is not None:
                writer.write_apart()

    @property
    def is_of_this_process(self) -> bool:
        """Not that of the parent, in a forked child."""
        return self._owner == os.getpid()
