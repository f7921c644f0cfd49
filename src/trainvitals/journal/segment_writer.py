"""Sealed segments: a closed JSONL file as Parquet, and how to read many of them at once.

A segment is a long table, one row per value: (name, label, row, step, time, value, text), sorted by name, label and
row, one row group per 65,536 values. Long rather than wide because a run may log 100,000 names or names that differ
only in case, and because one metric is then one range of the file. `label` is the subject (a GPU, a process) as
canonical JSON, empty for training lines; `row` is the line's number in the JSONL file; `step` is null where there is
none; `time` is microseconds since 1970. `text` holds what is not a number, such as throttle reasons.

Beside it is a side table, see `extremes`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import extremes, layout, parquet
from trainvitals.journal import folder as run_folder
from trainvitals.journal.cursor import Cursor, parse_timed
from trainvitals.journal.damage import Damage
from trainvitals.journal.encoding import NONFINITE, TimeParser, number
from trainvitals.journal.extremes import NO_STEP, Numbers
from trainvitals.journal.layout import FileName
from trainvitals.journal.parquet import OpenFolder
from trainvitals.plain_json import parse_object

ABANDONED_SECONDS = 86_400.0
LARGEST_FILE = 256 << 20
"""Sealing holds a file in memory, several times over; its own files are 16 MB unless set otherwise."""
_WORKSHOP = ".sealing-"


def split_labels(table: str, row: dict[str, Any]) -> str:
    """Take the labels out of `row`: canonical JSON, empty where the table has none."""
    keys: Iterable[str] = layout.LABEL_KEYS.get(table, ())
    if table in layout.TEXT_IS_LABEL:
        keys = [key for key, item in row.items() if isinstance(item, str) and item not in NONFINITE]
    labels = {key: row.pop(key) for key in keys if key in row}
    return orjson.dumps(labels, option=orjson.OPT_SORT_KEYS).decode() if labels else ""


def parse_labels(text: str) -> dict[str, Any]:
    """The labels again; of a file of somebody else's, whatever text is in their place."""
    try:
        return parse_object(text.encode()) if text else {}
    except ValueError:
        return {"label": text}


def labels_of(name: FileName, text: str) -> dict[str, Any]:
    """What a series is about: its labels, and those from the name of its file."""
    labels = {**({"host": name.host} if name.host else {}), **parse_labels(text)}
    if not name.participant.is_trainer:
        labels["role"] = name.role
    if name.pid is not None:
        labels["pid"] = name.pid
    return labels


@dataclass(slots=True)
class SegmentColumn:
    """The values of one name and label: for each its line number and the value."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class Lines:
    """JSONL lines as columns, growing as lines are added. Serves sealing and the live tail alike."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._has_labels = table in layout.LABEL_KEYS or table in layout.TEXT_IS_LABEL
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.damage = Damage()
        self.times = array("q")
        self.steps = array("q")
        self.columns: dict[tuple[str, str], SegmentColumn] = {}
        self.texts: list[tuple[int, str, str, str]] = []  # row, name, label, text
        self._clock = TimeParser()

    def __len__(self) -> int:
        return len(self.times)

    def add(self, line: bytes) -> None:
        """Take one line in; what cannot be understood is counted in `damage`."""
        found = parse_timed(line, self.damage, self._clock)
        if found is not None:
            row, moment = found
            del row["timestamp"]
            self.add_row(moment, row.pop("step", None), row)

    def add_row(self, moment: int, step: Any, row: dict[str, Any]) -> None:
        """Take one row in: its time in microseconds since 1970, its step, and the rest of it."""
        place = len(self.times)
        self.times.append(moment)
        whole_step = isinstance(step, int) and not isinstance(step, bool) and abs(step) < 2**62
        self.steps.append(step if whole_step else NO_STEP)
        if step is not None and not whole_step:
            row["step"] = step  # not one of ours, but nothing is dropped
        label = split_labels(self.table, row) if self._has_labels else ""
        columns = self.columns
        for name, item in row.items():
            value = item if type(item) is float else number(item)
            if value is None:
                self.texts.append((place, name, label, item if isinstance(item, str) else orjson.dumps(item).decode()))
                continue
            column = columns.get((name, label))
            if column is None:
                column = columns[(name, label)] = SegmentColumn()
            column.rows.append(place)
            column.values.append(value)

    def add_columns(
        self, times: NDArray[np.int64], steps: NDArray[np.int64], columns: Mapping[str, tuple[Any, Any]]
    ) -> None:
        """Take many rows of numbers in: `columns` has for each name the rows, counted from these, and their values."""
        first = len(self.times)
        self.times.frombytes(times.astype(np.int64).tobytes())
        self.steps.frombytes(steps.astype(np.int64).tobytes())
        for name, (rows, values) in columns.items():
            column = self.columns.setdefault((name, ""), SegmentColumn())
            column.rows.frombytes((rows.astype(np.int64) + first).tobytes())
            column.values.frombytes(values.astype(np.float64).tobytes())

    def replace_time(self, old: int, new: int) -> None:
        """Give every row of the time `old` the time `new`."""
        times = np.frombuffer(self.times, dtype=np.int64)
        times[times == old] = new

    def rows(self) -> Iterator[tuple[int, int | None, dict[str, float]]]:
        """(microseconds since 1970, step, numbers) of each row, in order."""
        found: list[dict[str, float]] = [{} for _ in self.times]
        for (name, _), column in self.columns.items():
            for place, value in zip(column.rows, column.values, strict=True):
                found[place][name] = value
        for moment, step, values in zip(self.times, self.steps, found, strict=True):
            yield moment, None if step == NO_STEP else step, values

    @property
    def last_step(self) -> int | None:
        """The highest; None if no row has a step."""
        highest = max(self.steps, default=NO_STEP)
        return None if highest == NO_STEP else highest

    @property
    def count(self) -> int:
        """All values, including texts."""
        return sum(len(column.rows) for column in self.columns.values()) + len(self.texts)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What sealing made."""

    path: Path
    lines: int
    values: int
    damage: Damage


def seal(path: Path, *, keep: bool = False, mode: int = 0o600) -> Sealed:
    """Turn a closed JSONL file into a segment and its side table, then remove the file unless `keep`.

    Atomic: the segment appears whole or not at all. Every value is read again from the files written and compared, the
    files are on the disk, and the JSONL file has not grown meanwhile: only then is it removed. Lines that could not be
    understood are kept beside the segment in `<stem>.rejected`.
    """
    parsed = layout.parse_name(path.name)
    if parsed is None or parsed[1] != ".jsonl":
        raise JournalError(f"{path.name} is not a journal file")
    name = parsed[0]
    if path.stat().st_size > LARGEST_FILE:
        raise JournalError(
            f"{path.name} is larger than {LARGEST_FILE >> 20} MB: it will be read as is, not sealed",
            hint="set a smaller rotate_size_mb for smaller files",
        )
    lines, rejected, size = _read_whole(path, name.table)
    target = write_segment(
        path.parent, name, lines, mode, rejected=rejected, before_placing=lambda: _check_closed(path, size)
    )
    if not keep:
        _check_closed(path, size)
        path.unlink()
    return Sealed(target, len(lines), lines.count, lines.damage)


def write_segment(
    run: Path,
    name: FileName,
    lines: Lines,
    mode: int = 0o600,
    *,
    rejected: Sequence[bytes] = (),
    before_placing: Callable[[], None] = lambda: None,
) -> Path:
    """Make the segment and the side table of these lines, as `seal` does, in the folder of a run."""
    folder = run_folder.make_within(run, layout.SEGMENTS)
    target = folder / f"{name.stem}.parquet"
    side = side_of(target)
    with _workshop(folder) as workshop:
        _write(lines, workshop, target.name, side.name)
        made = [workshop / side.name, workshop / target.name]
        if rejected:
            made.insert(0, workshop / f"{name.stem}.rejected")
            made[0].write_bytes(b"\n".join(rejected) + b"\n")
        for file in made:
            file.chmod(mode)
            _to_disk(file)
        before_placing()
        for file in made:  # the segment last: where it is, the others are
            file.replace(folder / file.name)
        _to_disk(folder)
    return target


def side_of(segment: Path) -> Path:
    """Where the side table of a segment is."""
    return segment.with_name(f"{segment.name.removesuffix('.parquet')}{layout.SIDE}")


def rebuild_side(segment: Path, target: Path) -> None:
    """Rebuild the side table of a segment, as `target`, which appears complete or not at all."""
    source = OpenFolder(segment.parent)
    with _workshop(target.parent) as workshop:
        made = workshop / target.name
        connection = parquet.connect()
        try:
            numbers = extremes.read_numbers(connection, source.locate(segment.name))
            extremes.write_extremes(connection, numbers, segment, OpenFolder(workshop), made.name)
        finally:
            connection.close()
        made.chmod(segment.stat().st_mode & 0o777)
        _to_disk(made)
        made.replace(target)


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A place for files in the making. What a process that was killed left of such places is removed."""
    for place in find_left_over(folder):
        remove_left_over(place)
    prefix = f"{_WORKSHOP}{layout.host_token(runtime.host_name())}.{os.getpid()}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as made:
        yield Path(made)


def find_left_over(folder: Path) -> list[Path]:
    """Workshops in `folder` whose process is gone, as far as that can be known from here."""
    host = layout.host_token(runtime.host_name())
    found = []
    for place in folder.glob(f"{_WORKSHOP}*"):
        owner, _, rest = place.name.removeprefix(_WORKSHOP).partition(".")
        pid = rest.partition(".")[0]
        if owner == host and pid.isdecimal():
            if runtime.process_start(int(pid)) is None:
                found.append(place)
        elif _age(place) > ABANDONED_SECONDS:  # of another machine, or of a version that did not name its owner
            found.append(place)
    return found


def remove_left_over(place: Path) -> None:
    """Remove a workshop; that it is gone already is fine."""
    shutil.rmtree(place, ignore_errors=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _read_whole(path: Path, table: str) -> tuple[Lines, list[bytes], int]:
    """(the contents of the file, the lines without any, its size)."""
    lines = Lines(table)
    rejected: list[bytes] = []

    def take(line: bytes) -> None:
        before = lines.damage.torn + lines.damage.foreign
        lines.add(line)
        if lines.damage.torn + lines.damage.foreign > before:
            rejected.append(line)

    cursor = Cursor(path)
    cursor.feed(take)
    with open(path, "rb") as file:
        file.seek(cursor.offset)
        rest = file.read()
    if rest.strip():  # the writer died inside its last line
        take(rest)
    return lines, rejected, cursor.offset + len(rest)


def _check_closed(path: Path, size: int) -> None:
    if path.stat().st_size != size:
        raise JournalError(f"{path.name} grew while being sealed: it is still open")


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(lines: Lines, workshop: Path, target: str, side: str) -> None:
    folder = OpenFolder(workshop)
    numbers = numbers_of(lines)
    connection = parquet.connect()
    try:
        _write_segment(connection, lines, numbers, folder.locate(target))
        _check_segment(connection, lines, numbers, folder.locate(target), target)
        extremes.write_extremes(connection, numbers, workshop / target, folder, side)
    finally:
        connection.close()


def numbers_of(lines: Lines) -> Numbers:
    """The numbers of these lines as a segment has them."""
    keys = sorted(lines.columns)
    columns = [lines.columns[key] for key in keys]
    rows = [np.frombuffer(column.rows, dtype=np.int64) for column in columns]
    values = [np.frombuffer(column.values, dtype=np.float64) for column in columns]
    row = np.concatenate(rows) if rows else np.empty(0, np.int64)
    steps, times = _steps_and_times(lines)
    return Numbers(
        keys=keys,
        key=np.repeat(np.arange(len(keys), dtype=np.int32), [len(item) for item in rows]),
        row=row,
        step=steps[row],
        time=times[row],
        value=np.concatenate(values) if values else np.empty(0, np.float64),
    )


def _steps_and_times(lines: Lines) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    empty = np.empty(0, np.int64)
    if not len(lines):
        return empty, empty
    return np.frombuffer(lines.steps, dtype=np.int64), np.frombuffer(lines.times, dtype=np.int64)


def _write_segment(connection: Any, lines: Lines, numbers: Numbers, target: str) -> None:
    columns = {name: getattr(numbers, name) for name in ("key", "row", "step", "time", "value")}
    steps, times = _steps_and_times(lines)
    extremes.register_keys(connection, numbers.keys)
    connection.register("numbers", extremes.with_nan_apart(columns))
    connection.register("lines", {"row": np.arange(len(lines), dtype=np.int64), "step": steps, "time": times})
    connection.register(
        "texts",
        {
            "row": np.array([item[0] for item in lines.texts], dtype=np.int64),
            "name": extremes.text_array([item[1] for item in lines.texts]),
            "label": extremes.text_array([item[2] for item in lines.texts]),
            "text": extremes.text_array([item[3] for item in lines.texts]),
        },
    )
    query = f"""
        SELECT name, label, row, nullif(step, {NO_STEP}) AS step, time, {extremes.nan_restored("value")} AS value,
               NULL::VARCHAR AS text
        FROM numbers JOIN keyed USING (key)
        UNION ALL
        SELECT name::VARCHAR, label::VARCHAR, row, nullif(step, {NO_STEP}), time, NULL, text::VARCHAR
        FROM texts JOIN lines USING (row)
        ORDER BY name, label, row
    """
    parquet.copy(connection, query, target)


def _check_segment(connection: Any, lines: Lines, numbers: Numbers, target: str, file: str) -> None:
    """Read it again: each value, step, time and text of each line under its name, or JournalError."""
    table = parquet.scan([target], "file_row_number = true")
    written = connection.execute(
        f"SELECT coalesce(key, -1) AS key, row, coalesce(step, {NO_STEP}) AS step, time, value FROM {table} "
        "LEFT JOIN keyed USING (name, label) WHERE value IS NOT NULL ORDER BY file_row_number"
    ).fetchnumpy()
    names = ("key", "row", "step", "time", "value")
    wrong = [name for name in names if not extremes.same(getattr(numbers, name), written[name])]
    texts = connection.execute(f"SELECT row, name, label, text, step, time FROM {table} WHERE value IS NULL").fetchall()
    steps = (None if step == NO_STEP else step for step in (lines.steps[item[0]] for item in lines.texts))
    times = (lines.times[item[0]] for item in lines.texts)
    expected = [(*item, step, time) for item, step, time in zip(lines.texts, steps, times, strict=True)]
    if wrong or sorted(texts, key=str) != sorted(expected, key=str):
        what = ", ".join(wrong or ["text"])
        raise JournalError(f"sealing {file}: {what} failed verification; keeping the JSONL file")
