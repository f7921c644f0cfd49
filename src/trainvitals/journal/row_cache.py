"""What a list shows of each ended run, kept in one file of this user's runtime folder: reading ten thousand runs takes
seconds, asking whether they changed a fraction of one.

It is a cache and nothing else. It may be deleted at any time, and whoever lacks it, or finds one that is damaged, of
another version or written by somebody else, reads the runs and writes a new one. Each row is a line of its own, decoded
only when somebody asks for it.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from trainvitals import runtime
from trainvitals.errors import AgentError
from trainvitals.journal import layout
from trainvitals.journal.encoding import dump_json, spell_all

FORMAT = 1
"""To be raised with every change of what a row has."""
MOST_BYTES = 256 << 20
"""Of the file; what goes beyond is read from the runs each time."""
SETTLED_SECONDS = 2.0
"""For how long nothing must have changed for a row to be kept: two changes within one tick of a file system's clock
look like one."""

_LARGEST = 2**63 - 1

Row = dict[str, Any]
MakeRow = Callable[[], tuple[Row, bool]]
"""The row, and whether it stays as it is until a file of the run changes."""


class RowCache:
    """The rows of the runs below one folder. Not for use from several threads at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loaded = False
        self._changed = False
        self._entries: dict[str, _Entry] = {}

    def recall(self, place: str, make: MakeRow) -> Row:
        """What `make` gives of the run in this folder, as JSON has it. It is not asked again for an ended run that did
        not change."""
        if not self._loaded:
            self._entries, self._loaded = self._load(), True
        name = self._name(place)
        known = self._entries.get(name)
        if known is not None and _stamp(place, known.files) == known.stamp:
            return known.row
        # What changes while it is read has another stamp afterwards.
        files = _list_files(place)
        stamp = _stamp(place, files)
        row, lasts = make()
        entry = _Entry(files, stamp, dump_json(spell_all(row)))
        if lasts and stamp and _is_settled(stamp):
            self._entries[name] = entry
            self._changed = True
        elif known is not None:
            del self._entries[name]
            self._changed = True
        return entry.row

    def save(self, places: Iterable[str]) -> None:
        """Write what is new, without the runs whose folders are no longer among these."""
        if not self._changed:
            return
        self._changed = False
        left = {self._name(place) for place in places}
        self._entries = {name: entry for name, entry in self._entries.items() if name in left}
        lines: list[bytes] = []
        size = 0
        for name, entry in reversed(self._entries.items()):
            line = b"\t".join((dump_json([os.fsencode(name).hex(), entry.files]), entry.stamp, entry.encoded))
            size += len(line) + 1
            if size > MOST_BYTES:
                break
            lines.append(line)
        body = b"\n".join(reversed(lines))
        with contextlib.suppress(OSError, AgentError):  # on a full disk, or without a folder, it goes without
            file = self._file()
            file.parent.mkdir(mode=0o700, exist_ok=True)
            runtime.write_atomically(file, _head(body) + body)

    def _load(self) -> dict[str, _Entry]:
        try:
            data = runtime.read_regular(self._file(), MOST_BYTES + 100, own=True)
        except (OSError, AgentError):
            return {}
        head, _, body = data.partition(b"\n")
        if head + b"\n" != _head(body):
            return {}
        found: dict[str, _Entry] = {}
        for line in body.split(b"\n") if body else []:
            made_from, stamp, encoded = line.split(b"\t", 2)
            name, files = orjson.loads(made_from)
            found[os.fsdecode(bytes.fromhex(name))] = _Entry(tuple(files), stamp, encoded)
        return found

    def _file(self) -> Path:
        import hashlib

        # A run without a project has that of the folder above it, which is known by its name as it was given.
        name = os.fsencode(f"{self._root.absolute()}\0{self._root}")
        return runtime.runtime_dir() / "rows" / hashlib.sha256(name).hexdigest()[:32]

    def _name(self, place: str) -> str:
        return place.removeprefix(str(self._root))


class _Entry:
    """A row, and what tells whether it is still right."""

    __slots__ = ("_row", "encoded", "files", "stamp")

    def __init__(self, files: tuple[str, ...], stamp: bytes, encoded: bytes) -> None:
        self.files = files
        self.stamp = stamp
        self.encoded = encoded
        self._row: Row | None = None

    @property
    def row(self) -> Row:
        """The same object each time."""
        if self._row is None:
            self._row = orjson.loads(self.encoded)
        return self._row


def _head(body: bytes) -> bytes:
    return f"trainvitals rows {FORMAT} {zlib.crc32(body):08x}\n".encode()


def _list_files(place: str) -> tuple[str, ...]:
    """Those that a row is made from and that may be written in place: run.json by hand, alerts line by line. What the
    agents write is replaced, which the folder shows."""
    try:
        names = os.listdir(place)  # noqa: PTH208
    except OSError:
        names = []
    return (layout.RUN_FILE, *sorted(name for name in names if name.startswith("alerts_")))


def _stamp(place: str, files: tuple[str, ...]) -> bytes:
    """Differs when one of the files was written, or any file of the folder came, went or was replaced. Empty if one is
    missing."""
    try:
        # Asked of ten thousand runs in a row, where a Path takes as long as the question.
        found = [os.stat(place), *(os.stat(f"{place}/{name}") for name in files)]  # noqa: PTH116
    except OSError:
        return b""
    return orjson.dumps([(item.st_ino & _LARGEST, item.st_size, item.st_mtime_ns, item.st_ctime_ns) for item in found])


def _is_settled(stamp: bytes) -> bool:
    newest = max(max(times) for _, _, *times in orjson.loads(stamp))
    return bool(newest / 1e9 < time.time() - SETTLED_SECONDS)
