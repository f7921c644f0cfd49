"""Runs of other trackers, written into run folders as a training would have written them.

    runs = TrackedRuns(root, settings)
    run = runs.open(Origin(tool="wandb", place="/data/wandb/run-1", key="a1b2"), About(name="baseline", started=...))
    run.append({"loss": 0.5}, step=3, time=1763380000.25)   # with the kernel when it returns
    run.save({"offset": 1234})                              # how far the source was read
    run.end("finished")

The folder is like any other: it is read, followed, sealed and judged by what reads, follows, seals and judges the
others. `run.json` keeps which run of which tracker it is (`Origin`) and how far that was read, so a second writer goes
on there. What the first one wrote after it last saved that position is compared with what comes, value by value: a
writer that was killed loses nothing and doubles nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.console import ConsoleLog, limit_of, stem_of
from trainvitals.journal.cursor import Cursor, Row
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.registration import Registration, new_registration
from trainvitals.journal.documents.rows import EventRow, new_event
from trainvitals.journal.documents.run import RUNNING, TRAINING, Attempt, Origin, Process, RunFile, new_run
from trainvitals.journal.encoding import encode_line, format_time, number, parse_time, spell
from trainvitals.journal.follower import read_table
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import MIB, LineWriter
from trainvitals.redaction import free_key, redact, redact_text
from trainvitals.settings import Settings

if TYPE_CHECKING:  # numpy, which a server that appends lines does not load
    from trainvitals.journal.segment_writer import Lines

RESERVED = ("timestamp", "step")
"""Keys of a line that are not metrics."""
NO_TIME = -(2**63)
"""In a block of rows: this one has no time of its own."""
EPOCH = format_time(0.0)
SEALED_ROWS = 20_000
"""Rows from which on a block is written as a segment; fewer stay lines, to be read with `cat`."""
_Value = tuple[str, int | None, str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a tracker knows of a run. What it does not know is None or empty."""

    name: str = ""
    project: str = ""
    config: Mapping[str, Any] | None = None
    tags: tuple[str, ...] | None = None
    """Empty if there are none."""
    notes: str = ""
    started: float | None = None
    """Seconds since 1970."""
    host: str = ""
    command: str | None = None
    has_times: bool = True
    """Whether its rows have times."""


class TrackedRuns:
    """The runs of other trackers below one root."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._folders: dict[tuple[str, str, str], Path] = {}
        for folder in run_folder.list_folders(root):
            run = run_folder.find_run(folder)
            if run is not None and run.origin is not None:
                self._folders[run.origin.identity] = folder

    def find(self, origin: Origin) -> Path | None:
        """The folder of the run, if it has one."""
        folder = self._folders.get(origin.identity)
        return folder if folder is not None and run_folder.is_run(folder) else None

    def list_from(self, place: str) -> list[tuple[str, str, Path]]:
        """(tool, key, folder) of every run that comes from a place."""
        return [(tool, key, folder) for (tool, from_place, key), folder in self._folders.items() if from_place == place]

    def open(self, origin: Origin, about: About) -> RunWriter:
        """Begin the run, or go on with it. Raises JournalError."""
        folder = self.find(origin)
        if folder is not None:
            writer = RunWriter(folder, run_folder.read_run(folder), self._settings)
            writer.describe(about)
            return writer
        about = _without_secrets(about, self._settings)
        project = about.project or self._settings.project
        run_id = run_folder.new_run_id(about.name, about.started)
        folder = self._root.absolute() / run_folder.project_folder(project) / run_id
        started = format_time(about.started) if about.started is not None else None
        now = format_time()
        file = new_run(
            run_id,
            kind=TRAINING,
            project=project,
            name=about.name or run_id,
            facts={} if about.command is None else {"command": about.command},
            pid=None,
            tags=about.tags or (),
            created=started or now,
            started=started,
            attempts=(Attempt(number=1, started=started, host=about.host),),
            config=about.config,
            notes=about.notes,
            host={"name": about.host} if about.host else None,
            origin=replace(origin, untimed_until=None if about.has_times else now),
        )
        run_folder.create(folder, self._settings.shared)
        writer = RunWriter(folder, file, self._settings)
        writer.write_file()
        self._folders[origin.identity] = folder
        return writer


class RunWriter:
    """One run. Used by one process at a time; `append` from any of its threads."""

    def __init__(self, folder: Path, file: RunFile, settings: Settings) -> None:
        self.folder = folder
        self.file = file
        self._written = file
        self.rows = 0
        """Rows written by this writer."""
        self._settings = settings
        self._names = {**self.origin.renamed}
        self._taken = dict.fromkeys((*RESERVED, *self._names.values()))
        self._writer = self._open("training")
        self._events: LineWriter | None = None
        self._known_events: set[tuple[str, str, str]] = set()
        self._console: ConsoleLog | None = None
        self._last = (self.origin.last_file, self.origin.last_rows)
        uncovered = list(_read_uncovered(folder, self.origin, self._name("training")))
        self._total = self.origin.rows + len(uncovered)
        self._uncovered = Counter(value for row in uncovered for value in self._values_of(row))
        self._expected: set[str] = set()
        self._last_step = file.last_step
        self._registered: tuple[Path, Registration] | None = None

    @property
    def origin(self) -> Origin:
        return self.file.origin or Origin()

    @property
    def id(self) -> str:
        return self.file.id

    @property
    def total(self) -> int:
        """Rows of the run."""
        return self._total + self.rows

    @property
    def waiting(self) -> int:
        """Rows kept in memory because the disk does not take them: not written yet."""
        return self._writer.waiting

    @property
    def names(self) -> Collection[str]:
        """Metrics of the tracker that this writer has written, and those that were renamed before."""
        return self._names.keys()

    # -- what it is

    def describe(self, about: About) -> None:
        """What is known of the run by now; what is empty stays as it was, and so does what else is configured."""
        about = _without_secrets(about, self._settings)
        started = format_time(about.started) if about.started is not None else self.file.started
        changed = replace(
            self.file,
            name=(about.name if "name" not in self.file.edited else "") or self.file.name,
            config=self.file.config if about.config is None else {**(self.file.config or {}), **about.config},
            tags=self._merge_tags(about.tags),
            notes=(about.notes if "notes" not in self.file.edited else "") or self.file.notes,
            started=started,
        )
        if changed != self.file:
            self.file = changed
            self.write_file()

    def _merge_tags(self, tags: tuple[str, ...] | None) -> tuple[str, ...]:
        """Those of the tracker replace earlier ones of it; where a user has edited them, none of the user's goes."""
        if tags is None:
            return self.file.tags
        if "tags" in self.file.edited:
            return tuple(dict.fromkeys(tag for tag in (*self.file.tags, *tags) if tag not in self.file.untagged))
        return tags

    def describe_origin(self, **changes: Any) -> None:
        """Other fields of the origin; written with the next `save`."""
        self.file = replace(self.file, origin=replace(self.origin, **changes))

    def write_file(self) -> None:
        """Replace run.json. Raises JournalError."""
        try:
            run_folder.replace_run(self.folder, self.file, self._written, self._settings.file_mode)
            self._written = self.file
        except OSError as error:
            raise JournalError(f"cannot write {self.folder / layout.RUN_FILE}: {error.strerror or error}") from error

    def begin_attempt(self, started: float | None = None) -> None:
        """The training was restarted and repeats steps: where both logged a step, the newer attempt counts."""
        self.close()
        attempt = self.file.attempt + 1
        began = Attempt(
            number=attempt, started=None if started is None else format_time(started), host=self.file.host_name
        )
        self.file = replace(self.file, attempt=attempt, attempts=(*self.file.attempts, began))
        self.write_file()
        self._writer = self._open("training")

    # -- rows

    def name_of(self, name: str) -> str:
        """How a metric of the tracker is called in the run: the same, unless a line uses that key itself or two names
        would be one."""
        known = self._names.get(name)
        if known is None:
            clean = name.encode("utf-8", "backslashreplace").decode()
            known = self._names[name] = free_key(clean, self._taken)
            self._taken[known] = None
            if known != name:
                self.describe_origin(renamed={**self.origin.renamed, name: known})
        return known

    def append(self, values: Mapping[str, float], *, step: int | None = None, time: float | None = None) -> None:
        """One row; `time` in seconds since 1970, None where the tracker keeps none. When it returns any process can
        read the row, unless the disk is full (`waiting`)."""
        stamp = self._untimed() if time is None else format_time(time)
        self._append_row(stamp, step, {self.name_of(name): value for name, value in values.items()})

    def append_block(self, lines: Lines, *, arrived: float | None = None) -> None:
        """Many rows, named as the tracker names them: as a segment where there are many, else line by line. Those with
        NO_TIME get the time at which they `arrived`, if they were seen to, and otherwise have none."""
        from trainvitals.journal import segment_writer

        lines.columns = {(self.name_of(name), label): column for (name, label), column in lines.columns.items()}
        if NO_TIME in lines.times:
            if arrived is not None:
                self.describe_origin(arrival_times=True)
            moment = parse_time(self._untimed()) if arrived is None else arrived
            lines.replace_time(NO_TIME, round((moment or 0.0) * 1e6))
        if self._uncovered or len(lines) < SEALED_ROWS:
            for micros, step, values in lines.rows():
                self._append_row(format_time(micros / 1e6), step, values)
            return
        self._writer.close()
        taken = (name.stamp for name, _, _ in layout.list_files(self.folder) if name.table == "training")
        name = FileName("training", self.file.attempt, layout.next_stamp(taken))
        segment_writer.write_segment(self.folder, name, lines, self._settings.file_mode)
        self._writer = self._open("training")
        self._last = (name.stem, len(lines))
        self.rows += len(lines)
        self._note_step(lines.last_step)

    def expect_again(self, names: Iterable[str]) -> None:
        """All values of these metrics come again, until the next `save` that has caught up: only those are written that
        the run does not have."""
        fresh = {self.name_of(name) for name in names} - self._expected
        if fresh:
            self._expected |= fresh
            rows = read_table(self.folder, "training")
            values = (value for _, row in rows for value in self._values_of(row) if value[0] in fresh)
            self._uncovered = Counter({key: n for key, n in self._uncovered.items() if key[0] not in fresh})
            self._uncovered.update(values)

    def _append_row(self, stamp: str, step: int | None, values: Mapping[str, float]) -> None:
        if self._uncovered:
            values = {name: value for name, value in values.items() if not self._is_written(name, step, stamp, value)}
        if values:
            self._write(encode_line({"timestamp": stamp, **({} if step is None else {"step": step}), **values}))
            self._note_step(step)

    def _write(self, line: bytes) -> None:
        writer = self._writer
        with writer.lock:
            writer.append(line)
            stem = writer.path.name.removesuffix(".jsonl")
            self._last = (stem, self._last[1] + 1 if self._last[0] == stem else 1)
            self.rows += 1

    def _is_written(self, name: str, step: int | None, stamp: str, value: float) -> bool:
        """Whether this value is one that was written before the position was saved. Each is found once."""
        key = (name, step, self._own_time(stamp), spell(float(value)))
        left = self._uncovered.pop(key, 0)
        if left > 1:
            self._uncovered[key] = left - 1
        return left > 0

    def _values_of(self, row: Row) -> Iterator[_Value]:
        stamp = self._own_time(format_time(parse_time(row["timestamp"])))
        for name, item in row.items():
            value = number(item)
            if name not in RESERVED and value is not None:
                yield name, row.get("step"), stamp, spell(value)

    def _own_time(self, stamp: str) -> str:
        """Empty in a run without times: when a row arrived is no mark of it."""
        return stamp if self.origin.untimed_until in (None, EPOCH) else ""

    def _note_step(self, step: int | None) -> None:
        if step is not None:
            self._last_step = max(step, self._last_step if self._last_step is not None else step)

    def _untimed(self) -> str:
        """The timestamp of rows without a time. In a run whose other rows have times it is earlier than all of them."""
        stamp = self.origin.untimed_until or EPOCH
        self.describe_origin(untimed_until=stamp)
        return stamp

    def save(self, position: Mapping[str, Any], *, caught_up: bool = True) -> None:
        """Everything up to `position` is written: another writer goes on from there. `caught_up` if the tracker has
        nothing more for now, so that rows of a killed writer that have not come again will not. Raises JournalError."""
        if self._writer.waiting and not self._writer.flush(1.0):
            raise JournalError(
                f"cannot write to {self.folder}: the disk is full or read-only", hint="make room, then import again"
            )
        if caught_up:
            self._uncovered.clear()
            self._expected.clear()
        if not self._uncovered:
            last_file, last_rows = self._last
            self.describe_origin(last_file=last_file, last_rows=last_rows, rows=self.total)
        self.describe_origin(position=position)
        self.file = replace(self.file, last_step=self._last_step)
        self.write_file()

    # -- events and what was printed

    def event(
        self,
        event: str,
        message: str,
        *,
        when: float | None = None,
        severity: str = "info",
        step: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write down that something happened, unless it is written already."""
        if self._events is None:
            self._events = self._open("events")
            rows = (EventRow.parse(row) for _, row in read_table(self.folder, "events"))
            self._known_events = {(row.timestamp, row.event, row.message) for row in rows}
        cleaned = redact(data, extra=self._settings.redact) if data else None
        row = new_event(event, redact_text(message), when=when, severity=severity, rank=0, step=step, data=cleaned)
        key = (row.timestamp, row.event, row.message)
        if key not in self._known_events:
            self._known_events.add(key)
            self._events.append(encode_line(row.as_json()))

    def print(self, text: str) -> None:
        """What the program printed, whole lines."""
        if self._console is None:
            self._console = ConsoleLog(
                self.folder, stem_of(Participant()), limit=limit_of(self._settings), mode=self._settings.file_mode
            )
        self._console.append(text)

    # -- while it goes on

    def watch(self) -> bool:
        """Have the agent follow, seal and judge the run while this process writes it; whether there is an agent. What
        this process does to the machine is not the run's, so nothing is measured unless the settings name sources."""
        self.file = replace(self.file, status=RUNNING, ended=None, cause=None, process=Process.of(os.getpid()))
        self.write_file()
        self._reopen_statuses()
        registration = new_registration(
            self.folder,
            os.getpid(),
            attempt=self.file.attempt,
            correlation_id=self.file.correlation_id,
            settings={**self._settings.as_json(), **_unlike_a_training(self._settings)},
        )
        self._registered = (registrations.register(registration), registration)
        return not self._settings.agent or runtime.ensure_agent()

    def look_after_agent(self) -> None:
        """A look at a lock; the agent is started again if it died."""
        if self._registered is not None and self._settings.agent:
            runtime.ensure_agent()

    def _reopen_statuses(self) -> None:
        """An agent that finds its own word that this attempt is over would not look at it again."""
        path = self.folder / layout.STATUS_FILE
        for status in run_folder.read_statuses(self.folder):
            if status.is_over and status.attempt == self.file.attempt and path.exists():
                run_folder.write_status(
                    self.folder, replace(status, state=RUNNING, cause=None), mode=self._settings.file_mode
                )

    # -- the end

    def end(
        self, status: str, cause: Cause | None = None, *, when: float | None = None, exit_code: int | None = None
    ) -> None:
        """The run ended in this way, at `when`; None if the tracker does not keep it. Raises JournalError."""
        self.close()
        self.file = replace(self.file.end(status, cause, when=when), exit_code=exit_code, last_step=self._last_step)
        if when is None:
            attempts = tuple(replace(item, ended=None) for item in self.file.attempts[-1:])
            self.file = replace(self.file, ended=None, attempts=(*self.file.attempts[:-1], *attempts))
        self.write_file()
        if self._registered is not None:
            registrations.note_end(*self._registered, status)
            self._registered = None

    def close(self) -> None:
        """Write what waits and close the files; what is written later goes to new ones."""
        for writer in (self._writer, self._events):
            if writer is not None:
                writer.close()
        if self._console is not None:
            self._console.close()
        self._writer, self._events, self._console = self._open("training"), None, None

    def _name(self, table: str) -> FileName:
        return FileName(table, self.file.attempt, "", rank=0 if table == "events" else None)

    def _open(self, table: str) -> LineWriter:
        return LineWriter(
            self.folder,
            self._name(table),
            rotate_bytes=int(self._settings.rotate_size_mb * MIB),
            mode=self._settings.file_mode,
        )


def _unlike_a_training(settings: Settings) -> dict[str, Any]:
    """Settings of the run under which the agent does nothing to the process that writes it, or with its numbers."""
    changed: dict[str, Any] = {"stack_dumps": False, "alerts.actions": {}, "console": "off"}
    return changed if settings.sources is not None else {**changed, "sources": []}


def _without_secrets(about: About, settings: Settings) -> About:
    return replace(
        about,
        name=redact_text(about.name),
        notes=redact_text(about.notes),
        tags=tuple(sorted({redact_text(tag) for tag in about.tags})) if about.tags is not None else None,
        config=redact(about.config, extra=settings.redact) if about.config is not None else None,
        command=redact_text(about.command) if about.command is not None else None,
    )


def _read_uncovered(folder: Path, origin: Origin, own: FileName) -> Iterator[Row]:
    """The rows that were written after the position was saved: by a writer of the same files that was killed."""
    last = layout.parse_name(f"{origin.last_file}.jsonl")
    for name, suffix, path in layout.list_files(folder):
        if name.writer != own.writer or suffix == layout.SIDE or (last is not None and name.order < last[0].order):
            continue
        first = origin.last_rows if last is not None and name == last[0] else 0
        if suffix == ".jsonl":
            yield from Cursor(path).read()[first:]
        elif not (folder / name.jsonl).exists():
            from trainvitals.journal.segment_reader import SealedSegments

            yield from SealedSegments(path.parent).rows(path, first)
