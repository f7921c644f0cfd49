"""Where clients log to: runs of a server, or the run of the program below `trainvitals run` that they are part of.

Which run of which tracker a folder is, and how far that was received, is in run.json (`Origin`). In a run that
`trainvitals run` has begun, run.json is the program's: there it is in a file of our own, and only what the client
describes (configuration, tags, name) is added to run.json.
Tested in tests/trackers/intake/test_wandb.py.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.console import ConsoleLog, ConsolePlace, limit_of, stem_of
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import COMMAND, TRAINING, Origin, RunFile
from trainvitals.journal.encoding import encode_line
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.media import Media
from trainvitals.journal.stop_requests import find_request, withdraw
from trainvitals.journal.writer import MIB, LineWriter
from trainvitals.settings import Settings
from trainvitals.trackers.intake.keys import STATE_FILE
from trainvitals.trackers.run_writing import About, RunWriter, TrackedRuns

MOST_OPEN = 100
"""Runs with open files; the one that was quiet longest is closed, and opened again when it is needed."""
AGENT_SECONDS = 15.0


class CapturedProgram(NamedTuple):
    """A process below `trainvitals run` whose client logs here, into the run of that command."""

    folder: Path
    rank: int
    pid: int


class RowsWaiting(JournalError):
    """The disk does not take what came: the client must send it again."""


class IntakeRun:
    """One run while its client logs. Its methods are called with `lock` held."""

    def __init__(self, writer: RunWriter, settings: Settings, program: CapturedProgram | None) -> None:
        self.lock = threading.RLock()
        self.writer = writer
        self.position: dict[str, Any] = dict(writer.origin.position)
        """How far the client was received, in terms of its protocol. Saved by `save`."""
        self.last_request = time.monotonic()
        self.is_closed = False
        self.tables: dict[str, Any] = {}
        """What the protocol keeps about the run while it is open."""
        self._settings = settings
        self._program = program
        self._samples: dict[str, LineWriter] = {}
        self._last_samples: dict[str, str] = {}
        self._console: ConsoleLog | None = None
        self._next_agent_look = time.monotonic() + AGENT_SECONDS

    @property
    def folder(self) -> Path:
        return self.writer.folder

    @property
    def file(self) -> RunFile:
        return self.writer.file

    @property
    def described(self) -> RunFile:
        """What is known of it. The run of a program is described by others too."""
        return (run_folder.find_run(self.folder) if self.is_part_of_program else None) or self.file

    @property
    def key(self) -> str:
        return self.writer.origin.key

    @property
    def participant(self) -> Participant:
        """Who logs."""
        return Participant(rank=self._program.rank if self._program is not None else 0)

    @functools.cached_property
    def media(self) -> Media:
        return Media(self.folder, skip_known=True)

    @property
    def is_part_of_program(self) -> bool:
        """Whether hardware and console are recorded without the client, by those who watch the program."""
        return isinstance(self.writer, ProgramWriter)

    @property
    def is_stop_requested(self) -> bool:
        return find_request(self.folder) is not None

    def describe(self, about: About) -> None:
        """What the client knows of the run by now. Raises JournalError."""
        self.writer.describe(about)

    def add_sample(self, table: str, row: Mapping[str, Any], host: str) -> None:
        """A row of hardware, as the client measured it on its machine; rows of each table come in order of time."""
        if table not in self._samples:
            name = FileName(table, self.file.attempt, "", host=layout.host_token(host))
            self._last_samples[table] = _find_last_time(self.folder, name)
            self._samples[table] = LineWriter(
                self.folder,
                name,
                rotate_bytes=int(self._settings.rotate_size_mb * MIB),
                mode=self._settings.file_mode,
            )
        if row["timestamp"] > self._last_samples[table]:  # else it was written by a process that was killed since
            self._samples[table].append(encode_line(row))

    def print_lines(self, offset: int, lines: list[str]) -> None:
        """What the program printed: lines from number `offset` on, of which some may have come before. The last line
        may come again with another text, as a progress bar has it."""
        known: Mapping[str, Any] | None = self.position.get("console")
        if self._console is None:
            limit, mode = limit_of(self._settings), self._settings.file_mode
            log = ConsoleLog(self.folder, stem_of(self.participant), limit=limit, mode=mode)
            if known is None and log.path.exists():
                return  # it is kept already, by the agent or by the program itself
            if known is None:
                # Before the first line: whoever goes on after a kill must not take the file for one of others.
                known = {"lines": 0, "last": "", "inode": 0, "size": 0}
                self.position["console"] = known
                self.save()
            else:
                log.go_back(ConsolePlace(int(known["inode"]), int(known["size"])))
            self._console = log
        count, last = (int(known["lines"]), str(known["last"])) if known is not None else (0, "")
        fresh = [(offset + place, line) for place, line in enumerate(lines) if offset + place >= count - 1]
        text = ""
        for number, line in fresh:
            if number >= count:
                text += ("\n" if count else "") + line + "\r"
                count, last = number + 1, line
            elif line != last:  # the last line, drawn again
                text += line + "\r"
                last = line
        if text:
            self._console.append(text)
        place = self._console.place
        if place is not None:
            self.position["console"] = {"lines": count, "last": last[:1000], "inode": place.inode, "size": place.size}

    def confirm(self) -> None:
        """What came is with the kernel: only then may it be acknowledged. Raises RowsWaiting."""
        if self.writer.waiting:
            self.save()

    def save(self) -> None:
        """The same, and how far the client was received is kept. Raises RowsWaiting."""
        try:
            self.writer.save(dict(self.position), caught_up=False)
        except JournalError as error:
            raise RowsWaiting(error.message) from error
        now = time.monotonic()
        if now > self._next_agent_look:
            self._next_agent_look = now + AGENT_SECONDS
            self.writer.look_after_agent()

    def begin_attempt(self) -> None:
        """The client was started again under the same id."""
        self._close_samples()
        self.writer.begin_attempt(time.time())
        withdraw(self.folder)

    def end(self, status: str, *, exit_code: int | None = None, cause: Cause | None = None) -> None:
        """The client has ended the run. Raises JournalError."""
        if self._console is not None and self.position.get("console", {}).get("lines"):
            self._console.append("\n")
        self._close_samples()
        self.writer.end(status, cause, when=time.time(), exit_code=exit_code)

    def close(self) -> None:
        """Close the files; the run stays as it is, and whoever needs it opens it again."""
        self.is_closed = True
        self._close_samples()
        self.writer.close()

    def _close_samples(self) -> None:
        for writer in self._samples.values():
            writer.close(0.0)
        self._samples.clear()
        if self._console is not None:
            self._console.close()


class IntakeRuns:
    """The runs of all clients that log to one place. Safe from many threads."""

    def __init__(self, root: Path, settings: Settings, program: CapturedProgram | None = None) -> None:
        """With `program`, the first run of its client is that of its command; further ones are runs beside it."""
        self.root = root
        self.settings = settings
        self._program = program
        self._lock = threading.RLock()
        self._tracked: TrackedRuns | None = None
        self._open: dict[tuple[str, str], IntakeRun] = {}

    @contextlib.contextmanager
    def hold(self, tool: str, key: str) -> Iterator[IntakeRun | None]:
        """The run that has this key in the tracker, whether or not it has ended. Its lock is held: no other thread ends
        or closes it meanwhile."""
        while True:
            with self._lock:
                run = self._find(tool, key)
            if run is None:
                yield None
                return
            with run.lock:
                if not run.is_closed:
                    yield run
                    return

    @contextlib.contextmanager
    def begin(self, tool: str, key: str, about: About) -> Iterator[IntakeRun]:
        """The same, with what the client knows of the run by now; begun if there is none. Raises JournalError."""
        with self._lock:
            if self._find(tool, key) is None:
                self._claim_program(tool, key)
                self._open_run(tool, key, about, resume=False)
        with self.hold(tool, key) as run:
            if run is None:
                raise JournalError(f"the folder of run {key} was removed")
            run.describe(replace(about, started=None))
            yield run

    def list_folders(self) -> list[Path]:
        """Every run that a client may read back."""
        if self._program is None:
            return run_folder.list_folders(self.root)
        with self._lock:
            others = [folder for _, _, folder in self._find_tracked().list_from(self._program.folder.name)]
            return list(dict.fromkeys([self._program.folder, *others]))

    def read(self, folder: Path) -> tuple[RunFile, Origin] | None:
        """What is known of a run that may have ended; None if it is not one of a client."""
        file = run_folder.find_run(folder)
        origin = file.origin if file is not None else None
        if self._program is not None and folder == self._program.folder:
            origin = Origin.parse(runtime.read_json(folder / STATE_FILE, own=True))
        return (file, origin) if file is not None and origin is not None else None

    def find_folder(self, tool: str, key: str) -> Path | None:
        """Of the run that has this key, for somebody who reads: that is no sign of life of its client."""
        with self._lock:
            run = self._open.get((tool, key))
            if run is not None and run.folder.is_dir():
                return run.folder
            if self._program is not None and self._is_of_program(tool, key):
                return self._program.folder
            return self._find_tracked().find(self._origin(tool, key))

    def list_keys(self, tool: str) -> list[tuple[str, Path]]:
        """(key, folder) of every run of a tracker that a client may read back."""
        with self._lock:
            found = {key: run.folder for (owner, key), run in self._open.items() if owner == tool}
        for folder in self.list_folders():
            known = self.read(folder)
            if known is not None and known[1].tool == tool and (self._program is not None or not known[1].place):
                found.setdefault(known[1].key, folder)
        return list(found.items())

    def list_open(self) -> list[IntakeRun]:
        with self._lock:
            return list(self._open.values())

    def end_quiet(self, tool: str, seconds: float, status: str, cause: Cause | None) -> None:
        """End the open runs whose client has been silent this long."""
        now = time.monotonic()
        for run in self.list_open():
            if run.writer.origin.tool != tool or now - run.last_request < seconds or run.is_part_of_program:
                continue
            with run.lock:
                if not run.file.is_over and now - run.last_request >= seconds:
                    run.end(status, cause=cause)
                    self.forget(run)

    def forget(self, run: IntakeRun) -> None:
        """Close its files; the next request opens it again. With its lock held."""
        with self._lock:
            run.close()
            self._open.pop((run.writer.origin.tool, run.key), None)

    def close(self) -> None:
        """Close all files."""
        for run in self.list_open():
            with run.lock:
                self.forget(run)

    # -- with the lock held

    def _find(self, tool: str, key: str) -> IntakeRun | None:
        run = self._open.get((tool, key))
        if run is not None and run.folder.is_dir():
            self._note_use(tool, key, run)
            return run
        if self._is_of_program(tool, key) or self._find_tracked().find(self._origin(tool, key)) is not None:
            return self._open_run(tool, key, About(), resume=True)
        return None

    def _origin(self, tool: str, key: str) -> Origin:
        return Origin(tool=tool, place=self._program.folder.name if self._program is not None else "", key=key)

    def _find_tracked(self) -> TrackedRuns:
        if self._tracked is None:
            self._tracked = TrackedRuns(self.root, self.settings)
        return self._tracked

    def _open_run(self, tool: str, key: str, about: About, *, resume: bool) -> IntakeRun:
        writer: RunWriter
        if self._program is not None and self._is_of_program(tool, key):
            writer = ProgramWriter(self._program, self.settings)
            writer.describe(about)
        else:
            writer = self._find_tracked().open(self._origin(tool, key), about)
            if self._program is not None and not resume:
                writer.file = replace(writer.file, below=self._program.folder.name)
        if not writer.file.is_over or not resume:
            writer.watch()
        run = IntakeRun(writer, self.settings, self._program if isinstance(writer, ProgramWriter) else None)
        self._note_use(tool, key, run)
        return run

    def _note_use(self, tool: str, key: str, run: IntakeRun) -> None:
        run.last_request = time.monotonic()
        self._open.pop((tool, key), None)
        self._open[tool, key] = run
        for place, other in list(self._open.items())[: max(len(self._open) - MOST_OPEN, 0)]:
            if other.lock.acquire(blocking=False):  # else it is in use
                try:
                    self._open.pop(place).close()
                finally:
                    other.lock.release()

    def _is_of_program(self, tool: str, key: str) -> bool:
        if self._program is None:
            return False
        known = Origin.parse(runtime.read_json(self._program.folder / STATE_FILE, own=True))
        return (known.tool, known.key) == (tool, key)

    def _claim_program(self, tool: str, key: str) -> None:
        """Make the run of the command that of this client, unless another one was first."""
        if self._program is None:
            return
        state = self._program.folder / STATE_FILE
        if not state.exists():
            runtime.write_atomically(state, json.dumps(self._origin(tool, key).as_json()).encode())


class ProgramWriter(RunWriter):
    """Rows of a client in the run of the program that it is part of, in files of that process. How far it was received
    is in the file `state` of the run."""

    def __init__(
        self, program: CapturedProgram, settings: Settings, state: str = STATE_FILE, *, describes_late: bool = False
    ) -> None:
        """`describes_late` if what the client says may be read when the run has ended."""
        self._describes_late = describes_late
        self._program = program
        self._state = program.folder / state
        run = run_folder.read_run(program.folder)
        known = Origin.parse(runtime.read_json(self._state, own=True))
        file = RunFile(id=program.folder.name, attempt=run.attempt, created=run.created, origin=known)
        super().__init__(program.folder, file, settings)

    def write_file(self) -> None:
        """Save how far the client was received; add to run.json what the client describes, if that is new."""
        try:
            runtime.write_atomically(self._state, json.dumps(self.origin.as_json()).encode())
            if _described(self.file) != _described(self._written):
                self._merge()
                self._written = self.file
        except OSError as error:
            raise JournalError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    def _merge(self) -> None:
        run_folder.change_run(self.folder, self._add_to, self._settings.file_mode)

    def _add_to(self, run: RunFile) -> RunFile | None:
        mine = self.file
        if run.is_over and not self._describes_late:
            return None
        described = run_folder.merge_description(run, self._written, mine)
        return replace(
            run,
            name=described.name,
            project=mine.project or run.project,
            notes=described.notes,
            tags=tuple(sorted(described.tags)),
            config={**(run.config or {}), **mine.config} if mine.config else run.config,
            last_step=max((step for step in (run.last_step, mine.last_step) if step is not None), default=None),
        )

    def describe(self, about: About) -> None:
        """The script knows better than the command line did which project this is."""
        self.file = replace(self.file, project=about.project or self.file.project)
        super().describe(about)

    def watch(self) -> bool:
        """The agent watches the program itself. As long as no training is seen in it, what its client logs is followed
        and judged because of this registration; a training that begins later replaces it with its own."""
        found = registrations.read_all(self.folder.name)
        command = next((item for _, item in found if item.kind == COMMAND and item.folder == str(self.folder)), None)
        if command is None or runtime.process_start(self._program.pid) is None:
            return False  # nobody watches it, or it is over
        own = replace(
            command,
            kind=TRAINING,
            rank=self._program.rank,
            pid=self._program.pid,
            pid_start=runtime.process_start(self._program.pid),
            attempt=self.file.attempt,
            console=(),
        )
        known = next((item for _, item in found if item.file_name == own.file_name), None)
        if known is None or not own.is_same(known) or known.goodbye:
            self._registered = (registrations.register(own), own)
        return True

    def begin_attempt(self, started: float | None = None) -> None:
        """Attempts are those of the program."""

    def end(
        self, status: str, cause: Cause | None = None, *, when: float | None = None, exit_code: int | None = None
    ) -> None:
        """The client has ended; the program may go on, and its end is written by those who see it."""
        self.file = replace(self.file, last_step=self._last_step)
        self._merge()
        self.close()
        if self._registered is not None and Registration.read(self._registered[0]) == self._registered[1]:
            registrations.note_end(*self._registered, status)
            self._registered = None

    def _name(self, table: str) -> FileName:
        return FileName(table, self.file.attempt, "", rank=self._program.rank, pid=self._program.pid)


def _described(file: RunFile) -> tuple[object, ...]:
    """What a client says of its run."""
    return file.name, file.config, file.tags, file.notes, file.project


def _find_last_time(folder: Path, writer: FileName) -> str:
    """The time of the last row that is not sealed of this writer; empty if there is none."""
    found = ""
    for name, suffix, path in layout.list_files(folder):
        if suffix == ".jsonl" and name.writer == writer.writer:
            rows = Cursor(path).read()
            found = str(rows[-1]["timestamp"]) if rows else found
    return found
