"""Event files of TensorBoard, read a block at a time: every folder that has some is a run.

Most records are one scalar each, and those of one tag differ only in time, step and value. So a record is not parsed
but looked up: the bytes around its number name its tag, once one such record was parsed; times, steps and values are
then taken out of the block with numpy. What is not such a record is parsed (`events.py`). Every checksum is compared.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.journal.segment_writer import Lines
from trainvitals.protobuf import Malformed
from trainvitals.trackers.importing import ImportFailed, Medium, Piece, SourceEnd
from trainvitals.trackers.run_writing import NO_TIME, About
from trainvitals.trackers.tensorboard.events import Event, parse_event
from trainvitals.trackers.tensorboard.framing import (
    CHECKSUM,
    HEADER,
    OVERHEAD,
    find_header,
    masked_crc32c,
    masked_crc32c_of_spans,
)

BLOCK = 16 << 20
LARGEST_RECORD = 256 << 20
"""A larger one is passed over: memory is bounded."""
PIECE_VALUES = 1_000_000
PIECE_BYTES = 64 << 20
"""Of media, beyond which a piece is complete."""
_EVERY_STEP = -(2**63)
_MOST_SHAPES = 8
"""Ways in which a number may lie in a record that are looked up; a record of yet another way is parsed."""
_LATEST = 253_402_300_800.0  # the year 10000
_TIME_FIELD, _STEP_FIELD = 0x09, 0x10
_STEP_START = 10
"""Where the number of the step begins in a payload that begins with a time and has a step."""

DAMAGED = "damaged records"


def open_source(target: str) -> TensorBoardSource:
    root = Path(target)
    if not root.exists():
        raise ImportFailed(f"{target} does not exist", hint="name the folder with the event files, such as runs/")
    return TensorBoardSource(root if root.is_dir() else root.parent)


class TensorBoardSource:
    """All runs below a folder."""

    unended = SourceEnd("finished")

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._known: dict[Path, EventFolder] = {}

    def runs(self) -> list[EventFolder]:
        for place, folders, names in os.walk(self._root):
            folders.sort()
            folder = Path(place)
            if folder not in self._known and any(is_event_file(name) for name in names):
                self._known[folder] = EventFolder(folder, self._root)
        return list(self._known.values())


def is_event_file(name: str) -> bool:
    return "tfevents" in name and not name.endswith(".profile-empty")


class EventFolder:
    """One run: the event files of a folder, in the order of their names."""

    key = ""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._files: dict[str, EventFile] = {}
        self._end: SourceEnd | None = None

    @property
    def place(self) -> str:
        return str(self._folder)

    @property
    def title(self) -> str:
        return self._folder.name if self._folder == self._root else self._folder.relative_to(self._root).as_posix()

    def about(self) -> About:
        return About(name=self.title, project=self._root.name, started=self._find_start())

    def _find_start(self) -> float | None:
        """The time of the first event."""
        for name in self._list_files():
            with open(self._folder / name, "rb") as file:
                head = file.read(HEADER.size + 9)
            if len(head) == HEADER.size + 9 and head[HEADER.size] == _TIME_FIELD:
                found = float(np.frombuffer(head, "<f8", 1, HEADER.size + 1)[0])
                if 0 < found < _LATEST:
                    return found
        return None

    def _list_files(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted(entry.name for entry in entries if is_event_file(entry.name) and entry.is_file())
        except FileNotFoundError:
            return []  # removed while it is followed: what was read stays

    def end(self) -> SourceEnd | None:
        return self._end

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        offsets: dict[str, int] = {**position.get("files", {})}
        highest: int | None = position.get("highest")
        piece = self._new_piece(offsets, highest)
        for name in self._list_files():
            file = self._files.setdefault(name, EventFile(self._folder / name))
            for block in file.read(offsets.get(name, 0)):
                restart = block.restart_step
                if restart is not None and highest is not None and highest >= restart:
                    # Steps from there on are logged again, and what was logged of them before does not count.
                    if piece.position != position:
                        yield piece
                    piece = self._new_piece(offsets, highest)
                    piece.begins_attempt = True
                    highest = None
                self._take(block, piece)
                highest = max((step for step in (highest, block.highest) if step is not None), default=None)
                offsets[name] = block.end
                piece.position = self._position(offsets, highest)
                if _is_full(piece):
                    yield piece
                    piece = self._new_piece(offsets, highest)
        if piece.position != position:
            yield piece

    def _new_piece(self, offsets: Mapping[str, int], highest: int | None) -> Piece:
        return Piece(position=self._position(offsets, highest), lines=Lines("training"))

    @staticmethod
    def _position(offsets: Mapping[str, int], highest: int | None) -> dict[str, Any]:
        found: dict[str, Any] = {"files": {**offsets}}
        return found if highest is None else {**found, "highest": highest}

    def _take(self, block: EventBlock, piece: Piece) -> None:
        assert piece.lines is not None
        block.add_to(piece.lines)
        piece.left_out += block.left_out
        piece.media = [*piece.media, *block.media]
        for event in block.others:
            if event.hparams:
                known = piece.about.config if piece.about is not None else None
                piece.about = About(config={**(known or {}), **event.hparams})
            if event.status not in (None, "running"):
                self._end = SourceEnd(str(event.status), event.ended)


def _is_full(piece: Piece) -> bool:
    values = piece.lines.count if piece.lines is not None else 0
    return values >= PIECE_VALUES or sum(len(medium.data) for medium in piece.media) >= PIECE_BYTES


class EventBlock:
    """The records of a stretch of a file, decoded."""

    def __init__(self, end: int) -> None:
        self.end = end
        """Where in the file the next one begins."""
        self.times: NDArray[np.int64] = np.empty(0, np.int64)
        self.steps: NDArray[np.int64] = np.empty(0, np.int64)
        self.columns: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        self.media: list[Medium] = []
        self.others: list[Event] = []
        self.left_out: Counter[str] = Counter()
        self.restart_step: int | None = None
        """Steps from here on are logged again in this block."""

    @property
    def highest(self) -> int | None:
        return int(self.steps.max()) if len(self.steps) else None

    def add_to(self, lines: Lines) -> None:
        lines.add_columns(self.times, self.steps, self.columns)


class _Shape(NamedTuple):
    """How a number lies in a record: as what, and how many bytes before its end it begins."""

    format: str
    """`f` or `d`, as `struct` has it."""
    tail: int

    @property
    def size(self) -> int:
        return 4 if self.format == "f" else 8


class EventFile:
    """One event file. Remembers the tags that it has met."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._plugins: dict[str, str] = {}
        self._shapes: dict[_Shape, dict[tuple[bytes, bytes], str]] = {_Shape("f", 4): {}}

    def read(self, offset: int) -> Iterator[EventBlock]:
        """The whole records behind `offset`, a block at a time. What is cut off at the end is left for later."""
        try:
            if self._path.stat().st_size == offset:
                return  # nearly every look: without opening the file
            with open(self._path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size < offset:  # another file took its place: a training that began again
                    offset = 0
                    first = EventBlock(0)
                    first.restart_step = _EVERY_STEP
                    yield first
                wanted = BLOCK
                while offset < size:
                    file.seek(offset)
                    data = file.read(min(wanted, size - offset))
                    split = _split(data)
                    wanted = BLOCK
                    if split.consumed:
                        yield from self._decode(data, split, offset)
                        offset += split.consumed
                    elif offset + max(split.needed, len(data) + 1) > size:
                        return  # the rest of the record, or of the damage, is still to come
                    elif split.needed > LARGEST_RECORD:
                        offset += split.needed
                        block = EventBlock(offset)
                        block.left_out[f"records larger than {LARGEST_RECORD >> 20} MB"] += 1
                        yield block
                    elif split.needed:
                        wanted = split.needed
                    else:  # no record begins in all of this
                        offset += len(data) - HEADER.size
                        yield EventBlock(offset)
        except FileNotFoundError:
            return  # removed while it is followed

    def _decode(self, data: bytes, split: _Split, offset: int) -> Iterator[EventBlock]:
        block = EventBlock(offset + split.consumed)
        block.left_out[DAMAGED] += split.damaged
        view = np.frombuffer(data, dtype=np.uint8)
        start, length = split.starts, split.sizes
        count = len(start)
        times = _read_times(view, start, length)
        step_sizes, steps = _read_steps(view, start, length)
        heads, ends = start + _STEP_START + step_sizes, start + length
        known = np.full(count, -1, dtype=np.int64)  # which tag
        values = np.zeros(count, dtype=np.float64)
        tags: dict[str, int] = {}
        waiting = np.flatnonzero(step_sizes > 0)
        parsed: dict[int, Event] = {}
        batch = _MOST_SHAPES
        while len(waiting):
            for shape, names in list(self._shapes.items()):
                found = _look_up(data, names, shape, heads[waiting].tolist(), ends[waiting].tolist())
                numbers = np.array([-1 if tag is None else tags.setdefault(tag, len(tags)) for tag in found], np.int64)
                hits = waiting[numbers >= 0]
                known[hits] = numbers[numbers >= 0]
                values[hits] = _gather(view, ends[hits] - shape.tail, shape)
                waiting = waiting[numbers < 0]
            # Parse a few: what they teach takes most of the others with them.
            few, waiting = waiting[:batch], waiting[batch:]
            batch *= 8
            for index in few.tolist():
                parsed[index] = self._parse(data, int(start[index]), int(length[index]), int(step_sizes[index]), block)
        for index in np.flatnonzero(step_sizes == 0).tolist():
            parsed[index] = self._parse(data, int(start[index]), int(length[index]), 0, block)
        records = _Records(known, list(tags), times, steps, values, parsed)
        restarts = sorted(index for index, event in parsed.items() if event.is_session_start)
        for first, after in zip([0, *restarts], [*restarts, count], strict=True):
            records.fill(block, first, after)
            if after < count:
                final, block.end = block.end, offset + int(start[after]) - HEADER.size
                yield block
                block = EventBlock(final)
                block.restart_step = parsed[after].step
        yield block

    def _parse(self, data: bytes, start: int, size: int, step_size: int, block: EventBlock) -> Event:
        payload = data[start : start + size]
        try:
            event = parse_event(payload, self._plugins)
        except Malformed:
            block.left_out[DAMAGED] += 1
            return Event()
        place = event.number_place
        if place is not None and step_size:
            shape = _Shape(place.format, size - place.offset)
            if shape in self._shapes or len(self._shapes) < _MOST_SHAPES:
                around = payload[_STEP_START + step_size : place.offset], payload[place.offset + shape.size :]
                self._shapes.setdefault(shape, {})[around] = next(iter(event.scalars))
        return event


class _Records:
    """The records of a block: those that were looked up as columns, the others as events."""

    def __init__(
        self,
        known: NDArray[np.int64],
        tags: list[str],
        times: NDArray[np.int64],
        steps: NDArray[np.int64],
        values: NDArray[np.float64],
        parsed: Mapping[int, Event],
    ) -> None:
        """`known` has for each record which of the `tags` it is, -1 for those in `parsed`."""
        self._known, self._tags, self._times, self._steps, self._values = known, tags, times, steps, values
        self._parsed = parsed
        for index, event in parsed.items():
            self._steps[index] = event.step

    def fill(self, block: EventBlock, first: int, after: int) -> None:
        """Give the block the records from `first` up to `after`."""
        events = [(index, self._parsed[index]) for index in sorted(self._parsed) if first <= index < after]
        has_row = self._known[first:after] >= 0
        for index, event in events:
            has_row[index - first] = bool(event.scalars)
        row_of = np.cumsum(has_row) - 1
        block.times, block.steps = self._times[first:after][has_row], self._steps[first:after][has_row]
        pieces: dict[str, tuple[list[Any], list[Any]]] = {}
        known, values = self._known[first:after], self._values[first:after]
        order = np.argsort(known, kind="stable")
        edges = np.searchsorted(known[order], np.arange(len(self._tags) + 1))
        for number, tag in enumerate(self._tags):
            chosen = order[edges[number] : edges[number + 1]]
            if len(chosen):
                pieces[tag] = ([row_of[chosen]], [values[chosen]])
        again: list[tuple[int, str, float]] = []
        for index, event in events:
            self._take(block, event, int(self._times[index]))
            for tag, value in event.scalars.items():
                rows, found = pieces.setdefault(tag, ([], []))
                rows.append(row_of[index - first : index - first + 1])
                found.append(np.array([value]))
            again += [(index, tag, value) for tag, value in event.repeated]
        for index, tag, value in again:  # a tag twice in one event: a row for each
            rows, found = pieces[tag]
            rows.append(np.array([len(block.times)]))
            found.append(np.array([value]))
            block.times = np.append(block.times, self._times[index])
            block.steps = np.append(block.steps, self._steps[index])
        block.columns = {
            tag: _in_order(np.concatenate(rows), np.concatenate(found)) for tag, (rows, found) in pieces.items()
        }

    def _take(self, block: EventBlock, event: Event, micros: int) -> None:
        block.left_out += event.left_out
        seconds = None if micros == NO_TIME else micros / 1e6
        block.media += [
            Medium(item.kind, item.tag, item.data, item.suffix, event.step, seconds) for item in event.media
        ]
        if event.hparams or event.status is not None:
            block.others.append(event)


def _in_order(rows: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    order = np.argsort(rows, kind="stable")
    return rows[order], values[order]


class _Split(NamedTuple):
    """The records at the beginning of some bytes."""

    starts: NDArray[np.int64]
    """Of the payloads whose checksums are right."""
    sizes: NDArray[np.int64]
    consumed: int
    """Where the first byte is that belongs to none of them, damaged ones included."""
    damaged: int
    needed: int
    """Bytes of the record that begins there and is cut off; 0 if none does."""


def _split(data: bytes) -> _Split:
    starts: list[int] = []
    sizes: list[int] = []
    place, end = 0, len(data)
    unpack = HEADER.unpack_from
    while place + HEADER.size <= end:
        size = unpack(data, place)[0]
        following = place + size + OVERHEAD
        if following > end:
            break
        starts.append(place + HEADER.size)
        sizes.append(size)
        place = following
    view = np.frombuffer(data, dtype=np.uint8)
    start, length = np.array(starts, dtype=np.int64), np.array(sizes, dtype=np.int64)
    right = _compare(view, start - HEADER.size, np.full(len(start), 8, np.int64))
    if not right.all():  # a length that is wrong: nothing behind it can be trusted
        first = int(np.argmin(right))
        start, length, place = start[:first], length[:first], int(start[first]) - HEADER.size
    sound = _compare(view, start, length)
    damaged, needed = len(sound) - int(sound.sum()), 0
    if place + HEADER.size <= end:
        stored, checksum = HEADER.unpack_from(data, place)
        if masked_crc32c(data[place : place + 8]) == checksum:
            needed = stored + OVERHEAD
        elif (following := find_header(view, place + 1)) >= 0:  # else the rest may still be being written
            damaged += 1
            place = following
    return _Split(start[sound], length[sound], place, damaged, needed)


def _compare(view: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which spans have the checksum that follows them."""
    stored = np.zeros(len(starts), dtype=np.uint32)
    for byte in range(CHECKSUM.size):
        stored |= view[starts + sizes + byte].astype(np.uint32) << np.uint32(8 * byte)
    found: NDArray[np.bool_] = masked_crc32c_of_spans(view, starts, sizes) == stored
    return found


def _read_steps(
    view: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(bytes of the step, step) of records that begin with a time and a step; 0 bytes for others."""
    step_sizes = np.zeros(len(starts), dtype=np.int64)
    steps = np.zeros(len(starts), dtype=np.uint64)
    left = np.flatnonzero(sizes > _STEP_START + 10)
    left = left[(view[starts[left]] == _TIME_FIELD) & (view[starts[left] + 9] == _STEP_FIELD)]
    for number in range(10):
        byte = view[starts[left] + _STEP_START + number]
        steps[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        over = byte < 0x80
        step_sizes[left[over]] = number + 1
        left = left[~over]
    return step_sizes, steps.astype(np.int64)


def _look_up(
    data: bytes, names: Mapping[tuple[bytes, bytes], str], shape: _Shape, heads: list[int], ends: list[int]
) -> list[str | None]:
    """The tag of each record whose number lies in this shape; None for those that are not known."""
    get, tail, after = names.get, shape.tail, shape.tail - shape.size
    if not after:
        return [get((data[head : end - tail], b"")) for head, end in zip(heads, ends, strict=True)]
    return [get((data[head : end - tail], data[end - after : end])) for head, end in zip(heads, ends, strict=True)]


def _gather(view: NDArray[np.uint8], places: NDArray[np.int64], shape: _Shape) -> NDArray[np.float64]:
    """The number at each place."""
    raw = view[places[:, None] + np.arange(shape.size)]
    found: NDArray[np.float64] = raw.view(f"<f{shape.size}")[:, 0].astype(np.float64)
    return found


def _read_times(view: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Microseconds since 1970 of records that begin with a time, NO_TIME for others."""
    found = np.full(len(starts), NO_TIME, dtype=np.int64)
    timed = np.flatnonzero(sizes >= _STEP_START - 1)
    timed = timed[view[starts[timed]] == _TIME_FIELD]
    found[timed] = _to_micros(_gather(view, starts[timed] + 1, _Shape("d", 8)))
    return found


def _to_micros(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    with np.errstate(invalid="ignore"):
        usable = (seconds > 0) & (seconds < _LATEST)
    found = np.full(len(seconds), NO_TIME, dtype=np.int64)
    found[usable] = np.round(seconds[usable] * 1e6).astype(np.int64)
    return found
