"""Frames that came over the wire as rows of the store. Tested in tests/fleet/test_store_reader.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from trainvitals.errors import TrainvitalsError
from trainvitals.fleet import sealed
from trainvitals.fleet.native import Column, Repeated, encode_block
from trainvitals.fleet.schema import TABLES
from trainvitals.fleet.sealed import Word
from trainvitals.fleet.wire import FileRange, Held, WireError, digest_of
from trainvitals.journal import extremes, layout
from trainvitals.journal.cursor import parse_timed
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import TimeParser
from trainvitals.journal.extremes import NO_STEP, Numbers
from trainvitals.journal.folder import project_folder
from trainvitals.journal.layout import LINE_TABLES, FileName
from trainvitals.journal.segment_writer import Lines, numbers_of
from trainvitals.plain_json import parse_json
from trainvitals.safe_text import one_line

LARGEST_END = 1 << 40
_SEALED = 1 << 62
_GROWTH = {"lines": 6}
"""How many times as large its rows are in memory: a value has 26 bytes in a line, 160 as a row."""


@dataclass(frozen=True, slots=True)
class Weight:
    """What it takes to keep frames."""

    memory: int = 0
    """Bytes of their rows."""
    charged: int = 0
    """Bytes that count for a quota."""


def weigh(frames: Iterable[FileRange]) -> Weight:
    """Before any rows are made. Raises WireError."""
    memory = charged = 0
    for frame in frames:
        if frame.kind == "segment":
            size = sealed.measure(frame)
            memory += size.memory
            charged += size.charged
        else:
            memory += len(frame.data) * _GROWTH.get(frame.kind, 1)
            charged += len(frame.data)
    return Weight(memory, charged)


@dataclass(frozen=True, slots=True)
class End:
    """What the store has of one file: a row of `ends`, or of `documents` without its content."""

    end: int = 0
    rows: int = 0
    generation: str = ""
    digest: str = ""
    sealed: bool = False
    torn: int = 0
    foreign: int = 0
    first_step: int = NO_STEP
    """Of the first row that has one."""
    version: int = 0
    modified: float = 0.0

    @property
    def held(self) -> Held:
        """For the agent."""
        return Held(self.end, self.rows, self.generation, self.digest, self.sealed)


Ends = Mapping[str, End]


@dataclass(slots=True)
class RowBlocks:
    """The rows of one or more requests, as blocks by table, ready to be sent."""

    blocks: dict[str, list[bytes]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0

    def add(self, table: str, columns: Mapping[str, Column | Repeated]) -> None:
        """Rows of a table; none is fine."""
        count = len(next(iter(columns.values())))
        if count:
            block = encode_block(TABLES[table].columns, columns)
            self.blocks.setdefault(table, []).append(block)
            self.rows += count
            self.bytes += len(block)

    def merge(self, other: RowBlocks) -> None:
        """Send them together."""
        for table, blocks in other.blocks.items():
            self.blocks.setdefault(table, []).extend(blocks)
        self.rows += other.rows
        self.bytes += other.bytes


@dataclass(slots=True)
class Taken:
    """What became of a request."""

    intake: RowBlocks
    ends: dict[str, End]
    """Of every file of the request: as they will be when the rows are in the store."""
    conflicts: set[str]
    """Files of which nothing was taken: the frame does not begin where the store's copy ends, or replaces another
    document than the store's."""


def take(frames: Iterable[FileRange], known: Ends, project: str, run: str, day: int) -> Taken:
    """The rows of these frames behind what is `known`. `day` is today, such as 20261118. Raises WireError."""
    taking = _Taking(project, run, day, dict(known))
    for frame in frames:
        try:
            taking.take(frame)
        except (TrainvitalsError, OSError, MemoryError):
            raise
        except Exception as error:
            # It would come again and again, and hold up all other runs of its agent.
            raise WireError(f"{frame.path} cannot be understood: {one_line(str(error))[:200]}") from error
    return Taken(taking.intake, {path: taking.known.get(path, End()) for path in taking.seen}, taking.conflicts)


class _Taking:
    """One request."""

    def __init__(self, project: str, run: str, day: int, known: dict[str, End]) -> None:
        self.intake = RowBlocks()
        self.known = known
        self.seen: set[str] = set()
        self.conflicts: set[str] = set()
        self._project, self._run, self._day = project, run, day

    def take(self, frame: FileRange) -> None:
        path = f"{_stem(frame.path)}.jsonl" if frame.kind == "segment" else frame.path
        self.seen |= {path, frame.path}
        before = self.known.get(path, End())
        if frame.kind == "lines":
            self._take_lines(frame, before)
        elif frame.kind == "segment":
            self._take_segment(frame, path, before)
        elif frame.kind == "bytes":
            self._take_bytes(frame, before)
        else:
            self._take_document(frame, before)

    # -- kinds of frames

    def _take_lines(self, frame: FileRange, before: End) -> None:
        if before.sealed or frame.offset != before.end:
            self.conflicts.add(frame.path)
            return
        if not frame.data.endswith(b"\n"):
            raise WireError(f"{frame.path}: the last line is incomplete")
        name = _parse(frame.path)
        listed = frame.data[:-1].split(b"\n")
        first_step = before.first_step
        if name.table in LINE_TABLES:
            rows, damage = self._add_lines(name, listed, before.rows)
        else:
            lines = Lines(name.table)
            for line in listed:
                lines.add(line)
            self._add_numbers(name, numbers_of(lines), before.rows)
            self._add_words(name, lines.texts, lines.steps, lines.times, before.rows)
            rows, damage = len(lines), lines.damage
            if first_step == NO_STEP:
                first_step = next((step for step in lines.steps if step != NO_STEP), NO_STEP)
        end = before.end + len(frame.data)
        if end >= LARGEST_END:
            raise WireError(f"{frame.path} is too long")
        after = replace(
            before,
            end=end,
            rows=before.rows + rows,
            torn=before.torn + damage.torn,
            foreign=before.foreign + damage.foreign,
            first_step=first_step,
            version=end,
            modified=frame.modified,
        )
        self._advance(frame.path, after)

    def _take_segment(self, frame: FileRange, path: str, before: End) -> None:
        name = _parse(frame.path.partition("/")[2])
        if not before.sealed:
            numbers, words = sealed.read(frame)
            rows = [before.rows, int(numbers.row.max(initial=-1)) + 1, max((item[0] for item in words), default=-1) + 1]
            self._add_numbers(name, _rows_from(numbers, before.rows), 0)
            new = [item for item in words if item[0] >= before.rows]
            texts = [item[:4] for item in new]
            steps, times = ({item[0]: item[place] for item in new} for place in (4, 5))
            self._add_words(name, texts, steps, times, 0)
            self._add_extremes(name, numbers)
            # What could not be understood is beside the segment, in a file of its own.
            first_step = before.first_step if before.first_step != NO_STEP else _find_first_step(numbers, words)
            after = replace(
                before, rows=max(rows), sealed=True, torn=0, foreign=0, first_step=first_step, version=_SEALED
            )
            self._advance(path, after)
        self._advance(frame.path, End(end=len(frame.data), version=1, modified=frame.modified))

    def _take_bytes(self, frame: FileRange, before: End) -> None:
        anew = frame.generation != before.generation and frame.offset == 0
        if not anew and (frame.generation != before.generation or frame.offset != before.end):
            self.conflicts.add(frame.path)
            return
        self.intake.add(
            "pieces",
            {
                **self._run_columns(1),
                "path": [frame.path],
                "generation": [frame.generation],
                "offset": np.array([frame.offset]),
                "data": [frame.data],
                "received": np.array([self._day]),
            },
        )
        end = frame.offset + len(frame.data)
        if end >= LARGEST_END:
            raise WireError(f"{frame.path} is too long")
        epoch = before.version // LARGEST_END + (1 if anew and before.version else 0)
        version = epoch * LARGEST_END + end
        self._advance(frame.path, End(end=end, generation=frame.generation, version=version, modified=frame.modified))

    def _take_document(self, frame: FileRange, before: End) -> None:
        if frame.path == layout.RUN_FILE:
            self._check_run(frame.data)
        if frame.generation != before.digest:
            self.conflicts.add(frame.path)
            return
        digest = digest_of(frame.data)
        if digest == before.digest:
            return
        # The time, because what is known may be of a replica that is behind: its next version may exist elsewhere.
        version = max(before.version + 1, time.time_ns() // 1000)
        after = End(end=len(frame.data), digest=digest, version=version, modified=frame.modified)
        self.known[frame.path] = after
        self.intake.add(
            "documents",
            {
                **self._run_columns(1),
                "path": [frame.path],
                "version": np.array([after.version]),
                "digest": [digest],
                "modified": np.array([frame.modified]),
                "data": [frame.data],
            },
        )

    def _check_run(self, data: bytes) -> None:
        """Nobody can put a run into another project by what it says of itself."""
        try:
            run = RunFile.parse(parse_json(data))
        except ValueError as error:
            raise WireError(f"run.json is not JSON: {error}") from error
        if run.project and project_folder(run.project) != project_folder(self._project):
            raise WireError(f"run.json is of project {run.project[:50]!r}, not {self._project!r}")
        if run.id and run.id != self._run:
            raise WireError(f"run.json is of run {run.id[:50]!r}, not {self._run!r}")

    # -- rows

    def _advance(self, path: str, end: End) -> None:
        self.known[path] = end
        self.intake.add(
            "ends",
            {
                **self._run_columns(1),
                "path": [path],
                "version": np.array([end.version], dtype=np.uint64),
                "generation": [end.generation],
                "end": np.array([end.end]),
                "rows": np.array([end.rows]),
                "sealed": np.array([end.sealed]),
                "torn": np.array([end.torn]),
                "foreign": np.array([end.foreign]),
                "first_step": np.array([end.first_step]),
                "modified": np.array([end.modified]),
            },
        )

    def _run_columns(self, count: int) -> dict[str, Repeated]:
        return {"project": Repeated([(self._project, count)]), "run": Repeated([(self._run, count)])}

    def _common(self, name: FileName, count: int) -> dict[str, Column | Repeated]:
        return {
            **self._run_columns(count),
            "tbl": Repeated([(name.table, count)]),
            "stem": Repeated([(name.stem, count)]),
            "received": np.full(count, self._day),
        }

    def _add_numbers(self, name: FileName, numbers: Numbers, first: int) -> None:
        count = len(numbers.value)
        runs = _count_each(numbers.key)
        self.intake.add(
            "points",
            {
                **self._common(name, count),
                "attempt": np.full(count, name.attempt),
                "role": Repeated([(name.role, count)]),
                "rank": np.full(count, -1 if name.rank is None else name.rank),
                "name": Repeated([(numbers.keys[key][0], many) for key, many in runs]),
                "label": Repeated([(numbers.keys[key][1], many) for key, many in runs]),
                "row": numbers.row + first,
                "step": numbers.step,
                "time": numbers.time,
                "value": numbers.value,
            },
        )

    def _add_extremes(self, name: FileName, numbers: Numbers) -> None:
        found = extremes.find_extremes(numbers)
        keys = [numbers.keys[key] for key in found.pop("key").tolist()]
        self.intake.add(
            "extremes",
            {
                **self._common(name, len(keys)),
                "name": [key for key, _ in keys],
                "label": [label for _, label in keys],
                **found,
            },
        )

    def _add_words(self, name: FileName, texts: Any, steps: Any, times: Any, first: int) -> None:
        self.intake.add(
            "words",
            {
                **self._common(name, len(texts)),
                "name": [item[1] for item in texts],
                "label": [item[2] for item in texts],
                "row": np.array([item[0] + first for item in texts], dtype=np.int64),
                "step": np.array([steps[item[0]] for item in texts], dtype=np.int64),
                "time": np.array([times[item[0]] for item in texts], dtype=np.int64),
                "text": [item[3] for item in texts],
            },
        )

    def _add_lines(self, name: FileName, listed: list[bytes], first: int) -> tuple[int, Damage]:
        clock, damage = TimeParser(), Damage()
        found = [item for line in listed if (item := parse_timed(line, damage, clock)) is not None]
        self.intake.add(
            "lines",
            {
                **self._common(name, len(found)),
                "row": np.arange(first, first + len(found)),
                "time": np.array([moment for _, moment in found], dtype=np.int64),
                "line": [orjson.dumps(row) for row, _ in found],
            },
        )
        return len(found), damage


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".parquet")


def _parse(name: str) -> FileName:
    parsed = layout.parse_name(name)
    assert parsed is not None, name  # `wire.kind_of` has seen to it
    return parsed[0]


def _count_each(key: NDArray[np.int32]) -> list[tuple[int, int]]:
    """(value, how often in a row) of an array in which equal values stand together."""
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    return list(zip(key[starts].tolist(), np.diff(starts, append=len(key)).tolist(), strict=True))


def _rows_from(numbers: Numbers, first: int) -> Numbers:
    if not first:
        return numbers
    keep = numbers.row >= first
    columns = (getattr(numbers, name)[keep] for name in ("key", "row", "step", "time", "value"))
    return Numbers(numbers.keys, *columns)


def _find_first_step(numbers: Numbers, words: Sequence[Word]) -> int:
    """The step of the first row that has one."""
    known = np.flatnonzero(numbers.step != NO_STEP)
    candidates = [(item[0], item[4]) for item in words if item[4] != NO_STEP]
    if len(known):
        first = known[numbers.row[known].argmin()]
        candidates.append((int(numbers.row[first]), int(numbers.step[first])))
    return min(candidates)[1] if candidates else NO_STEP
