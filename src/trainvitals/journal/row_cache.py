"""What a list shows of each ended run, kept in one file of this user's runtime folder: reading ten thousand runs takes
seconds, asking whether they changed a fraction of one. The runs may be in folders, or in the store of a fleet.

It is a cache and nothing else. It may be deleted at any time, and whoever lacks it, or finds one that is damaged, of
another version or written by somebody else, reads the runs and writes a new one. Some hundred rows are kept together:
what each was made from, then the rows, unpacked and decoded only when somebody asks for one. A million fit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from trainvitals import runtime
from trainvitals.errors import AgentError
from trainvitals.journal import layout
from trainvitals.journal.encoding import dump_json, spell_all

FORMAT = 6
"""To be raised with every change of what a row has, or says."""
SHAPE = "c8c5d60f73707587"
"""A fingerprint of what rows had and said when it was raised last; tests/journal/test_row_cache.py makes it."""
MOST_BYTES = 256 << 20
"""Of the file; what goes beyond is read from the runs each time. Of 20,000 rows each took 94 bytes, compressed."""
ROWS_TOGETHER = 512
PLAIN_BYTES = 32 << 20
"""Fewer than these are not compressed: tens of thousands of rows, which are listed a little sooner so."""
SETTLED_SECONDS = 2.0
"""For how long nothing must have changed for a row to be kept: two changes within one tick of a file system's clock
look like one."""

_MADE_FROM = ("alerts_", layout.FINDINGS_FILE, "status")
_unpack = functools.lru_cache(8)(zlib.decompress)
"""Those who list runs ask for one row after the other."""

Row = dict[str, Any]


class Made(NamedTuple):
    """A row, as it is made from the files of a run."""

    row: Row
    lasts: bool
    """Whether it stays as it is until a file of the run changes."""
    created: str
    """When the run was, as run.json has it."""


MakeRow = Callable[[], Made]


class Stamps(Protocol):
    """What tells whether a run changed."""

    def list_files(self, place: str) -> list[str]:
        """Those that its row is made from."""
        ...

    def stamp(self, place: str, files: list[str]) -> list[int]:
        """Differs when one of them changed, or another one came. Empty if the run cannot be told apart from another."""
        ...

    def is_settled(self, stamp: list[int]) -> bool:
        """Whether the next change will have another stamp."""
        ...


class RowCache:
    """The rows of the runs in one place. Not for use from several threads at once."""

    def __init__(self, prefix: str, stamps: Stamps, name: bytes | None) -> None:
        """`prefix` is how the places of all runs begin. Without a `name`, which no other place has, they are kept in
        memory only."""
        self._prefix = prefix
        self._stamps = stamps
        self._own_name = name
        self._loaded = False
        self._changed = False
        self._entries: dict[str, _Entry] = {}
        self._file_lists: dict[tuple[str, ...], list[str]] = {}

    def recall(self, place: str, make: MakeRow) -> Row:
        """What `make` gives of the run in this folder, as JSON has it. It is not asked again for an ended run that did
        not change."""
        known = self._find(place)
        if known is not None:
            return known.row
        # What changes while it is read has another stamp afterwards.
        files = self._stamps.list_files(place)
        stamp = self._stamps.stamp(place, files)
        made = make()
        entry = _Entry(self._share(files), _condense(stamp), made.created, dump_json(spell_all(made.row)))
        name = self._name(place)
        if made.lasts and stamp and self._stamps.is_settled(stamp) and _is_text(name, *files):
            self._entries[name] = entry
            self._changed = True
        elif self._entries.pop(name, None) is not None:
            self._changed = True
        return entry.row

    def has_kept(self, place: str) -> bool:
        """Whether a row of this folder is kept, be it right or not."""
        return self._name(place) in self._load_once()

    def find_created(self, place: str) -> str | None:
        """When the run in this folder was created, if its row is kept and did not change."""
        known = self._find(place)
        return known.created if known is not None else None

    def _find(self, place: str) -> _Entry | None:
        known = self._load_once().get(self._name(place))
        return known if known is not None and _condense(self._stamps.stamp(place, known.files)) == known.stamp else None

    def _share(self, files: list[str]) -> list[str]:
        """The same list for all runs that have the same files, as most do."""
        return self._file_lists.setdefault(tuple(files), files)

    def _load_once(self) -> dict[str, _Entry]:
        if not self._loaded:
            self._entries, self._loaded = self._load(), True
        return self._entries

    def save(self, places: Iterable[str]) -> None:
        """Write what is new, without the runs whose folders are no longer among these."""
        if not self._changed or self._own_name is None:
            return
        self._changed = False
        left = {self._name(place) for place in places}
        self._entries = {name: entry for name, entry in self._entries.items() if name in left}
        level = 1 if sum(entry.length for entry in self._entries.values()) > PLAIN_BYTES else 0
        newest_first = list(reversed(self._entries.items()))
        lengths: list[tuple[int, int]] = []
        pieces: list[bytes] = []
        size = 0
        for start in range(0, len(newest_first), ROWS_TOGETHER):
            together = newest_first[start : start + ROWS_TOGETHER]
            index = [(name, entry.files, entry.stamp, entry.created, entry.length) for name, entry in together]
            rows = zlib.compress(b"".join(entry.encoded for _, entry in together), level)
            packed = zlib.compress(dump_json(index), level)
            size += len(packed) + len(rows)
            if size > MOST_BYTES:
                break
            lengths.append((len(packed), len(rows)))
            pieces += packed, rows
            place = 0
            for _, entry in together:
                entry.keep_within(rows, place)
                place += entry.length
        body = b"\n".join((dump_json(lengths), b"".join(pieces)))
        with contextlib.suppress(OSError, AgentError):  # on a full disk, or without a folder, it goes without
            file = self._file(self._own_name)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            runtime.write_atomically(file, _head(body) + body)

    def _load(self) -> dict[str, _Entry]:
        if self._own_name is None:
            return {}
        try:
            data = runtime.read_regular(self._file(self._own_name), 2 * MOST_BYTES, own=True)
        except (OSError, AgentError):
            return {}
        head, _, body = data.partition(b"\n")
        if head + b"\n" != _head(body):
            return {}
        lengths, _, pieces = body.partition(b"\n")
        found: list[tuple[str, _Entry]] = []
        place = 0
        for index_length, rows_length in orjson.loads(lengths):
            middle, end = place + index_length, place + index_length + rows_length
            rows = pieces[middle:end]
            start = 0
            for name, files, stamp, created, length in orjson.loads(zlib.decompress(pieces[place:middle])):
                entry = _Entry(self._share(files), stamp, created, rows, start, length)
                found.append((name, entry))
                start += length
            place = end
        return dict(reversed(found))

    @staticmethod
    def _file(name: bytes) -> Path:
        import hashlib

        return runtime.runtime_dir() / "rows" / hashlib.sha256(name).hexdigest()[:32]

    def _name(self, place: str) -> str:
        return place.removeprefix(self._prefix)


class _Entry:
    """A row, and what tells whether it is still right."""

    __slots__ = ("_row", "_start", "_stored", "created", "files", "length", "stamp")

    def __init__(
        self, files: list[str], stamp: int | None, created: str, stored: bytes, start: int = -1, length: int = 0
    ) -> None:
        """`stored` is the row itself, or with a `start` the packed rows that it is among."""
        self.files = files
        self.stamp = stamp
        self.created = created
        self.length = length if start >= 0 else len(stored)
        self._stored = stored
        self._start = start
        self._row: Row | None = None

    def keep_within(self, packed: bytes, start: int) -> None:
        """Give up the row as it was encoded: these packed rows have it from `start` on."""
        self._stored, self._start = packed, start

    @property
    def encoded(self) -> bytes:
        if self._start < 0:
            return self._stored
        return _unpack(self._stored)[self._start : self._start + self.length]

    @property
    def row(self) -> Row:
        """The same object each time."""
        if self._row is None:
            self._row = orjson.loads(self.encoded)
        return self._row


def _condense(stamp: list[int]) -> int | None:
    """One number, for there may be a million of them. None for a run that cannot be told apart from another."""
    return hash(tuple(stamp)) if stamp else None


def _head(body: bytes) -> bytes:
    return f"trainvitals rows {FORMAT} {zlib.crc32(body):08x}\n".encode()


class FolderStamps:
    """Of the files of a run's folder."""

    def list_files(self, place: str) -> list[str]:
        """When another one comes, the folder shows it."""
        try:
            names = os.listdir(place)  # noqa: PTH208
        except OSError:
            names = []
        return [layout.RUN_FILE, *sorted(name for name in names if name.startswith(_MADE_FROM))]

    def stamp(self, place: str, files: list[str]) -> list[int]:
        """Differs when one of the files was written, or any file of the folder came, went or was replaced. Empty if one
        is missing."""
        try:
            # Asked of ten thousand runs in a row, where a Path takes as long as the question.
            found = os.stat(place)  # noqa: PTH116
            stamp = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
            for name in files:
                found = os.stat(f"{place}/{name}")  # noqa: PTH116
                stamp += (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        except OSError:
            return []
        return stamp

    def is_settled(self, stamp: list[int]) -> bool:
        newest = max(*stamp[2::4], *stamp[3::4])
        return newest / 1e9 < time.time() - SETTLED_SECONDS


def cache_of_folder(root: Path) -> RowCache:
    """The rows of the runs below this folder."""
    # A run without a project has that of the folder above it, which is known by its name as it was given.
    return RowCache(str(root), FolderStamps(), os.fsencode(f"{root.absolute()}\0{root}"))


def _is_text(*names: str) -> bool:
    """Whether these are UTF-8: a file system allows anything, JSON does not."""
    try:
        return bool("".join(names).encode())
    except UnicodeEncodeError:
        return False
