"""A run, as the training sees it: init, log, finish.

`log` encodes one line and hands it to the kernel; nothing else happens in the user's process. No thread, no socket,
no queue. Nothing here raises into the loop: what cannot be logged is counted and said once (or raised, in strict
mode).
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from trainvitals import runtime, settings
from trainvitals.errors import JournalError, MetricError, TrainvitalsError
from trainvitals.handlers import is_from_handler
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.documents.cause import INTERRUPTED, Cause
from trainvitals.journal.documents.registration import Registration, new_registration
from trainvitals.journal.documents.rows import new_event
from trainvitals.journal.documents.run import COMMAND, ENDED, RUNNING, RunFile
from trainvitals.journal.encoding import LINE_START, MILLISECONDS, encode_line, format_time, start_lines
from trainvitals.journal.failures import FAILED, read_failures
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import MIB, LineWriter, say
from trainvitals.redaction import redact, redact_text
from trainvitals.trainer import console, description, facts, last_words, launch, notebook, ranks, scalars, stacks
from trainvitals.trainer.pending import Late, Pending

if TYPE_CHECKING:
    from trainvitals.alerts.python_rules import PythonRules
    from trainvitals.journal.summaries import MetricSummary
    from trainvitals.trainer.tee import Tee
    from trainvitals.trainer.watch.loop import Watch

AGENT_CHECK_SECONDS = 15
DEVICE_WAIT_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""How long the end of a program may wait for room on the disk."""

_dumps = orjson.dumps
_NEWLINE = orjson.OPT_APPEND_NEWLINE
_time_ns = time.time_ns
_os_write = os.write
_join = b"".join
_MILLIS = MILLISECONDS

_current: Run | None = None
_ended: Run | None = None
_reached: dict[Path, Run] = {}
"""Runs of other processes that this one was handed."""


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
        self.rank = rank.rank
        self.world_size = rank.world_size
        self.config: Mapping[str, Any] = file.config or {}
        self.refused = 0
        """Values that were not numbers and so were not logged."""
        self._rank = rank
        self._settings = effective
        self._file = file
        self._owner = self._process = os.getpid()
        self._step = first_step - 1
        self._clock: tuple[int, bytes] = (0, b"")  # a whole second in ns, and how a line of that second begins
        self._fd = -1
        self._careful = False  # tensors or arrays were logged: every call goes the slow way, which looks after them
        self._python_rules: PythonRules | None = None
        self._status: str | None = None
        self._told: set[str] = set()
        self._pending = Pending()
        self._next_agent_check = time.monotonic() + AGENT_CHECK_SECONDS
        self._registered: tuple[Path, Registration] | None = None
        self._cells: notebook.Cells | None = None
        self.automatic = False
        """Begun by `trainvitals run`, not by the program."""
        self.watching: Watch | None = None
        """What `watch` started."""
        self._tee: Tee | None = None
        self._homeless = False  # the folder could not be made, on a read-only or full disk: lines wait in memory
        self._last_trouble = ""
        self._writers: list[LineWriter] = []
        self._writer: LineWriter | None = None
        self._events: LineWriter | None = None
        if not (effective.rank_zero_only and rank.rank != 0):
            many = rank.world_size > 1
            name = FileName("training", self.attempt, "", rank=rank.rank if many else None)
            self._writer = self._line_writer(name, on_fd=self._use_fd)
            self._events = self._line_writer(name._replace(table="events", rank=rank.rank))

    def _use_fd(self, fd: int) -> None:
        self._fd = -1 if self._careful else fd

    def _line_writer(self, name: FileName, on_fd: Callable[[int], None] = lambda fd: None) -> LineWriter:
        writer = LineWriter(
            self.folder,
            name,
            rotate_bytes=int(self._settings.rotate_size_mb * MIB),
            rotate_seconds=self._settings.rotate_age,
            mode=self._settings.file_mode,
            on_trouble=self._hear,
            on_fd=on_fd,
        )
        self._writers.append(writer)
        return writer

    def _hear(self, trouble: str) -> None:
        # Without a folder it was said at the start; and of a folder that is gone one writer says it for all.
        if not self._homeless and trouble != self._last_trouble:
            self._last_trouble = trouble
            say(trouble)

    # -- who it is

    @property
    def id(self) -> str:
        return self._file.id

    @property
    def project(self) -> str:
        return self._file.project

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def attempt(self) -> int:
        return self._file.attempt

    @property
    def step(self) -> int:
        """The step logged last, -1 before the first."""
        return self._step

    @property
    def dropped(self) -> int:
        """Lines that could not be written and are lost: the disk was full for longer than memory could bridge."""
        return sum(writer.dropped for writer in self._writers)

    @property
    def settings(self) -> settings.Settings:
        """The settings in force."""
        return self._settings

    @property
    def summary(self) -> dict[str, MetricSummary]:
        """Last, lowest and highest value of every metric with their steps, read back from the folder."""
        from trainvitals.journal.reader import RunReader

        return RunReader(self.folder).summary(rank=self.rank)

    def __repr__(self) -> str:
        return f"<trainvitals run {self.id} in {self.folder}>"

    # -- logging

    def log(self, metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
        """Log numbers of one step. Without `step`, one more than the last.

        When it returns, the line can be read by any other process and survives `kill -9`; a value that is still being
        computed on a device follows as soon as it is ready. Nested mappings are flattened with `/`.
        """
        # The way of nearly every call: a flat dict of finite Python numbers, a whole step, a file that can be written.
        # Everything else goes the slow way below. Each test here costs as much as a digit of the line, so there are
        # few: `sum` is a finite float only if every value is a finite number of Python; what is no number raises.
        # The type is asked first, because comparing the sum of tensors would wait for their device.
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
            # Whatever it is, the slow way says it or survives it.
            if is_from_handler(error):
                raise  # perhaps just after the line was written, which must not be written twice
        try:
            self._log_slowly(metrics, step, more)
        except MetricError:
            raise  # strict mode: asked for
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop: nothing of ours may stop it
            self._log_failed(error)

    def _log_carefully(self, metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
        """`log` of a run that logs tensors or arrays: adding those up, as `log` does, would be work for the device."""
        try:
            self._log_slowly(metrics, step, more)
        except MetricError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._log_failed(error)

    def _log_slowly(self, metrics: Mapping[str, Any] | None, step: Any, more: Mapping[str, Any]) -> None:
        if self._status is not None:
            self._tell("ended", f"log() after finish(): run {self.id} has ended, so this is not logged")
            self.refused += 1
            return
        writer = self._writer
        if writer is None:
            return
        if metrics is not None and not isinstance(metrics, Mapping):
            self._refuse(f"log() got a {type(metrics).__name__}, not a mapping of names to numbers")
            return
        if os.getpid() != self._process:  # just forked: these belong to the parent, and the device with them
            self._process = os.getpid()
            self._pending.clear()
        flat: dict[str, Any] = {}
        for name, item in itertools.chain(scalars.flatten(metrics or {}), scalars.flatten(more)):
            if name in flat:
                self._refuse(f"'{name:.100}' is logged twice in one call", "the last one counts")
            flat[name] = item
        if "step" in flat:
            inner = flat.pop("step")
            step = inner if step is None else step
        if "timestamp" in flat:
            flat.pop("timestamp")
            self._refuse("'timestamp' is a name that the journal uses itself; choose another")
        values: dict[str, Any] = {}
        waiting: dict[str, scalars.Waiting] = {}
        for key, item in flat.items():
            kind = type(item)
            if kind is float or kind is int:
                values[key] = item
                continue
            value = scalars.convert(item)
            if value is None:
                continue
            if kind.__module__ != "builtins":
                self._be_careful()
            if isinstance(value, scalars.Refused):
                self._refuse(f"'{key:.100}' is {value.what}, not a number")
            elif isinstance(value, (int, float)):
                values[key] = value
            else:
                waiting[key] = value
        with writer.lock:
            number = self._next_step(step)
            if not values and not waiting:
                return
            self._step = number
            now = _time_ns()
            if not 0 <= now - self._clock[0] < 1_000_000_000:
                self._every_second(now // 1_000_000_000)
            stamp = format_time(now // 1_000_000 / 1000, digits=3)
            if values:
                writer.append(encode_line({"timestamp": stamp, "step": number, **values}))
            if waiting:
                self._pending.add(stamp, number, waiting)
            arrived = self._write_late(self._pending.take())
        if self._python_rules is not None:
            for late in arrived:
                self._python_rules.check(late.values, late.step)
            self._python_rules.check(values, number)

    def _be_careful(self) -> None:
        """From now on every call goes the slow way."""
        self._careful, self._fd = True, -1
        self.log = self._log_carefully  # type: ignore[method-assign]

    @property
    def alerts(self) -> PythonRules:
        """Rules of your own in Python, judged in this process: `run.alerts.add_rule(...)` (docs/alerts.md)."""
        if self._python_rules is None:
            from trainvitals.alerts.python_rules import PythonRules

            name = FileName("alerts", self.attempt, "", rank=self.rank)
            self._python_rules = PythonRules(self._line_writer(name), self.rank, self._be_careful)
        return self._python_rules

    def _next_step(self, step: Any) -> int:
        if step is None:
            return self._step + 1
        if type(step) is int and -(2**63) <= step < 2**64:
            return step
        converted = scalars.convert(step)
        if isinstance(converted, (int, float)) and abs(converted) < 2**62:
            return int(converted)
        what = converted.what if isinstance(converted, scalars.Refused) else "NaN or beyond 64 bits"
        self._refuse(f"step= is {what}, not a whole number", f"taken as step {self._step + 1}")
        return self._step + 1

    def _write_late(self, arrived: Iterator[Late]) -> list[Late]:
        """Write what came from the device; with the lock held. Returns it."""
        written = []
        for late in arrived:
            assert self._writer is not None
            self._writer.append(encode_line({"timestamp": late.stamp, "step": late.step, **late.values}))
            written.append(late)
        return written

    def _every_second(self, second: int) -> None:
        self._clock = (second * 1_000_000_000, start_lines(second))
        if self._homeless and os.getpid() == self._owner:
            self._move_in()
        if self._writer is not None:
            self._writer.rotate_if_due()
        for writer in self._writers:
            writer.check()
        if time.monotonic() > self._next_agent_check and os.getpid() == self._owner:
            self._next_agent_check = time.monotonic() + AGENT_CHECK_SECONDS
            if self._settings.agent and self._status is None and self._registered is not None:
                runtime.ensure_agent()  # a look at a lock; starts it again only if it died

    def _move_in(self) -> None:
        """Make the folder that could not be made when the run began, if that is possible by now."""
        try:
            run_folder.create(self.folder, self._settings.shared)
            run_folder.write_run(self.folder, self._file, self._settings.file_mode)
        except (JournalError, OSError):
            return  # not yet
        self._homeless = False
        _announce(self, self._rank, self._settings)

    # -- watching

    def watch(self, model: Any = None, optimizer: Any = None, loader: Any = None, **options: Any) -> Watch:
        """Measure the training from inside: phases of every step, gradients, layers, memory (docs/watch.md)."""
        from trainvitals.trainer.watch import watch

        return watch(self, model, optimizer, loader, **options)

    def write_row(self, step: int, values: Mapping[str, float], microseconds: int) -> None:
        """A line of `step` that was measured beside the loop, at that time; the count of steps stays as it is."""
        second, rest = divmod(microseconds, 1_000_000)
        if second != self._clock[0] // 1_000_000_000:
            self._every_second(second)
        if self._writer is not None:
            start = self._clock[1][len(LINE_START) :].decode()
            stamp = f"{start}{rest // 1000:03d}Z"
            self._writer.append(encode_line({"timestamp": stamp, "step": step, **values}))

    def add_config(self, values: Mapping[str, Any]) -> None:
        """Add to the configuration what is known only now; what was said before stays."""
        try:
            more = redact(facts.make_jsonable(values), extra=self._settings.redact)
            self.config = {**more, **self.config}
            self._file = replace(self._file, config=self.config)
            run = run_folder.find_run(self.folder)
            if self.rank == 0 and run is not None:
                run_folder.write_run(self.folder, replace(run, config=self.config), self._settings.file_mode)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._log_failed(error)

    def _begin_cell(self, began: str) -> None:
        """Tell the agent which cell of a notebook is being run: when it began, or that none is."""
        try:
            if self._registered is not None:
                path, registration = self._registered
                self._registered = (path, registrations.note_cell(path, registration, began))
        except OSError as error:  # the runtime folder cannot be written: an idle notebook may be called stalled
            self._tell("cell", f"the agent cannot be told which cell is being run: {error.strerror}")

    def _end_cell(self) -> None:
        if self.watching is not None:
            self.watching.pause()
        self._begin_cell("")

    def advance(self, step: int) -> None:
        """Steps up to this one are over, though the loop may have logged none of them."""
        self._step = max(self._step, step)

    def event(self, event: str, message: str = "", *, severity: str = "info", **data: Any) -> None:
        """Write down that something happened: a checkpoint, an evaluation, a change of the data."""
        if self._events is None or self._status is not None:
            return
        try:
            row = new_event(
                facts.make_jsonable(event),
                facts.make_jsonable(message),
                severity=severity,
                rank=self.rank,
                host=runtime.host_name(),
                correlation_id=self._file.correlation_id,
                step=self._step,
                data=redact(facts.make_jsonable(data), extra=self._settings.redact) if data else None,
            )
            self._events.append(encode_line(row.as_json()))
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._log_failed(error)

    def _refuse(self, what: str, outcome: str = "not logged") -> None:
        self.refused += 1
        if self._settings.strict:
            raise MetricError(what, hint="log numbers only; put text and lists into config= or run.event()")
        self._tell("refused", f"{what}: {outcome} (said once, then only counted)")

    def _log_failed(self, error: Exception) -> None:
        if is_from_handler(error):
            raise error
        self.refused += 1
        self._tell("failed", f"log() failed, the training goes on: {error!r:.300}")

    def _tell(self, topic: str, text: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            say(text)

    # -- the end

    def finish(self, status: str = "finished", *, exception: BaseException | None = None) -> None:
        """End the run. `status` is `finished` or `failed`; safe to call twice."""
        if status not in ENDED:
            raise TrainvitalsError(f"status '{status}' is not one of {', '.join(ENDED)}", hint='say finish("failed")')
        self._finish(status, exception=exception)

    def _finish(
        self,
        status: str,
        *,
        exception: BaseException | None = None,
        cause: Cause | None = None,
        tentative: bool = False,
    ) -> None:
        global _current, _ended
        if self._status is not None or os.getpid() != self._owner:
            return
        if _current is self:
            _current, _ended = None, self
        atexit.unregister(self._at_exit)
        launch.note_end(self.folder)
        try:
            if self.watching is not None:
                self.watching.close(exception)
            self._drain()
            if self._homeless:
                self._move_in()
            if exception is not None:
                cause = cause or last_words.explain_exception(exception)
                trace = last_words.format_traceback(exception)
                self.event(FAILED, str(cause), severity="critical", reason=cause.as_json(), traceback=trace)
            if self.refused:
                self.event(
                    "refused",
                    f"{self.refused} values were not numbers and were not logged",
                    severity="warning",
                )
            self._status = status
            writers, self._writer = (self._writer, self._events), None
            for writer in writers:
                if writer is not None:
                    writer.check()
                    writer.close(0.0 if self._homeless else CLOSE_SECONDS)
                    if writer.dropped:
                        self._tell("dropped", f"{writer.dropped} lines could not be written to {writer.path}")
            stacks.disarm()
            self._let_go()
            if self.rank == 0 and not self._homeless:
                self._write_end(status, cause, tentative)
            if self._registered is not None:
                registrations.note_end(*self._registered, status)
        except Exception as error:  # noqa: BLE001 - the end of the user's program must not fail because of us
            self._status = status
            self._tell("finish", f"the end of run {self.id} could not be written: {error!r:.300}")

    def _keep_console(self) -> list[dict[str, Any]]:
        """See to it that what this process prints is kept. Returns the files that the agent must copy for that."""
        files = console.find_files() if self._settings.console != "off" else []
        if self._settings.console == "tee":
            from trainvitals.trainer.tee import Tee

            kept = {fd for file in files for fd in file["fds"]}
            streams = [stream for fd, stream in ((1, sys.stdout), (2, sys.stderr)) if fd not in kept]
            self._tee = Tee(
                self.folder, self.rank, self._settings, [stream for stream in streams if stream is not None]
            )
        return files

    def _let_go(self) -> None:
        """Take off what hangs on the user's program."""
        if self._tee is not None:
            self._tee.remove()
        if self._cells is not None:
            self._cells.remove()

    def _hand_over(self) -> None:
        """The program calls init() itself after all: leave the folder to it, as it was found."""
        self._let_go()
        if self.watching is not None:
            self.watching.close()
        self._status = RUNNING
        writers, self._writer = (self._writer, self._events), None
        for writer in writers:
            if writer is not None:
                writer.close()
        atexit.unregister(self._at_exit)
        if self.rank == 0:
            run = run_folder.find_run(self.folder) or self._file
            run_folder.write_run(self.folder, replace(run, kind=COMMAND), self._settings.file_mode)

    def _drain(self) -> None:
        if self._writer is None:
            return
        deadline = time.monotonic() + DEVICE_WAIT_SECONDS
        while self._pending and time.monotonic() < deadline:
            with self._writer.lock:
                self._write_late(self._pending.take())
            if self._pending:
                time.sleep(0.005)
        with self._writer.lock:
            self._write_late(self._pending.give_up())
        if self._pending.lost:
            self.refused += self._pending.lost
            self._tell("device", f"values that never came from the device, so not logged: {self._pending.lost}")

    def _write_end(self, status: str, cause: Cause | None, tentative: bool) -> None:
        run = run_folder.find_run(self.folder) or self._file
        if run.attempt != self.attempt:
            return  # a newer attempt of the run is under way elsewhere
        if status == "failed" and self.world_size > 1:
            first = next(iter(read_failures(self.folder, self.attempt)), None)
            if first is not None and first.rank != self.rank:  # this one often fails because that one did
                cause = first.cause.of_rank(first.rank)
        found = {item.host: item.hardware for item in run_folder.read_statuses(self.folder) if item.hardware}
        run = replace(
            run.end(status, cause),
            last_step=self._step if self._step >= 0 else run.last_step,
            hardware=found or run.hardware,
            tentative=tentative,
        )
        run_folder.write_run(self.folder, run, self._settings.file_mode)

    def _at_exit(self) -> None:
        """The interpreter ends without finish(): tell how, as far as it can be known from here."""
        exception = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if exception is None or hasattr(sys, "ps1"):
            # An exit code cannot be seen from inside; the agent or `trainvitals run` corrects this if it was not 0.
            self._finish("finished", tentative=True)
        elif isinstance(exception, KeyboardInterrupt):
            self._finish("killed", cause=Cause(kind=INTERRUPTED))
        else:
            self._finish("failed", exception=exception)

    # -- copies: there is one run, and a worker process that is handed it writes a file of its own

    def __copy__(self) -> Run:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Run:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        said = self._settings.as_json()
        return _reach, (self.folder, self._rank, said, self._file, self._owner, self._step)

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
            self._finish("failed", cause=last_words.explain_exit(error.code))
        else:
            self._finish("failed", exception=error)


def init(
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    *,
    dir: str | os.PathLike[str] | None = None,
    tags: tuple[str, ...] | list[str] = (),
    notes: str = "",
    resume: bool | str | os.PathLike[str] = False,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> Run:
    """Start a run, or join the one that `trainvitals run` or another rank started.

    `resume=True` continues the newest run of this project (and name, if given), `resume="RUN"` a certain one: a new
    attempt in the same folder, nothing overwritten. `rank` and `world_size` are found from the environment under
    torchrun, Slurm and MPI. `options` are settings by name (docs/settings.md).
    """
    global _current
    if _current is not None and _current._owner == os.getpid():  # not the parent's, in a forked child
        if _current.automatic:
            _current._hand_over()
        else:
            say(f"run {_current.id} was still going; it is finished now, because init() was called again")
            _current.finish()
    name = None if name is None else redact_text(str(name))  # it is in the name of the folder, too
    given = {"project": project, "dir": os.fspath(dir) if dir is not None else None, **options}
    effective = settings.resolve_for_training(given, _check_rules)
    environ = os.environ
    place_in_launch = ranks.find_rank(environ)
    if rank is not None:
        place_in_launch = ranks.take_word_for(rank, world_size, place_in_launch)
    homeless = False
    try:
        place = launch.find_place(effective, name, resume, place_in_launch)
        run_folder.create(place.folder, effective.shared)
    except (JournalError, OSError) as error:
        if effective.strict or isinstance(error.__cause__, (NotADirectoryError, FileExistsError)):
            raise  # the place itself is a mistake, which room on the disk would not mend
        place, homeless = launch.find_place_alone(effective, name), True
        say(f"{error}\n  The training goes on; what it logs waits in memory until the folder can be made.")
    file = description.describe(place, effective, name, config, tags, notes, place_in_launch)
    if place_in_launch.rank == 0:
        for text in settings.complaints(effective):
            say(text)
        try:
            if not homeless:
                run_folder.write_run(place.folder, file, effective.file_mode)
        except OSError as error:  # a full or read-only disk: the training comes first
            say(f"cannot write {place.folder / layout.RUN_FILE}: {error.strerror}. The training goes on.")
    first_step = 0
    if place.attempt > 1:
        first_step = launch.find_last_step(place.folder, place_in_launch) + 1
    run = Run(place.folder, place_in_launch, effective, file, first_step=first_step)
    run._homeless = homeless and bool(run._writers)
    atexit.register(run._at_exit)
    if not homeless and not (effective.rank_zero_only and place_in_launch.rank != 0):
        _announce(run, place_in_launch, effective)
    if effective.dashboard and place_in_launch.rank == 0:
        from trainvitals.trainer import dashboard

        dashboard.start(effective, run.id)
    _current = run
    return run


def begin_automatically() -> Run:
    """The run of a program that did not ask for one (`trainvitals run`); an `init()` of its own takes it over."""
    run = init()
    run.automatic = True
    return run


def _check_rules(effective: settings.Settings) -> None:
    """A rule or a threshold that cannot be used is an error now, not a silence later."""
    if effective.alerts_thresholds:
        from trainvitals.conditions import Conditions

        Conditions(effective.alerts_thresholds)
    given = (effective.alerts_rules, effective.alerts_thresholds, effective.alerts_disable, effective.alerts_actions)
    if effective.alerts_enabled and any((*given, effective.alerts_escalate_notify)):
        from trainvitals.alerts.builtin import check_rules

        check_rules(effective)


def current_run() -> Run | None:
    """The run that `init` started in this process and that has not ended."""
    return _current


def log(metrics: Mapping[str, Any] | None = None, step: int | None = None, **more: Any) -> None:
    """`Run.log` of the current run; after its end, said and counted as `Run.log` does."""
    run = _current or _ended
    if run is not None:
        run.log(metrics, step, **more)
    elif not _is_worker():
        raise TrainvitalsError("log() before init(): there is no run", hint='first: trainvitals.init(project="...")')
    else:  # an error here would end a training that is right
        _tell_worker()


def finish(status: str = "finished") -> None:
    """`Run.finish` of the current run; nothing happens without one."""
    if _current is not None:
        _current.finish(status)


def _is_worker() -> bool:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


@functools.cache
def _tell_worker() -> None:
    say("log() in a worker process that has no run: not logged. Pass it the run and call run.log()")


def _reach(folder: Path, rank: ranks.Rank, said: dict[str, Any], file: RunFile, owner: int, step: int) -> Run:
    """A pickled run in the process that got it: the same run, a file of its own; only its owner can end it."""
    known = _current if owner == os.getpid() else _reached.get(folder)
    if known is not None and known.folder == folder:
        return known
    effective = settings.resolve(said, environ={}, folder=Path(os.sep))
    run = _reached[folder] = Run(folder, rank, effective, file, first_step=step + 1)
    run._owner = owner
    for writer in (run._writer, run._events):
        if writer is not None:
            writer.write_apart()
    return run


# -- the parts of init


def _announce(run: Run, rank: ranks.Rank, effective: settings.Settings) -> None:
    """Tell the agent that this rank wants to be watched, and see to it that there is an agent."""
    try:
        shell = notebook.find_shell()
        signal_number, stack_file = stacks.arm(run.folder, rank.rank) if effective.stack_dumps else (None, None)
        registration = new_registration(
            run.folder,
            os.getpid(),
            rank=rank.rank,
            attempt=run.attempt,
            local_rank=rank.local_rank,
            world_size=rank.world_size,
            local_world_size=rank.local_world_size,
            correlation_id=run._file.correlation_id,
            stack_signal=signal_number,
            stack_file=str(stack_file) if stack_file else None,
            cell=None if shell is None else format_time(),
            settings=effective.as_json(),
            console=tuple(run._keep_console()),
        )
        run._registered = (registrations.register(registration), registration)
        if shell is not None:
            run._cells = notebook.Cells(shell, run._begin_cell, run._end_cell)
        if effective.agent and not runtime.ensure_agent():
            say("the agent could not be started: numbers are kept, hardware is not watched (trainvitals doctor)")
    except Exception as error:  # noqa: BLE001 - watching is a help, never a condition for training
        said = error if isinstance(error, TrainvitalsError) else repr(error)
        say(f"this run is not watched by an agent: {said!s:.300}")
