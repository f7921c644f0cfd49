"""A run of the store, for every view. Tested in tests/fleet/test_store_reader.py."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from trainvitals.fleet.clickhouse import literal
from trainvitals.fleet.store import Store, rows_of
from trainvitals.fleet.store_documents import StoredRun
from trainvitals.fleet.store_files import StoreFiles
from trainvitals.journal import layout, media, patches, texts
from trainvitals.journal.benchmarks import read_benchmarks
from trainvitals.journal.contracts import MediaItem, Patch, RowFeed, TextFile, TextKind, TextPart
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.layout import FileName
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.series_reader import SeriesReader, of_one_state


class StoreReader(SeriesReader):
    """Implements `contracts.Reader`: numbers and lines by questions to the engine, other files as copies that are made
    when they are asked for."""

    def __init__(self, store: Store, project: str, run: str, find: Callable[[], StoredRun]) -> None:
        """`find` gives its documents as they are now."""
        self._store = store
        self._store_files = StoreFiles(store, project, run)
        super().__init__(self._store_files)
        self._find = find
        self._copies = _Copies(store, self._store_files)

    # -- about the run

    @property
    def info(self) -> RunInfo:
        return self._find().info

    def statuses(self) -> list[Status]:
        """What the agent of each host reported last."""
        return self._find().statuses

    def findings(self) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        return self._find().findings

    def view(self) -> ViewFile | None:
        """Not kept in a store: every browser keeps its own."""
        return None

    def stamp(self) -> object:
        """Equal to an earlier one as long as nothing was written since."""
        return sorted((path, end.version) for path, end in self._store_files.ends.items() if not end.digest)

    @of_one_state
    def damage(self) -> Damage:
        """What could not be understood."""
        ends = self._store_files.ends
        total = sum((Damage(end.torn, end.foreign) for end in ends.values()), Damage())
        folder = self._copies.bring(lambda path: path.endswith(".rejected"))
        for path in (folder / layout.SEGMENTS).glob("*.rejected"):
            total += Damage(torn=path.read_bytes().count(b"\n"))
        return total

    # -- lines

    def events(self) -> list[EventRow]:
        """Everything that happened, in order of time."""
        return [EventRow.parse(line) for _, line in self._read_lines("events")]

    def alerts(self) -> list[AlertRow]:
        """Every change of every alert, in order of time."""
        return [AlertRow.parse(line) for _, line in self._read_lines("alerts")]

    def _read_lines(self, table: str) -> list[tuple[FileName, dict[str, Any]]]:
        rows = read_lines(self._store_files, table, {})
        return sorted(rows, key=lambda item: str(item[1]["timestamp"]))

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> RowFeed:
        """New rows as they are written."""
        return _Feed(self._store_files, tuple(tables), from_end)

    # -- other files

    def count_benchmarks(self) -> int:
        return sum(path.startswith(f"{layout.BENCHMARKS}/") for path in self._store_files.ends)

    def benchmarks(self) -> list[Benchmark]:
        """By step and time."""
        return read_benchmarks(self._copies.bring(_below(layout.BENCHMARKS)))

    def histogram_names(self) -> list[str]:
        """Those that were logged, imported or received, then those that `watch` measured."""
        return media.list_histogram_names(self._media_folder(), self.media())

    def histograms(self, name: str) -> list[dict[str, Any]]:
        """Every histogram of one name, of the lowest participant that has any."""
        found = self.media()
        files = {item.file for item in found if item.kind == "histogram" and item.name == name}
        folder = self._copies.bring(lambda path: path.rpartition("/")[2] in files or _is_index(path))
        return media.read_histograms(folder, name, found)

    def texts(self, kind: TextKind) -> list[TextFile]:
        """What the program printed, or the stack dumps, in order of time for each writer."""
        return texts.list_texts(self._bring_texts(kind), kind)

    def read_text(self, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart:
        """The end of one text, at most `limit` bytes of it and not before byte `after`."""
        return texts.read_text(self._bring_texts(kind), kind, name, limit, after)

    def patches(self) -> list[Patch]:
        """In order of the attempts of which anything is known."""
        return patches.list_patches(self._copies.bring(_below(layout.PATCHES)))

    def media(self) -> list[MediaItem]:
        """In the order in which they were logged."""
        folder = self._media_folder()
        return [replace(item, read=self._reading(folder, item.file)) for item in media.list_media(folder)]

    def _media_folder(self) -> Path:
        return self._copies.bring(_is_index)

    def _reading(self, folder: Path, file: str) -> Callable[[], bytes]:
        def read() -> bytes:
            self._copies.bring(lambda path: path == f"{layout.MEDIA}/{file}")
            return media.read_media(folder, file)

        return read

    def _bring_texts(self, kind: TextKind) -> Path:
        return self._copies.bring(
            _below(layout.STACKS) if kind == "stack" else lambda path: path.startswith("console.") and "/" not in path
        )


def _below(folder: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(f"{folder}/")


def _is_index(path: str) -> bool:
    return path.startswith(f"{layout.MEDIA}/") and path.endswith(".jsonl")


class _Copies:
    """Files of a run that are not of the journal, in a folder of ours, each as far as somebody wanted it."""

    def __init__(self, store: Store, files: StoreFiles) -> None:
        self._store = store
        self._files = files
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._have: dict[str, tuple[str, int, int]] = {}

    def bring(self, wanted: Callable[[str], bool]) -> Path:
        """The folder, with these files as they are now."""
        if self._place is None:
            self._place = tempfile.TemporaryDirectory(prefix="trainvitals-", ignore_cleanup_errors=True)
        folder = Path(self._place.name)
        for path, end in self._files.ends.items():
            if wanted(path):
                have = self._have.get(path, ("", 0, 0))
                if have != (end.generation, end.version, end.end):
                    self._copy(folder / path, path, have)
                    self._have[path] = (end.generation, end.version, end.end)
        return folder

    def _copy(self, target: Path, path: str, have: tuple[str, int, int]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        end = self._files.ends[path]
        where = f"WHERE {self._files.which} AND path = {literal(path)}"
        if end.digest:
            query = f"SELECT argMax(data, version) AS newest FROM documents {where} GROUP BY path"
            target.write_bytes(self._store.engine.select(query)["newest"][0])
            return
        first = have[2] if have[0] == end.generation and have[2] <= end.end and target.exists() else 0
        pieces = self._store.engine.select(
            f"SELECT offset, data FROM pieces {where} AND generation = {literal(end.generation)} "
            f"AND offset + length(data) > {first} AND offset < {end.end} ORDER BY offset"
        )
        with open(target, "r+b" if first else "wb") as file:
            for row in rows_of(pieces):
                file.seek(int(row["offset"]))
                file.write(row["data"])
            file.truncate(end.end)  # what lies behind was not acknowledged
        os.utime(target, (end.modified, end.modified))


def read_lines(files: StoreFiles, table: str, known: dict[str, int]) -> list[tuple[FileName, dict[str, Any]]]:
    """Events or alerts, of each file from the row in `known` on, which moves on."""
    found = []
    for name, _, _ in files.list():
        end = files.end_of(name.stem)
        first = known.get(name.stem, 0)
        if name.table != table or first >= end.rows:
            continue
        answer = files.engine.select(
            f"SELECT row, any(line) AS text FROM lines WHERE {files.which} AND tbl = {literal(table)} "
            f"AND stem = {literal(name.stem)} AND row >= {first} AND row < {end.rows} GROUP BY row ORDER BY row"
        )
        found += [(name, orjson.loads(line)) for line in answer.get("text", ())]
        known[name.stem] = end.rows
    return found


class _Feed:
    """New rows of the store as they come."""

    def __init__(self, files: StoreFiles, tables: tuple[str, ...], from_end: bool) -> None:
        self._files = files
        self._tables = tables
        self._known: dict[str, int] = {}
        if from_end:
            self._known = {name.stem: files.end_of(name.stem).rows for name, _, _ in files.list()}

    def poll(self, limit: int | None = None) -> list[tuple[FileName, dict[str, Any]]]:
        """What came since the last poll."""
        found: list[tuple[FileName, dict[str, Any]]] = []
        for table in self._tables:
            if table in layout.LINE_TABLES:
                found += read_lines(self._files, table, self._known)
                continue
            for name, _, _ in self._files.list():
                first, end = self._known.get(name.stem, 0), self._files.end_of(name.stem).rows
                if name.table == table and first < end:
                    found += [(name, row) for row in self._files.read_rows(name, first, end)]
                    self._known[name.stem] = end
        return found
