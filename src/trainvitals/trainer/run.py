"""A run, as the training sees it: log, event, finish.

`log` encodes one line and hands it to the kernel; nothing else happens in the user's process. No thread, no socket,
no queue. Nothing here raises into the loop: what cannot be logged is counted and warned about once (or raised, in
strict mode).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from trainvitals import runtime, settings
from trainvitals.errors import JournalError, MetricError, TrainvitalsError, name_kind
from trainvitals.handlers import is_from_handler
from trainvitals.journal.documents.cause import INTERRUPTED, Cause
from trainvitals.journal.documents.registration import PhaseNote
from trainvitals.journal.documents.rows import FAILED, new_event
from trainvitals.journal.documents.run import ENDED, RUNNING, RunFile
from trainvitals.journal.encoding import LINE_START, MILLISECONDS, encode_line, format_time, start_lines
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter
from trainvitals.redaction import redact
from trainvitals.trainer import current, facts, failure_text, join, notices, ranks, stacks
from trainvitals.trainer.pending import Pending
from trainvitals.trainer.presence import Presence
from trainvitals.trainer.rank_files import RankFiles
from trainvitals.trainer.refusals import Refusals
from trainvitals.trainer.row_values import MeasuredRow, choose_step, sort_values
from trainvitals.trainer.run_document import RunDocument

if TYPE_CHECKING:
    from trainvitals.alerts.python_rules import PythonRules
    from trainvitals.journal.documents.benchmark import Benchmark
    from trainvitals.journal.summaries import SummaryWithMean
    from trainvitals.trainer.media import RunMedia
    from trainvitals.trainer.watch.loop import Watch

DEVICE_WAIT_SECONDS = 5.0
LONGEST_NAME = 500
"""Characters of the name of an image, a table, a text or a histogram."""
CLOSE_SECONDS = 1.0
"""How long the exit of a program may wait for disk space."""

_dumps = orjson.dumps
_NEWLINE = orjson.OPT_APPEND_NEWLINE
_time_ns = time.time_ns
_os_write = os.write
_join = b"".join
_MILLIS = MILLISECONDS


class Run:
    """One training run of this process. Made by `init`; also a context manager."""

    def __init__(
        self,
        folder: Path,
        rank: ranks.Rank,
        effective: settings.Settings,
        file: RunFile,
        *,
        first_step: int = 0,
    ) -> None:
        self.folder = folder
        self.role = rank.role
        self.rank = rank.rank
        self.world_size = rank.world_size
        self.automatic = False
        """Started by `trainvitals run`, not by the program."""
        self.watching: Watch | None = None
        """What `watch` started."""
        self._rank = rank
        self._settings = effective
        self._document = RunDocument(folder, file, rank, effective)
        self._presence = Presence(folder, file, rank, effective)
        self._refusals = Refusals(effective.strict)
        self._owner = self._process = os.getpid()
        self._step = first_step - 1
        self._clock: tuple[int, bytes] = (0, b"")  # a whole second in ns, and how a line of that second begins
        self._fd = -1
        self._careful = False  # tensors or arrays were logged: every call takes the slow path, which handles them
        self._python_rules: PythonRules | None = None
        self._media: RunMedia | None = None
        self._status: str | None = None
        self._also = {"correlation_id": file.correlation_id} if effective.correlation_ids else {}
        self._pending = Pending(self._also)
        self._leads = False
        self._homeless = False  # the folder could not be made, on a read-only or full disk: lines wait in memory
        self._files = RankFiles(folder, effective)
        self._writer: LineWriter | None = None
        self._events: LineWriter | None = None
        if not (effective.rank_zero_only and rank.rank != 0):
            is_only = rank.world_size == 1 and not rank.has_other_roles
            name = FileName("training", self.attempt, "", rank=None if is_only else rank.rank, role=rank.role)
            self._writer = self._files.open(name, on_fd=self._use_fd)
            self._events = self._files.open(name._replace(table="events", rank=rank.rank))
        if self._also:
            self._be_careful()  # every line has more than its numbers

    def start(self, *, homeless: bool, leads: bool) -> None:
        """Start, in the process that called `init`. `homeless` if there is no folder yet; the process that `leads`
        speaks for the run on the terminal."""
        self._leads = leads
        self._homeless = self._files.is_quiet = homeless and bool(self._files)
        atexit.register(self._at_exit)
        if self._files and not homeless:
            self._announce()
            if leads:
                notices.announce(self.id, self.folder, self._settings)

    def _announce(self) -> None:
        self._presence.announce(self._begin_cell, self._end_cell)

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

    def _use_fd(self, fd: int) -> None:
        self._fd = -1 if self._careful else fd

    # -- identity

    @property
    def id(self) -> str:
        return self._document.file.id

    @property
    def project(self) -> str:
        return self._document.file.project

    @property
    def name(self) -> str:
        return self._document.file.name

    @property
    def attempt(self) -> int:
        return self._document.file.attempt

    @property
    def config(self) -> Mapping[str, Any]:
        return self._document.file.config or {}

    @property
    def tags(self) -> tuple[str, ...]:
        return self._document.file.tags

    @property
    def notes(self) -> str:
        return self._document.file.notes

    @property
    def participant(self) -> Participant:
        """Which participant of the run this process is."""
        return self._rank.participant

    @property
    def step(self) -> int:
        """The last logged step, -1 before the first."""
        return self._step

    @property
    def refused(self) -> int:
        """Values that were not numbers and so were not logged."""
        return self._refusals.count

    @property
    def dropped(self) -> int:
        """Lines that could not be written and are lost: the disk was full for longer than the buffer lasted."""
        return self._files.dropped

    @property
    def media_left_out(self) -> int:
        """Images, tables, texts and histograms that were over a limit or found no room on the disk."""
        return self._media.left_out.total() if self._media is not None else 0

    @property
    def settings(self) -> settings.Settings:
        """The settings in force."""
        return self._settings

    @property
    def summary(self) -> dict[str, SummaryWithMean]:
        """Last, min and max of every metric with their steps, and the mean, read back from the folder."""
        from trainvitals.journal.reader import RunReader
        from trainvitals.journal.summaries import SummaryWithMean

        reader = RunReader(self.folder)
        found = reader.summary(participant=self.participant)
        means = reader.means(found, self.participant)
        return {name: SummaryWithMean(**asdict(item), mean=means.get(name)) for name, item in found.items()}

    def __repr__(self) -> str:
        return f"<trainvitals run {self.id} in {self.folder}>"

    def _ipython_display_(self) -> None:
        """`run` at the end of a cell: the run below it, as by `trainvitals.show`."""
        from trainvitals.trainer import showing

        if showing.find_kernel_shell() is None:
            raise NotImplementedError  # IPython in a terminal: its words for "print the repr"
        showing.show(self)

    # -- logging

    def log(self, metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
        """Log numbers of one step. Without `step`, one more than the last.

        When it returns, the line can be read by any other process and survives `kill -9`; a value that is still being
        computed on a device follows as soon as it is ready. Nested mappings are flattened with `/`.
        """
        # The fast path of nearly every call: a flat dict of finite Python numbers, an integer step, a writable file.
        # Everything else takes the slow path below. Each test here costs as much as a digit of the line, so there are
        # few: `sum` is a finite float only if every value is a finite Python number; anything else raises.
        # The type is checked first, because comparing the sum of tensors would wait for their device.
        try:
            total = sum(metrics.values(), 0.0)  # type: ignore[union-attr]
            if (
                type(total) is float
                and total - total == 0.0
                and type(step) is int
                and metrics
                and not more
                and "timestamp" not in metrics
                and "step" not in metrics
            ):
                second, prefix = self._clock
                millis = (_time_ns() - second) // 1_000_000
                if 0 <= millis < 1000:
                    line = _join((prefix, _MILLIS[millis], _dumps(step), b",", _dumps(metrics, None, _NEWLINE)[1:]))
                    self._step = step
                    if _os_write(self._fd, line) == len(line):
                        return
                    assert self._writer is not None
                    self._writer.mark_torn()
        except Exception as error:
            # Whatever it is, the slow path reports it or survives it.
            if is_from_handler(error):
                raise  # perhaps just after the line was written, which must not be written twice
        try:
            self._log_slowly(metrics, step, more)
        except MetricError:
            raise  # strict mode: asked for
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop: nothing of ours may stop it
            self._refusals.survive(error)

    def _log_carefully(self, metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
        """`log` of a run that logs tensors or arrays: adding those up, as `log` does, would be work for the device."""
        try:
            self._log_slowly(metrics, step, more)
        except MetricError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

    def _log_slowly(self, metrics: Mapping[str, Any] | None, step: Any, more: Mapping[str, Any]) -> None:
        if self._status is not None:
            self._refusals.count += 1
            text = f"log() after finish(): run {self.id} has ended, not logged"
            self._refusals.warn_once("ended", text)
            return
        writer = self._writer
        if writer is None:
            return
        if metrics is not None and not isinstance(metrics, Mapping):
            self._refusals.refuse(f"log() got {name_kind(metrics)}, not a mapping of names to numbers")
            return
        if os.getpid() != self._process:  # just forked: these belong to the parent, and the device with them
            self._process = os.getpid()
            self._pending.clear()
        row = sort_values(metrics, step, more, self._refusals, self._be_careful)
        with writer.lock:
            number = choose_step(row.step, self._step + 1, self._refusals)
            if not row.values and not row.waiting:
                return
            self._step = number
            now = _time_ns()
            if not 0 <= now - self._clock[0] < 1_000_000_000:
                self._every_second(now // 1_000_000_000)
            stamp = format_time(now // 1_000_000 / 1000, digits=3)
            if row.values:
                writer.append(encode_line({"timestamp": stamp, "step": number, **self._also, **row.values}))
            if row.waiting:
                self._pending.add(stamp, number, row.waiting)
            arrived = self._pending.write(writer)
        if self._python_rules is not None:
            for late in arrived:
                self._python_rules.check(late.values, late.step)
            self._python_rules.check(row.values, number)

    def _be_careful(self) -> None:
        """From now on every call takes the slow path."""
        self._careful, self._fd = True, -1
        self.log = self._log_carefully  # type: ignore[method-assign]

    @property
    def alerts(self) -> PythonRules:
        """Your own rules in Python, evaluated in this process: `run.alerts.add_rule(...)` (docs/alerts.md)."""
        if self._python_rules is None:
            from trainvitals.alerts.python_rules import PythonRules

            name = FileName("alerts", self.attempt, "", rank=self.rank, role=self.role)
            self._python_rules = PythonRules(self._files.open(name), self.participant, self._be_careful)
        return self._python_rules

    def _every_second(self, second: int) -> None:
        self._clock = (second * 1_000_000_000, start_lines(second))
        if self._homeless and self.is_of_this_process:
            self._move_in()
        if self._writer is not None:
            self._writer.rotate_if_due()
        self._files.check()
        if self.is_of_this_process and self._status is None:
            self._presence.look_after_agent()

    def _move_in(self) -> None:
        """Create the folder that could not be created when the run began, if that is possible by now."""
        try:
            self._document.create()
        except (JournalError, OSError):
            return  # not yet
        self._homeless = self._files.is_quiet = False
        self._announce()

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

    def _log_media(self, name: str, step: int | None, log: Callable[[RunMedia, str, int | None], None]) -> None:
        if self._status is not None:
            text = f"media logged after finish(): run {self.id} has ended, not logged"
            self._refusals.warn_once("media after the end", text)
        if self._writer is None:
            return
        try:
            if self._media is None or self._media.process != os.getpid():
                from trainvitals.trainer.media import RunMedia

                self._media = RunMedia(self.folder, self.participant, self._settings, self._refusals)
            if step is None:
                step = self._step if self._step >= 0 else None
            else:
                step = choose_step(step, self._step, self._refusals)
            log(self._media, str(name)[:LONGEST_NAME], step)
        except MetricError:
            raise  # strict mode: asked for
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

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
        if self._status is not None or self.rank != 0 or not self._files:
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
                **options,
            )
        except TrainvitalsError as error:
            text = beside.describe_refusal(error)
            self.event(beside.FAILED_EVENT, text, severity="warning")
            self._refusals.warn_once("benchmark", text)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)
        return None

    def write_row(self, step: int, values: Mapping[str, float], microseconds: int) -> None:
        """A line of `step` that was measured outside the loop, at that time; the step count is unchanged."""
        self.write_rows([MeasuredRow(step, values, microseconds)])

    def write_rows(self, rows: Sequence[MeasuredRow]) -> None:
        """Several such lines, written with one system call."""
        lines = []
        for step, values, microseconds in rows:
            second, rest = divmod(microseconds, 1_000_000)
            if second != self._clock[0] // 1_000_000_000:
                self._every_second(second)
            start = self._clock[1][len(LINE_START) :].decode()
            stamp = f"{start}{rest // 1000:03d}Z"
            lines.append(encode_line({"timestamp": stamp, "step": step, **self._also, **values}))
        if self._writer is not None and lines:
            self._writer.append_all(lines)
        if self._python_rules is not None:
            for row in rows:
                self._python_rules.check(row.values, row.step)

    def add_config(self, values: Mapping[str, Any]) -> None:
        """Add to the configuration what is known only now; existing values are kept."""
        try:
            self._document.add_config(values)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

    def change(self, *, config: Mapping[str, Any] | None = None, **fields: str | tuple[str, ...]) -> None:
        """Another `name`, `notes` or `tags`, or other values in the configuration, whose other values stay."""
        try:
            self._document.revise(config=config, **fields)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

    def _begin_cell(self, began: str) -> None:
        try:
            self._presence.begin_cell(began)
        except OSError as error:  # the runtime folder is not writable: an idle notebook may be reported as stalled
            text = f"cannot report the running cell to the agent: {error.strerror}"
            self._refusals.warn_once("cell", text)

    def _end_cell(self) -> None:
        if self.watching is not None:
            self.watching.pause()
        self._begin_cell("")

    def note_phase(self, phase: PhaseNote) -> None:
        """What this process is doing within its step: a sign of life for the agent, where steps take minutes."""
        if self._status is not None:
            return
        try:
            self._presence.note_phase(phase)
        except OSError as error:  # the runtime folder is not writable: a long phase may be reported as a stall
            self._refusals.warn_once("phase", f"cannot report the phase of the step to the agent: {error.strerror}")

    def advance(self, step: int) -> int:
        """Steps up to this one are over, though the loop may have logged none of them. The last one now."""
        if step > self._step:
            self._step = step
        return self._step

    def event(self, event: str, message: str = "", *, severity: str = "info", **data: Any) -> None:
        """Record an event: a checkpoint, an evaluation, a change of the data."""
        if self._events is None or self._status is not None:
            return
        try:
            row = new_event(
                facts.make_jsonable(event),
                facts.make_jsonable(message),
                severity=severity,
                **self.participant.labels,
                host=runtime.host_name(),
                correlation_id=self._document.file.correlation_id,
                step=self._step,
                data=redact(facts.make_jsonable(data), extra=self._settings.redact) if data else None,
            )
            self._events.append(encode_line(row.as_json()))
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

    # -- the end

    def finish(self, status: str = "finished", *, exception: BaseException | None = None) -> None:
        """End the run. `status` is `finished` or `failed`; safe to call twice."""
        if status not in ENDED:
            raise TrainvitalsError(f"status '{status}' is not one of {', '.join(ENDED)}", hint='use finish("failed")')
        self._finish(status, exception=exception)

    def end_loop(self, error: BaseException | None) -> None:
        """The training loop has returned, or this exception ended it; the process may be killed at any time now."""
        self._finish("finished" if error is None else "failed", exception=error)

    def leave(self) -> None:
        """A supervisor ends this process amid its loop, and the run goes on without it, or is ended by the supervisor:
        that the process is killed next is no news."""
        if self._status is None and self.is_of_this_process:
            with contextlib.suppress(OSError):
                self._presence.end("finished")

    def _finish(
        self,
        status: str,
        *,
        exception: BaseException | None = None,
        cause: Cause | None = None,
        tentative: bool = False,
    ) -> None:
        if self._status is not None or not self.is_of_this_process:
            return
        current.note_end(self)
        atexit.unregister(self._at_exit)
        join.note_end(self.folder)
        try:
            if self.watching is not None:
                self.watching.close(exception)
            self._drain()
            if self._homeless:
                self._move_in()
            if exception is not None:
                cause = cause or failure_text.explain_exception(exception)
                trace = failure_text.format_traceback(exception)
                self.event(FAILED, str(cause), severity="critical", reason=cause.as_json(), traceback=trace)
                failure_text.note_written(exception)
            if self.refused:
                text = f"{self.refused} values were not numbers and were not logged"
                self.event("refused", text, severity="warning")
            if self._media is not None and self._media.left_out:
                text = "; ".join(f"{count:,} {why}" for why, count in self._media.left_out.items())
                self.event("media_left_out", f"media not kept: {text}", severity="warning")
            if self._python_rules is not None:
                self._python_rules.close()
            self._status = status
            newest = self._writer.path if self._writer is not None else None
            self._close_writers(0.0 if self._homeless else CLOSE_SECONDS)
            stacks.disarm()
            self._presence.let_go()
            if not self._homeless:
                self._document.write_end(status, cause, self._step if self._step >= 0 else None, tentative)
            self._presence.end(status)
            if self._leads:
                notices.sum_up(self.id, self.folder, self._settings, status, self._step, newest)
        except Exception as error:  # noqa: BLE001 - the end of the user's program must not fail because of us
            self._status = status
            self._refusals.warn_once("finish", f"the end of run {self.id} could not be written: {error!r:.300}")

    def _close_writers(self, seconds: float) -> None:
        writers, self._writer = (self._writer, self._events), None
        for writer in writers:
            if writer is not None:
                writer.check()
                writer.close(seconds)
                if writer.dropped:
                    text = f"{writer.dropped} lines could not be written to {writer.path}"
                    self._refusals.warn_once("dropped", text)

    def hand_over(self) -> None:
        """The program calls init() itself: hand over the folder as it was found."""
        self._presence.let_go()
        if self.watching is not None:
            self.watching.close()
        self._status = RUNNING
        writers, self._writer = (self._writer, self._events), None
        for writer in writers:
            if writer is not None:
                writer.close()
        atexit.unregister(self._at_exit)
        self._document.leave_to_command()

    def _drain(self) -> None:
        lost = self._pending.drain(self._writer, DEVICE_WAIT_SECONDS) if self._writer is not None else 0
        if lost:
            self._refusals.count += lost
            self._refusals.warn_once("device", f"values that never arrived from the device, not logged: {lost}")

    def _at_exit(self) -> None:
        """The interpreter exits without finish(): record how, as far as known here."""
        exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if exception is None or hasattr(sys, "ps1"):
            # An exit code cannot be seen from inside; the agent or `trainvitals run` corrects this if it was not 0.
            self._finish("finished", tentative=True)
        elif isinstance(exception, KeyboardInterrupt):
            self._finish("killed", cause=Cause(kind=INTERRUPTED))
        else:
            self._finish("failed", exception=exception)

    # -- copies: there is one run, and a worker process that receives it writes a separate file

    def __copy__(self) -> Run:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Run:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._settings.as_json()
        return current.reach, (self.folder, self._rank, given, self._document.file, self._owner, self._step)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._finish("finished")
        elif isinstance(error, KeyboardInterrupt):
            self._finish("killed", cause=Cause(kind=INTERRUPTED))
        elif isinstance(error, SystemExit):
            self._finish("failed", cause=failure_text.explain_exit(error.code))
        else:
            self._finish("failed", exception=error)
