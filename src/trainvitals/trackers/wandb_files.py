"""Runs of W&B in their own files: `wandb/run-…/run-ID.wandb`, online and offline ones, finished, killed or growing.

The file is a log in the format of LevelDB: a header, then blocks of 32 KiB that hold chunks of records, each with a
checksum. A record is a protobuf message `Record`; the fields that are read here are named where they are read.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.journal.documents import cause as causes
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.encoding import NONFINITE
from trainvitals.journal.media import MOST_FILE_BYTES
from trainvitals.journal.segment_writer import Lines
from trainvitals.plain_json import MOST_DEPTH, TooDeep, parse_json
from trainvitals.protobuf import (
    VARINT,
    Malformed,
    as_bytes,
    as_int,
    as_text,
    find_fields,
    read_fields,
    signed,
)
from trainvitals.trackers.foreign import to_micros
from trainvitals.trackers.importing import ImportFailed, Medium, Piece, SourceEnd, SourceEvent
from trainvitals.trackers.run_writing import About
from trainvitals.trackers.wandb_conventions import (
    SEVERITIES,
    SUMMARY_EVENT,
    describe_own_values,
    find_framework_step,
    find_own_values,
    list_files,
)

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32 << 10
READ = 256 * BLOCK
PIECE_ROWS = 200_000
PIECE_BYTES = 64 << 20
"""Of media, beyond which a piece is complete."""
SYSTEM = "wandb/system/"
"""What the names of W&B's own measurements of the machine begin with."""
DAMAGED = "damaged records"
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FIRST_RECORDS = 1000


def open_source(target: str) -> WandbSource:
    root = Path(target)
    if not root.exists():
        raise ImportFailed(f"{target} does not exist", hint="name the folder that W&B wrote, such as wandb/")
    return WandbSource(root.resolve())


class WandbSource:
    """All runs below a folder, or that of one file."""

    unended = SourceEnd("crashed", None, Cause(kind=causes.OTHER, detail="W&B has not recorded an end"))

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, WandbRun] = {}

    def runs(self) -> list[WandbRun]:
        for path in self._list_files():
            if path not in self._known:
                run = WandbRun(path)
                if run.has_begun:  # of one that was killed before its first block was written nothing is known
                    self._known[path] = run
        return list(self._known.values())

    def _list_files(self) -> Iterator[Path]:
        if self._root.is_file():
            yield self._root
            return
        for place, folders, names in os.walk(self._root):  # links such as latest-run are not followed
            folders[:] = sorted(name for name in folders if name not in ("files", "logs", "tmp"))
            found = (Path(place, name) for name in sorted(names) if name.endswith(".wandb"))
            yield from (path for path in found if path.is_file())  # to open a pipe would wait for ever


class WandbRun:
    """One run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: SourceEnd | None = None
        self._summary = _Summary()
        self._last: dict[str, float] = {}
        self.key = path.stem.removeprefix("run-")

    @property
    def place(self) -> str:
        return str(self._path)

    @property
    def title(self) -> str:
        return self.key

    @property
    def has_begun(self) -> bool:
        return next(_read_records(self._path, 0, Counter()), None) is not None

    def about(self) -> About:
        """Of the run's own record, which is among the first."""
        for _, record in itertools.islice(_read_records(self._path, 0, Counter()), _FIRST_RECORDS):
            try:
                for number, _, value, _ in read_fields(record):
                    if number == 17:
                        return _read_about(as_bytes(value))
            except Malformed:
                continue
        return About(name=self.key)

    def end(self) -> SourceEnd | None:
        return self._end

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        reading = _Reading(self._path, self._summary, self._last)
        piece = reading.begin_piece(int(position.get("offset", 0)))
        for after, record in _read_records(self._path, int(position.get("offset", 0)), piece.left_out):
            try:
                reading.take(record, piece)
            except (Malformed, RecursionError):
                piece.left_out[DAMAGED] += 1
            piece.position = {"offset": after}
            if reading.is_full(piece):
                yield reading.finish_piece(piece)
                left_out, piece = piece.left_out, reading.begin_piece(after)
                left_out.clear()
                piece.left_out = left_out  # the reader of records counts there
        self._end = reading.end or self._end
        if piece.position != position and piece.position["offset"]:
            yield reading.finish_piece(piece)


# -- the log


class _Record(NamedTuple):
    after: int
    data: bytes


def _read_records(path: Path, offset: int, left_out: Counter[str]) -> Iterator[_Record]:
    """The whole records from `offset` on, where one begins. What is cut off at the end of the file is left for later;
    a block with a wrong checksum is passed over and counted."""
    with open(path, "rb") as file:
        if offset == 0:
            header = file.read(len(HEADER))
            if header != HEADER:
                if len(header) == len(HEADER):
                    raise ImportFailed(f"{path.name} is not a file of W&B, or of a version that is not known")
                return  # only just begun
            offset = len(HEADER)
        parts: list[bytes] = []
        while True:
            file.seek(offset)
            # Up to the end of a block.
            data = file.read(READ - offset % BLOCK)
            place = 0
            while True:
                left = BLOCK - (offset + place) % BLOCK
                if left < _CHUNK.size:
                    place += left
                    continue
                if place + _CHUNK.size > len(data):
                    break
                checksum, size, kind = _CHUNK.unpack_from(data, place)
                first = place + _CHUNK.size
                if size > left - _CHUNK.size or (kind == 0 and size == 0):
                    parts, is_sound = [], False
                elif first + size > len(data):
                    break
                else:
                    is_sound = zlib.crc32(data[first - 1 : first + size]) == checksum
                if not is_sound:
                    if place + left > len(data):
                        return  # the end of the file, which may still be being written
                    left_out[DAMAGED] += 1
                    place += left
                    parts = []
                    continue
                place = first + size
                if kind in (_FULL, _FIRST):
                    parts = []
                elif not parts:
                    continue  # its beginning was damaged
                parts.append(data[first : first + size])
                if kind in (_FULL, _LAST):
                    yield _Record(offset + place, b"".join(parts))
                    parts = []
            offset += min(place, len(data))
            if place == 0 or len(data) < READ - BLOCK:
                return


def read_steps(path: Path) -> Iterator[int]:
    """The numbers of the rows of the history that are in the file."""
    for record in _read_records(path, 0, Counter()):
        for number, _, value, _ in read_fields(record.data):
            if number == 2:
                found = dict(_read_items(as_bytes(value), 1)).get(("_step",))
                if type(found) is int:
                    yield found


# -- what records say


class _Reading:
    """One pass over the records of a run."""

    def __init__(self, path: Path, summary: _Summary, last: dict[str, float]) -> None:
        """`summary` and the `last` value of every metric are those of the run, which may be read bit by bit."""
        self._files = path.parent / "files"
        self._summary, self._last = summary, last
        self.end: SourceEnd | None = None
        self._about: About | None = None
        self._printed: list[str] = []
        self._events: list[SourceEvent] = []
        self._media: list[Medium] = []
        self._media_bytes = 0
        self._time: float | None = None

    def begin_piece(self, offset: int) -> Piece:
        return Piece(position={"offset": offset}, lines=Lines("training"))

    def is_full(self, piece: Piece) -> bool:
        rows = len(piece.lines) if piece.lines is not None else 0
        return rows >= PIECE_ROWS or self._media_bytes >= PIECE_BYTES

    def finish_piece(self, piece: Piece) -> Piece:
        if self.end is not None and (own := find_own_values(self._summary.take(), self._last)):
            self._events.append(SourceEvent(SUMMARY_EVENT, describe_own_values(own), self._time, data=own))
        piece.about, piece.events, piece.media = self._about, self._events, self._media
        piece.printed = "".join(self._printed)
        self._about, self._events, self._media, self._printed = None, [], [], []
        self._media_bytes = 0
        return piece

    def take(self, record: bytes, piece: Piece) -> None:
        for number, _, value, _ in read_fields(record):
            if number == 2:
                self._take_history(as_bytes(value), piece)
            elif number == 3:
                self._summary.update(as_bytes(value))
            elif number == 5:
                config = {**(self._about.config or {} if self._about is not None else {})}
                _update(config, as_bytes(value))
                config.pop("_wandb", None)
                self._about = replace(self._about or About(), config=config)
            elif number == 7:
                self._take_stats(as_bytes(value), piece)
            elif number == 10:
                self._take_alert(as_bytes(value))
            elif number == 13:
                self._take_output(as_bytes(value))
            elif number == 17:
                self._about = _read_about(as_bytes(value))
            elif number == 18:
                found = {inner: item for inner, _, item, _ in read_fields(as_bytes(value))}
                code = signed(as_int(found.get(1, 0)))
                cause = None if code == 0 else Cause(kind=causes.EXIT_CODE, exit_code=code)
                self.end = SourceEnd("finished" if code == 0 else "failed", self._time, cause, code)

    def _take_history(self, data: bytes, piece: Piece) -> None:
        values: dict[str, Any] = {}
        _update(values, data)
        step, moment = values.pop("_step", None), values.pop("_timestamp", None)
        for name in [name for name in values if name.startswith("_")]:
            del values[name]
        if step is None:
            inner = next((as_bytes(value) for number, _, value, _ in read_fields(data) if number == 2), b"")
            step = next((signed(as_int(value)) for number, _, value, _ in read_fields(inner) if number == 1), None)
        if (counted := find_framework_step(values)) is not None:
            step = counted
        seconds = float(moment) if isinstance(moment, (int, float)) else None
        self._time = seconds or self._time
        row: dict[str, Any] = {}
        for name, value in values.items():
            if type(value) is float:
                row[name] = self._last[name] = value
            else:
                self._take_value(name, value, row, step, seconds, piece.left_out)
        self._add(piece, seconds, step, row)

    def _take_value(
        self,
        name: str,
        value: Any,
        row: dict[str, Any],
        step: int | None,
        seconds: float | None,
        left_out: Counter[str],
    ) -> None:
        if isinstance(value, str) and value in NONFINITE:
            value = NONFINITE[value]
        if isinstance(value, (int, float)):
            row[name] = self._last[name] = value
        elif isinstance(value, dict):
            if "_type" in value:
                media = [*self._read_media(name, value, step, seconds)]
                self._media += media
                self._media_bytes += sum(len(medium.data) for medium in media)
                if not media:
                    left_out[str(value["_type"])] += 1
            else:
                for key, inner in value.items():  # as W&B names them
                    self._take_value(f"{name}.{key}", inner, row, step, seconds, left_out)
        elif value is not None:
            left_out["texts" if isinstance(value, str) else "lists"] += 1

    def _read_media(
        self, name: str, value: dict[str, Any], step: int | None, seconds: float | None
    ) -> Iterator[Medium]:
        if value["_type"] == "histogram":
            data = json.dumps({key: item for key, item in value.items() if key != "_type"}).encode()
            yield Medium("histogram", name, data, "json", step, seconds)
        for kind, path, facts in list_files(value):
            file = (self._files / path).resolve()
            if not file.is_relative_to(self._files.resolve()):  # a name that leads elsewhere
                continue
            try:
                if not file.is_file() or file.stat().st_size > MOST_FILE_BYTES:
                    continue
                data = file.read_bytes()
            except OSError:
                continue
            yield Medium(kind, name, data, file.suffix[1:] if kind == "image" else "json", step, seconds, facts)

    def _take_stats(self, data: bytes, piece: Piece) -> None:
        moment = next((_read_time(as_bytes(value)) for number, _, value, _ in read_fields(data) if number == 2), None)
        items = ((".".join(path), value) for path, value in _read_items(data, 3))
        row = {f"{SYSTEM}{name}": value for name, value in items if isinstance(value, (int, float))}
        self._add(piece, moment, None, row)

    def _take_alert(self, data: bytes) -> None:
        found = {number: value for number, _, value, _ in read_fields(data)}
        title, text, level = (as_text(found.get(number, b"")) for number in (1, 2, 3))
        message = f"{title}: {text}" if text else title
        self._events.append(SourceEvent("alert", message, self._time, SEVERITIES.get(level, "info")))

    def _take_output(self, data: bytes) -> None:
        self._printed += [as_text(value) for number, _, value, _ in read_fields(data) if number == 3]

    @staticmethod
    def _add(piece: Piece, seconds: float | None, step: Any, row: dict[str, Any]) -> None:
        if row and piece.lines is not None:
            piece.lines.add_row(to_micros(seconds), step, row)


def _update(values: dict[str, Any], data: bytes) -> None:
    """ConfigRecord and HistoryRecord {1 update, 2 remove}: of what is nested every leaf is an item."""
    for path, value in _read_items(data, 1):
        _put(values, path, value)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    place = values
    for key in path[:-1]:
        inner = place.get(key)
        if not isinstance(inner, dict):
            inner = place[key] = {}
        place = inner
    place[path[-1]] = value


class _Summary:
    """SummaryRecord {1 update, 2 remove}: there is one for each row, and the last of them counts, so their JSON is
    parsed at the end."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, ...], bytes] = {}
        self._own = b""

    def update(self, data: bytes) -> None:
        if data == self._own:
            return
        paths, texts = _split_items(data, 1)
        if all(path[0].startswith("_") for path in paths):  # W&B's clock, with each row, the same for a second
            self._own = data
            return
        for path, text in zip(paths, texts, strict=True):
            self._texts.pop(path, None)
            self._texts[path] = text  # behind all others, in case one is within another

    def take(self) -> dict[str, Any]:
        """All of it; empty from then on."""
        values: dict[str, Any] = {}
        for path, value in _parse_items(list(self._texts), list(self._texts.values())):
            _put(values, path, value)
        self._texts.clear()
        return values


def _read_items(data: bytes, wanted: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of items {1 key, 2 nested_key, 16 value_json}."""
    return _parse_items(*_split_items(data, wanted))


def _parse_items(paths: Sequence[tuple[str, ...]], texts: Sequence[bytes]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """With the values that the texts are; an item whose text is no JSON is passed over."""
    try:
        found = parse_json(b"[%b]" % b",".join(texts), MOST_DEPTH + 1)  # all at once takes a third of the time
    except ValueError:
        found = ()
    if len(found) == len(texts):
        yield from zip(paths, found, strict=True)
        return
    for path, text in zip(paths, texts, strict=True):
        try:
            yield path, parse_json(text) if text else None
        except TooDeep as error:
            raise Malformed(str(error)) from None
        except ValueError:  # also of bytes that are no text, and of a number too long for Python
            continue


_NUMBERS = re.compile(rb"\n(.)[\n\x12](.)([^\x82]+)\x82\x01(.)([^\n\x12\x82]*)", re.DOTALL)
"""Items with one key and a short value: the size of all, that of the key, the key, the size of the value,
the value."""


def _split_items(data: bytes, wanted: int) -> tuple[list[tuple[str, ...]], list[bytes]]:
    """(paths, JSON) of the items."""
    paths, texts, place = _split_numbers(data) if wanted == 1 else ([], [], 0)
    for number, kind, value, stop in find_fields(data, place, len(data)):
        if number == wanted:
            if kind == VARINT:
                raise Malformed("a number where bytes are expected")
            path, text = _split_item(data[value:stop])
            if path:
                paths.append(path)
                texts.append(text)
    return paths, texts


def _split_numbers(data: bytes) -> tuple[list[tuple[str, ...]], list[bytes], int]:
    """The items that a record begins with, where these are all plain numbers, as in nearly every row; and the place
    behind them. Without it a file takes twice as long."""
    parts = _NUMBERS.split(data)
    sizes, key_sizes, keys, text_sizes, texts = (parts[group::6] for group in range(1, 6))
    expected = [len(key) + len(text) + 5 for key, text in zip(keys, texts, strict=True)]
    if (
        any(parts[0:-1:6])  # between two of them
        or list(map(len, keys)) != list(b"".join(key_sizes))
        or list(map(len, texts)) != list(b"".join(text_sizes))
        or expected != list(b"".join(sizes))
        or max(expected, default=0) > 0x7F  # what has a second byte
    ):
        return [], [], 0
    return list(map(_read_key, keys)), texts, len(data) - len(parts[-1])


@functools.lru_cache(maxsize=10_000)
def _read_key(data: bytes) -> tuple[str, ...]:
    return (as_text(data),)


def _split_item(item: bytes) -> tuple[tuple[str, ...], bytes]:
    path, text = list[str](), b""
    for inner, _, value, _ in read_fields(item):
        if inner in (1, 2):
            path.append(as_text(value))
        elif inner == 16:
            text = as_bytes(value)
    return tuple(path), text


def _read_time(data: bytes) -> float:
    """google.protobuf.Timestamp."""
    found = {number: as_int(value) for number, _, value, _ in read_fields(data)}
    return signed(found.get(1, 0)) + found.get(2, 0) / 1e9


def _read_about(data: bytes) -> About:
    """RunRecord {1 run_id, 3 project, 4 config, 6 run_group, 7 job_type, 8 display_name, 9 notes, 10 tags, 13 host,
    17 start_time}."""
    texts: dict[int, str] = {}
    tags: list[str] = []
    config: dict[str, Any] = {}
    started = None
    for number, _, value, _ in read_fields(data):
        if number == 10:
            tags.append(as_text(value))
        elif number == 4:
            _update(config, as_bytes(value))
        elif number == 17:
            started = _read_time(as_bytes(value))
        elif number in (1, 3, 6, 7, 8, 9, 13):
            texts[number] = as_text(value)
    config.pop("_wandb", None)
    return About(
        name=texts.get(8) or texts.get(1, ""),
        project=texts.get(3, ""),
        config=config or None,
        tags=(*tags, *(texts[number] for number in (6, 7) if texts.get(number))) or None,
        notes=texts.get(9, ""),
        started=started,
        host=texts.get(13, ""),
    )
