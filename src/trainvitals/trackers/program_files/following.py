"""Follows the files that programs of one run write their numbers to: `python -m trainvitals.trackers.program_files
RUN-FOLDER`, started by the agent, ends with what is there when its standard input is closed.

A process apart, because reading event files takes numpy, which is larger than the agent. What it has read is written
one look later: by then the run itself has logged what may be the same. It logs a step when the next one begins, so
what it may have for a slow step is waited for longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.documents.run import TRAINING, Origin
from trainvitals.journal.encoding import number, parse_time
from trainvitals.journal.follower import Follower
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import Media, OverLimit
from trainvitals.journal.segment_writer import Lines
from trainvitals.journal.writer import MIB
from trainvitals.settings import Settings, resolve
from trainvitals.trackers.foreign import to_micros
from trainvitals.trackers.importing import ImportFailed, Medium, SourceRun
from trainvitals.trackers.intake.runs import CapturedProgram, ProgramWriter
from trainvitals.trackers.mlflow_conventions import SYSTEM as MLFLOW_SYSTEM
from trainvitals.trackers.mlflow_store import MlflowSource, open_store
from trainvitals.trackers.program_files.notes import EVENT_FOLDER, MLFLOW, SENT, TABLE, WANDB, FileNote, read_notes
from trainvitals.trackers.program_files.repeats import Meaning, Repeats, read_meaning
from trainvitals.trackers.program_files.sent import read_sent
from trainvitals.trackers.run_writing import NO_TIME, About
from trainvitals.trackers.tables import CsvTable, TableRun
from trainvitals.trackers.tensorboard.reading import EventFile, is_event_file
from trainvitals.trackers.wandb_files import SYSTEM, WandbRun

LOOK_SECONDS = 1.0
MOST_HELD = 200_000
"""Rows that are read at one look: memory is bounded."""
LAST_LOOK_SECONDS = 60.0
MOST_WAIT_SECONDS = 120.0
"""For what the run itself may have: as long as `SummaryWriter` keeps its values by default."""
FIRST_MEANINGS = frozenset(map(read_meaning, ("loss", "learning_rate", "lr", "gradient_norm")))
"""What a watched training will have, before it has logged anything."""
CLOCK_SECONDS = 2.0
"""By so much the time in the name of an event file may be before the time at which its writer was made."""

_HPARAMS_FOLDER = re.compile(r"\d{9,}\.\d+")


class FileRows(NamedTuple):
    """Rows of a file and the position behind them."""

    position: Mapping[str, Any]
    lines: Lines
    about: About | None = None
    """What a client says of its run, where that is new."""
    media: Sequence[Medium] = ()


class ProgramFile(Protocol):
    """A file that a program writes."""

    steps_are_epochs: bool
    has_steps: bool

    def read(self, position: Mapping[str, Any]) -> Iterator[FileRows]: ...


class WrittenEvents:
    """One event file."""

    steps_are_epochs = False

    def __init__(self, path: Path) -> None:
        self._file = EventFile(path)
        self.has_steps = not _is_of_hparams(path.parent)

    def read(self, position: Mapping[str, Any]) -> Iterator[FileRows]:
        for block in self._file.read(int(position.get("offset", 0))):
            lines = Lines("training")
            block.add_to(lines)
            yield FileRows({"offset": block.end}, lines)


class WrittenTable:
    """The table of a CSVLogger."""

    has_steps = True

    def __init__(self, note: FileNote) -> None:
        self._table = CsvTable(Path(note.path))
        self._run = TableRun(self._table, "")
        self._first = note.offset
        self.steps_are_epochs = False

    def read(self, position: Mapping[str, Any]) -> Iterator[FileRows]:
        if not self._table.path.exists():
            return  # it is made with the first row
        self.steps_are_epochs = "step" not in self._table.columns()
        if not position and self._first:
            position = {"rows": 0, "offset": self._first, "mark": self._table.mark()}
        for piece in self._run.read(position):
            yield FileRows(piece.position, piece.lines or Lines("training"))


class WrittenRun:
    """A run that the client of another tracker keeps on this machine. The agent measures hardware itself."""

    steps_are_epochs = False
    has_steps = True

    def __init__(self, open_run: Callable[[], SourceRun], hardware: str) -> None:
        self._open = open_run
        self._hardware = hardware
        self._run: SourceRun | None = None

    def read(self, position: Mapping[str, Any]) -> Iterator[FileRows]:
        self._run = self._run or self._open()
        for piece in self._run.read(position):
            lines = Lines("training")
            for micros, step, values in piece.lines.rows() if piece.lines is not None else ():
                own = {name: value for name, value in values.items() if not name.startswith(self._hardware)}
                if own:
                    lines.add_row(micros, step, own)
            yield FileRows(piece.position, lines, piece.about, piece.media)


class SentRun:
    """A run that a client keeps on a server, as it was sent there."""

    steps_are_epochs = False
    has_steps = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, position: Mapping[str, Any]) -> Iterator[FileRows]:
        for offset, rows in read_sent(self._path, int(position.get("offset", 0))):
            lines, config, tags = Lines("training"), dict[str, Any](), tuple[str, ...]()
            for row in rows:
                values = {name: value for name, item in row.values.items() if (value := number(item)) is not None}
                if values:
                    lines.add_row(to_micros(row.time), row.step, values)
                config.update(row.config)
                tags = row.tags or tags
            about = About(config=config or None, tags=tags or None) if config or tags else None
            yield FileRows({"offset": offset}, lines, about)


def _open_file(note: FileNote, path: Path) -> ProgramFile:
    if note.kind == TABLE:
        return WrittenTable(note)
    if note.kind == WANDB:
        return WrittenRun(lambda: WandbRun(path), SYSTEM)
    if note.kind == MLFLOW:
        return WrittenRun(lambda: MlflowSource(open_store(note.path)).find(note.run), MLFLOW_SYSTEM)
    if note.kind == SENT:
        return SentRun(path)
    return WrittenEvents(path)


class _Held(NamedTuple):
    """Rows that were read, and not yet written."""

    key: str
    prefix: str
    file: ProgramFile
    rows: FileRows
    since: float
    """When they were read, in seconds since 1970."""


class FollowedRank:
    """The files of one rank, and the rows of it in the run."""

    def __init__(self, folder: Path, rank: int, settings: Settings) -> None:
        self._state = f".program_files.rank{rank}.json"
        self._writer = _open_writer(folder, rank, self._state, settings)
        self._position: dict[str, Any] = dict(self._writer.origin.position)
        """By file, how far it is written."""
        self._read_to = dict(self._position)
        self._files: dict[str, tuple[ProgramFile, str]] = {}
        self._first: dict[type, Path] = {}
        """The folder of the first file of each kind."""
        self._repeats = Repeats()
        own, participant = int(self._writer.origin.key), Participant(rank=rank)
        self._rows = Follower(
            folder, ("training",), wanted=lambda file: file.participant == participant and file.pid != own
        )
        self._held: list[_Held] = []
        self._media = Media(
            folder,
            file_bytes=int(settings.media_file_mb * MIB),
            run_bytes=int(settings.media_size_mb * MIB),
            skip_known=True,
        )
        self._is_media_refused = False
        self._newest = 0.0
        """The time of the newest row of the run itself."""
        self._run_id, self._rank, self._began = folder.name, rank, time.time()

    def look(self, notes: list[FileNote], *, is_over: bool = False) -> bool:
        """Write what was read at the last look, and read what is new. Whether there was something new. What the run
        itself may still log waits, unless the run `is_over`."""
        last: Mapping[str, Any] = {}
        for _, last in self._rows.poll():
            self._repeats.add_row(last)
        self._newest = max(self._newest, parse_time(last.get("timestamp")) or 0.0)
        waiting: dict[str, list[_Held]] = {}
        for held in self._held:
            if held.key in waiting or (not is_over and self._must_wait(held)):
                waiting.setdefault(held.key, []).append(held)
            else:
                self._write(held)
        if self._held:
            self._writer.save(self._position, caught_up=False)
            self._held = [held for of_file in waiting.values() for held in of_file]
        if self._is_full():
            return True
        wanted: dict[str, None] = {}
        for note in _without_former(notes):
            for path in _find_paths(note):
                part = note.timestamp if note.kind == TABLE else note.run
                key = f"{path}#{part}" if part else str(path)
                wanted[key] = None
                if key not in self._files:
                    opened = _open_file(note, path)
                    # Each is a folder of its own, as far as names go.
                    folder = path / note.run if note.kind == MLFLOW else path if note.kind == SENT else path.parent
                    self._files[key] = (opened, self._choose_prefix(type(opened), folder))
        for key in wanted:
            file, prefix = self._files[key]
            # A file that is gone, or is not what its name promises, keeps nobody from the others.
            with contextlib.suppress(OSError, ImportFailed, ValueError):
                for rows in file.read(self._read_to.get(key, {})):
                    self._read_to[key] = rows.position
                    self._held.append(_Held(key, prefix, file, rows, time.time()))
                    if self._is_full():
                        return True
        return bool(self._held)

    def _is_full(self) -> bool:
        return sum(len(held.rows.lines) for held in self._held) > MOST_HELD

    def _must_wait(self, held: _Held) -> bool:
        """Whether a value may be one that the run has not logged yet: its own rows are older than that."""
        now = time.time()
        meanings: Collection[Meaning] = self._repeats.meanings
        if not meanings and now - self._began < MOST_WAIT_SECONDS and self._is_watched():
            meanings = FIRST_MEANINGS
        if not meanings or now - held.since >= MOST_WAIT_SECONDS:
            return False
        by_epoch = held.file.steps_are_epochs
        for micros, step, values in held.rows.lines.rows():
            if (held.since if micros == NO_TIME else micros / 1e6) <= self._newest:
                continue
            for tag, value in values.items():
                name = held.prefix + tag
                if read_meaning(name) in meanings and not self._repeats.has(name, step, value, by_epoch=by_epoch):
                    return True
        return False

    def _is_watched(self) -> bool:
        """Whether this rank is a training that will log rows of its own."""
        found = registrations.read_all(self._run_id)
        return any(item.kind == TRAINING and item.rank == self._rank for _, item in found)

    def close(self) -> None:
        self._writer.close()

    def _choose_prefix(self, kind: type, folder: Path) -> str:
        """Of the names of this folder: none for the first, which is often the only one; else TensorBoard's way to tell
        `logs/train` from `logs/validation`."""
        folder = folder.parent if _is_of_hparams(folder) else folder
        first = self._first.setdefault(kind, folder)
        if folder == first:
            return ""
        for base in (first, first.parent):
            if folder.is_relative_to(base) and folder != base:
                return f"{folder.relative_to(base).as_posix()}/"
        return f"{folder.name}/"

    def _keep(self, medium: Medium, prefix: str) -> None:
        try:
            self._media.write(
                medium.kind,
                prefix + medium.name,
                medium.data,
                medium.suffix,
                step=medium.step,
                time=medium.time,
                participant=Participant(rank=self._rank),
                **medium.facts,
            )
        except (OverLimit, OSError) as error:
            if not self._is_media_refused:
                self._is_media_refused = True
                self._writer.event("media_left_out", f"media of a tracker's client are not in this run: {error}")

    def _write(self, held: _Held) -> None:
        about = held.rows.about
        if about is not None and not held.prefix and self._rank == 0:
            # The run of the command keeps its own name and project.
            self._writer.describe(About(config=about.config, tags=about.tags, notes=about.notes))
        for medium in held.rows.media:
            self._keep(medium, held.prefix)
        for micros, step, values in held.rows.lines.rows():
            fresh = {
                name: value
                for tag, value in values.items()
                if not self._repeats.has(name := held.prefix + tag, step, value, by_epoch=held.file.steps_are_epochs)
            }
            if fresh:
                # A name of the run itself with other values is another metric.
                renamed = {
                    f"logged/{name}" if name in self._repeats.names else name: value for name, value in fresh.items()
                }
                self._writer.append(
                    renamed,
                    step=step if held.file.has_steps else None,
                    time=time.time() if micros == NO_TIME else micros / 1e6,
                )
        self._position[held.key] = held.rows.position


def _is_of_hparams(folder: Path) -> bool:
    """Whether `add_hparams` of torch or tensorboardX made it: it has the results of a run, all at step 0, in a folder
    that is named after the time."""
    return _HPARAMS_FOLDER.fullmatch(folder.name) is not None


def _without_former(notes: Iterable[FileNote]) -> list[FileNote]:
    """A table that is begun again is another file, in the place of the former one; one that grows is the same."""
    found: dict[tuple[str, str, str], FileNote] = {}
    for note in notes:
        place = (note.kind, note.path, note.run)
        if place not in found or (note.kind == TABLE and not note.offset):
            found[place] = note
    return list(found.values())


def _find_paths(note: FileNote) -> Iterator[Path]:
    """The files that are meant."""
    path = Path(note.path)
    if note.kind == EVENT_FOLDER:
        process = f".{socket.gethostname()}.{note.pid}."
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                made = entry.name.partition("tfevents.")[2].partition(".")[0]
                is_new = made.isdecimal() and int(made) >= note.opened - CLOCK_SECONDS
                if is_event_file(entry.name) and process in entry.name and is_new:
                    yield Path(entry.path)
    else:
        yield path


def _open_writer(folder: Path, rank: int, state: str, settings: Settings) -> ProgramWriter:
    """Rows in files of the process that wrote first: one that goes on after a kill goes on with them."""
    known = Origin.parse(runtime.read_json(folder / state, own=True))
    pid = int(known.key) if known.key.isdecimal() else os.getpid()
    writer = ProgramWriter(CapturedProgram(folder, rank, pid), settings, state, describes_late=True)
    writer.file = replace(writer.file, origin=replace(writer.origin, tool="program files", key=str(pid)))
    return writer


def follow(folder: Path, settings: Settings, stop: int) -> None:
    """Until the descriptor `stop` is at its end."""
    lock = run_folder.open_within(folder, f".program_files.host-{layout.host_token(runtime.host_name())}.lock")
    try:
        # The follower of an agent that was killed may be at its last look.
        runtime.try_lock(lock, LAST_LOOK_SECONDS)
        ranks: dict[int, FollowedRank] = {}
        while True:
            is_over = bool(select.select([stop], [], [], LOOK_SECONDS)[0])
            while _look(folder, settings, ranks, is_over=is_over) and is_over:
                continue
            if is_over:
                break
        for files in ranks.values():
            files.close()
    finally:
        os.close(lock)


def _look(folder: Path, settings: Settings, ranks: dict[int, FollowedRank], *, is_over: bool) -> bool:
    notes, found = read_notes(folder), False
    for rank in sorted({note.rank for note in notes}):
        if rank not in ranks:
            ranks[rank] = FollowedRank(folder, rank, settings)
        with contextlib.suppress(JournalError):  # a full disk: tried again at the next look
            found |= ranks[rank].look([note for note in notes if note.rank == rank], is_over=is_over)
    return found


def main() -> int:
    """Be that process."""
    os.nice(5)
    folder, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    follow(folder, resolve(given, environ={}, folder=Path("/")), sys.stdin.fileno())
    return 0
