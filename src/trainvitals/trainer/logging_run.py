"""What a run logs: numbers, line by line, and events. `log` encodes one line and hands it to the kernel; nothing else
happens in the user's process. No socket, no queue, no thread of its own.

Nothing here raises into the loop: what cannot be logged is counted and warned about once (or raised, in strict mode).
Tested in tests/trainer/test_run.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from trainvitals import runtime
from trainvitals.errors import MetricError, name_kind
from trainvitals.handlers import is_from_handler
from trainvitals.journal.documents.rows import new_event
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import LINE_START, MILLISECONDS, encode_line, format_time, start_lines
from trainvitals.journal.writer import LineWriter
from trainvitals.redaction import redact
from trainvitals.settings import Settings
from trainvitals.trainer.described_run import DescribedRun
from trainvitals.trainer.jsonable import make_jsonable
from trainvitals.trainer.pending import Pending
from trainvitals.trainer.rank_files import RankFiles
from trainvitals.trainer.ranks import Rank
from trainvitals.trainer.row_values import MeasuredRow, choose_step, sort_values

if TYPE_CHECKING:
    from trainvitals.alerts.python_rules import PythonRules

DEVICE_WAIT_SECONDS = 5.0

_dumps = orjson.dumps
_NEWLINE = orjson.OPT_APPEND_NEWLINE
_time_ns = time.time_ns
_os_write = os.write
_join = b"".join
_MILLIS = MILLISECONDS


class LoggingRun(DescribedRun):
    """A run that can be logged to. A base of `Run` and not a part of it: to hand every call of `log` on to another
    object would cost as much as several of the line's numbers."""

    def __init__(self, folder: Path, rank: Rank, effective: Settings, file: RunFile, *, first_step: int = 0) -> None:
        super().__init__(folder, rank, effective, file)
        self._step = first_step - 1
        self._clock: tuple[int, bytes] = (0, b"")  # a whole second in ns, and how a line of that second begins
        self._fd = -1
        self._careful = False  # tensors or arrays were logged: every call takes the slow path, which handles them
        self._has_ended = False
        self._process = os.getpid()
        self._python_rules: PythonRules | None = None
        self._also = {"correlation_id": file.correlation_id} if effective.correlation_ids else {}
        self._pending = Pending(self._also)
        self._files = RankFiles(folder, effective, rank, file.attempt)
        self._writer: LineWriter | None = None
        self._events: LineWriter | None = None
        if not (effective.rank_zero_only and rank.rank != 0):
            self._writer = self._files.open("training", on_fd=self._use_fd)
            self._events = self._files.open("events")
        if self._also:
            self._be_careful()  # every line has more than its numbers

    def _use_fd(self, fd: int) -> None:
        self._fd = -1 if self._careful else fd

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

    # -- numbers

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
        if self._has_ended:
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

    def write_row(self, step: int, values: Mapping[str, float], microseconds: int) -> None:
        """A line of `step` that was measured outside the loop, at that time; the step count is unchanged."""
        self.write_rows([MeasuredRow(step, values, microseconds)])

    def write_rows(self, rows: Sequence[MeasuredRow]) -> None:
        """Several such lines, written with one system call."""
        lines, current, start = [], -1, ""
        for step, values, microseconds in rows:
            second, rest = divmod(microseconds, 1_000_000)
            if second != current:
                if second != self._clock[0] // 1_000_000_000:
                    self._every_second(second)
                current, start = second, self._clock[1][len(LINE_START) :].decode()
            stamp = f"{start}{rest // 1000:03d}Z"
            lines.append(encode_line({"timestamp": stamp, "step": step, **self._also, **values}))
        if self._writer is not None and lines:
            self._writer.append_all(lines)
        if self._python_rules is not None:
            for row in rows:
                self._python_rules.check(row.values, row.step)

    def advance(self, step: int) -> int:
        """Steps up to this one are over, though the loop may have logged none of them. The last one now."""
        if step > self._step:
            self._step = step
        return self._step

    def advance_from(self, seen: int, step: int) -> int | None:
        """`advance`, if nothing has been logged since `seen` was the last step; else nothing, and None."""
        if self._step != seen:
            return None
        if step > seen:
            self._step = step
        return self._step

    def _every_second(self, second: int) -> None:
        self._clock = (second * 1_000_000_000, start_lines(second))
        if self._writer is not None:
            self._writer.rotate_if_due()
        self._files.check()

    # -- events and rules

    def event(self, event: str, message: str = "", *, severity: str = "info", **data: Any) -> None:
        """Record an event: a checkpoint, an evaluation, a change of the data."""
        if self._events is None or self._has_ended:
            return
        try:
            row = new_event(
                make_jsonable(event),
                make_jsonable(message),
                severity=severity,
                **self.participant.labels,
                host=runtime.host_name(),
                correlation_id=self._document.file.correlation_id,
                step=self._step,
                data=redact(make_jsonable(data), extra=self._settings.redact) if data else None,
            )
            self._events.append(encode_line(row.as_json()))
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

    @property
    def alerts(self) -> PythonRules:
        """Your own rules in Python, evaluated in this process: `run.alerts.add_rule(...)` (docs/alerts.md)."""
        if self._python_rules is None:
            from trainvitals.alerts.python_rules import PythonRules

            writer = self._files.open("alerts")
            self._python_rules = PythonRules(writer, self.participant, self._be_careful)
        return self._python_rules

    # -- the end

    def _drain(self) -> None:
        lost = self._pending.drain(self._writer, DEVICE_WAIT_SECONDS) if self._writer is not None else 0
        if lost:
            self._refusals.count += lost
            self._refusals.warn_once("device", f"values that never arrived from the device, not logged: {lost}")

    def _close_writers(self, seconds: float) -> None:
        writers, self._writer = (self._writer, self._events), None
        for writer in writers:
            if writer is not None:
                writer.check()
                writer.close(seconds)
                if writer.dropped:
                    text = f"{writer.dropped} lines could not be written to {writer.path}"
                    self._refusals.warn_once("dropped", text)
