"""Pictures, tables, texts and histograms of a run: `media/<kind>/<name>/<step>.<suffix>`, and a line for each in
`media/index.jsonl`.

    {"timestamp": ..., "kind": "image", "name": "val/mask", "step": 20, "file": "image/val_mask-1f0c2d3e/20.png", ...}

The index has the name as it was logged; that of the folder is made of it so that it is one on every file system and
leads nowhere else. Histograms are lines themselves (`trainvitals.journal.histograms`); the index has one line for each
of their names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import histograms, layout
from trainvitals.journal.contracts import MediaItem, MediaKind
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import encode_line, format_time, parse_time
from trainvitals.journal.histograms import Histogram
from trainvitals.journal.identity import Participant
from trainvitals.plain_json import parse_object

INDEX = "index.jsonl"
MOST_FILES = 10_000
"""Of one run: more would make a folder that nobody can list."""
MOST_FILE_BYTES = 64 << 20
_MOST_AGAIN = 1 << 20
"""Bytes of lines that may come again after a kill: those of one request."""
_KINDS: tuple[MediaKind, ...] = get_args(MediaKind)
_FIELDS = ("timestamp", "kind", "name", "file", "step", "digest", "role", "rank")
"""Of a line of the index; the others are facts of their writers."""
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
)


class OverLimit(Exception):
    """A run keeps no more of this; the text has the limit."""


class Media:
    """The media of one run folder, written by one process; ranks may write at the same time."""

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes: int = MOST_FILE_BYTES,
        run_bytes: int | None = None,
        skip_known: bool = False,
    ) -> None:
        """With `skip_known`, what is there already is not written again: a tracker that is read or received may repeat
        what came before a kill."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._run_bytes = run_bytes
        rows = list_rows(folder)
        self._skip_known = skip_known
        self._tails: dict[str, frozenset[bytes]] = {}
        self._count = len(rows)
        self._known = {_key(row) for row in rows}
        self._bytes = sum(size for row in rows if type(size := row.get("bytes")) is int)

    def write(
        self,
        kind: MediaKind,
        name: str,
        data: bytes,
        suffix: str,
        *,
        step: int | None = None,
        time: float | None = None,
        participant: Participant = Participant(),  # noqa: B008 - frozen
        **more: Any,
    ) -> None:
        """Keep one; `more` goes into its line of the index. Raises OverLimit and OSError."""
        digest = hashlib.sha256(data).hexdigest()[:16]
        key = (kind, name, step, digest)
        if self._skip_known and key in self._known:
            return
        self._check(len(data))
        place = self._folder
        for part in (layout.MEDIA, kind, layout.safe_name(name)):
            place = run_folder.make_within(place, part)
        path = _write_new(place, "all" if step is None else str(step), suffix, data)
        row = {
            **_start_row(time, kind, name, step, participant),
            "file": path.relative_to(self._folder / layout.MEDIA).as_posix(),
            "digest": digest,
            "bytes": len(data),
            **more,
        }
        self.append(INDEX, row)
        self._known.add(key)
        self._bytes += len(data)

    def write_histogram(
        self,
        name: str,
        histogram: Histogram,
        *,
        step: int | None = None,
        time: float | None = None,
        participant: Participant = Participant(),  # noqa: B008 - frozen
    ) -> None:
        """Keep one. Raises OverLimit and OSError."""
        row = {"timestamp": format_time(time), "step": step, "name": name, **histogram._asdict()}
        size = len(encode_line(row))
        self._check(size)
        file = histograms.file_name(participant)
        self.append(file, row)
        self._bytes += size
        key = ("histogram", name, None, None)
        if key not in self._known:
            self.append(INDEX, {**_start_row(time, "histogram", name, None, participant), "file": file})
            self._known.add(key)

    def index(
        self,
        kind: MediaKind,
        name: str,
        file: str,
        *,
        step: int | None = None,
        time: float | None = None,
        **more: Any,
    ) -> None:
        """Note a file that comes below `media/` by another way. Raises OSError."""
        self.append(INDEX, {**_start_row(time, kind, name, step, Participant()), "file": file, **more})

    def _check(self, size: int) -> None:
        if size > self._file_bytes:
            raise OverLimit(f"larger than {self._file_bytes / 2**20:g} MB")
        if self._count >= MOST_FILES:
            raise OverLimit(f"the run has {MOST_FILES:,} files of media")
        if self._run_bytes is not None and self._bytes + size > self._run_bytes:
            raise OverLimit(f"the run has {self._run_bytes / 2**20:g} MB of media")

    def append(self, file: str, row: Mapping[str, Any]) -> None:
        """A line in a file below `media/`. Raises OSError."""
        place = run_folder.make_within(self._folder, layout.MEDIA)
        line = encode_line(row)
        if self._skip_known and file not in self._tails:
            self._tails[file] = _read_tail(place / file)
        if line in self._tails.get(file, ()):
            return
        run_folder.append_within(place, file, line)
        self._count += file == INDEX


def _start_row(
    time: float | None, kind: MediaKind, name: str, step: int | None, participant: Participant
) -> dict[str, Any]:
    return {
        "timestamp": format_time(time),
        "kind": kind,
        "name": name,
        **({} if step is None else {"step": step}),
        **({} if participant == Participant() else participant.labels),
    }


def _write_new(place: Path, stem: str, suffix: str, data: bytes) -> Path:
    """A new file, whose name no other process has taken: several of one step are numbered. One that a kill cuts off is
    in no index."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | runtime.NO_LINK
    for number in range(1, MOST_FILES + 2):
        path = place / (f"{stem}.{suffix}" if number == 1 else f"{stem}.{number}.{suffix}")
        try:
            descriptor = os.open(path, flags, run_folder.file_rights(place))
        except FileExistsError:
            continue
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path
    raise FileExistsError(errno.EEXIST, "has too many files of one step", str(place))


def _read_tail(path: Path) -> frozenset[bytes]:
    """The last lines of a file, as far as they may come again."""
    try:
        with open(path, "rb") as file:
            file.seek(max(path.stat().st_size - _MOST_AGAIN, 0))
            return frozenset(file.read().splitlines(keepends=True))
    except OSError:
        return frozenset()


def image_suffix(data: bytes) -> str | None:
    """`png`, `jpg`, `gif`, `webp` or `bmp`, by the first bytes; None if it is no picture that every browser draws. SVG
    is none: it can hold scripts."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((suffix for magic, suffix in _MAGIC if data.startswith(magic)), None)


# -- reading


def list_rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of the index, in the order of writing."""
    return Cursor(folder / layout.MEDIA / INDEX).read()


def list_media(folder: Path) -> list[MediaItem]:
    """What the index has, in the order of writing."""
    return MediaIndex(folder).list()


class MediaIndex:
    """The index of one run; asking again costs only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cursor = Cursor(folder / layout.MEDIA / INDEX)
        self._items: list[MediaItem] = []

    def list(self) -> list[MediaItem]:
        """All there are now, in the order of writing; lines that make no sense are left out."""
        rows: list[dict[str, Any]] = []
        self._cursor.feed(lambda line: self._cursor.collect(line, rows), restart=self._items.clear)
        self._items += [item for row in rows if (item := self._parse(row)) is not None]
        return self._items.copy()

    def _parse(self, row: Mapping[str, Any]) -> MediaItem | None:
        name, file, step = (row.get(key) for key in ("name", "file", "step"))
        kind = next((kind for kind in _KINDS if kind == row.get("kind")), None)
        if kind is None or not isinstance(name, str) or not isinstance(file, str):
            return None
        return MediaItem(
            kind=kind,
            name=name,
            step=step if type(step) is int else None,
            time=parse_time(row["timestamp"]),
            file=file,
            participant=Participant.of(row),
            facts={key: value for key, value in row.items() if key not in _FIELDS},
            read=partial(read_media, self._folder, file),
        )


def read_media(folder: Path, file: str) -> bytes:
    """The content of a file below `media/`. JournalError if it is not there, leads elsewhere, is no regular file, is
    too large, or belongs to somebody else than the run does."""
    parts = Path(file).parts
    if not parts or any(part in ("..", "/") or "\0" in part for part in parts):
        raise JournalError(f"no file '{file[:100]}' in this run")
    opened: list[int] = []
    try:
        for part, kind in (
            (layout.MEDIA, os.O_DIRECTORY),
            *((part, os.O_DIRECTORY) for part in parts[:-1]),
            (parts[-1], 0),
        ):
            # Step by step, so that no link is followed, whoever exchanges a folder meanwhile.
            flags = os.O_RDONLY | os.O_NONBLOCK | runtime.NO_LINK | kind
            opened.append(os.open(part if opened else folder / part, flags, dir_fd=opened[-1] if opened else None))
        found = os.fstat(opened[-1])
        if not stat.S_ISREG(found.st_mode) or found.st_uid != folder.stat().st_uid:
            raise JournalError(f"'{file[:100]}' is not a file of this run")
        if found.st_size > MOST_FILE_BYTES:
            raise JournalError(f"'{file[:100]}' is larger than {MOST_FILE_BYTES >> 20} MB")
        with os.fdopen(opened.pop(), "rb") as content:
            return content.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise JournalError(f"cannot read '{file[:100]}': {error.strerror}") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def list_histogram_names(folder: Path, media: Iterable[MediaItem]) -> list[str]:
    """Those among the media of the run, then those that `watch` measured."""
    logged = (item.name for item in media if item.kind == "histogram")
    return list(dict.fromkeys((*logged, *histograms.list_first_names(folder))))


def read_histograms(folder: Path, name: str, media: Iterable[MediaItem]) -> list[dict[str, Any]]:
    """Every histogram of one name: lines, and files of other trackers."""
    found = histograms.read_rows(folder, name)
    for item in media:
        if item.kind == "histogram" and item.name == name and item.step is not None:
            with suppress(JournalError, ValueError):
                histogram = histograms.from_other(parse_object(item.read()))
                if histogram is not None:
                    found.append({"step": item.step, "name": name, **histogram._asdict()})
    return found


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("kind"), row.get("name"), row.get("step"), row.get("digest")
