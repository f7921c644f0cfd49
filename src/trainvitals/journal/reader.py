"""Reading runs: what every view uses. Works on the folder alone, of a live run, a dead one or a copy.

    run = open_run("latest")
    for series in run.series(["loss"], x="step", max_points=2000):
        series.x, series.y

A `RunReader` remembers what it parsed, so asking again of a live run costs only what is new. Every answer is of one
state of the folder, whatever is rotated, sealed or repaired while it is read: a file that is no longer there is read as
its segment, or the other way round, and a run that is removed meanwhile raises instead of looking shorter than it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, media, patches, texts
from trainvitals.journal.benchmarks import list_benchmarks, read_benchmarks
from trainvitals.journal.contracts import MediaItem, Patch, TextFile, TextKind, TextPart
from trainvitals.journal.cursor import count_lines
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.folder_files import FolderFiles
from trainvitals.journal.follower import Follower, read_table
from trainvitals.journal.run_info import RunInfo, default_root, read_info
from trainvitals.journal.series_reader import SeriesReader, of_one_state


def open_run(reference: str | Path, root: str | Path | None = None) -> RunReader:
    """A run by path, id, beginning of an id, name, or `latest`."""
    return RunReader(run_folder.find(reference, Path(root) if root is not None else default_root()))


class RunReader(SeriesReader):
    """One run folder. Not for use from several threads at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._folder_files = FolderFiles(self.folder)
        super().__init__(self._folder_files)
        self._media = media.MediaIndex(self.folder)

    # -- about the run

    @property
    def info(self) -> RunInfo:
        return read_info(self.folder)

    def statuses(self) -> list[Status]:
        """What the agent of each host reported last."""
        return run_folder.read_statuses(self.folder)

    def findings(self) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        return run_folder.find_findings(self.folder)

    def view(self) -> ViewFile | None:
        """How the page shows its project; raises JournalError if that is damaged."""
        from trainvitals.journal.project_view import find_view

        return find_view(self.folder.absolute().parent.parent, self.info.project)

    def stamp(self) -> object:
        """Equal to an earlier one as long as nothing was written since."""
        found = []
        for _, _, path in layout.list_files(self.folder):
            with contextlib.suppress(FileNotFoundError):  # sealed just now
                found.append((path.name, path.stat().st_size))
        return found

    @of_one_state
    def damage(self) -> Damage:
        """What could not be understood, in all files: torn and foreign lines, Parquet files that cannot be read."""
        total = Damage()
        for table in self.tables():
            parts = [part for stream in self._streams(table) for part in stream.parts]
            self.files.segments.check(path for _, path, sealed in parts if sealed)
            total += sum((self.files.tail(path).damage for _, path, sealed in parts if not sealed), Damage())
            stems = {name.stem for name, _, _ in parts}
            listed = {
                name.stem for name, suffix, _ in self.files.list() if name.table == table and suffix != layout.SIDE
            }
            total.files += len(listed - stems)
        for rejected in (self.folder / layout.SEGMENTS).glob("*.rejected"):
            if rejected.is_file():
                total += Damage(torn=count_lines(rejected))
        return total

    def histogram_names(self) -> list[str]:
        """Those that were logged, imported or received, then those that `watch` measured."""
        return media.list_histogram_names(self.folder, self.media())

    def histograms(self, name: str) -> list[dict[str, Any]]:
        """Every histogram of one name, of the lowest participant that has any."""
        return media.read_histograms(self.folder, name, self.media())

    # -- texts

    def texts(self, kind: TextKind) -> list[TextFile]:
        """What the program printed, or the stack dumps, in order of time for each writer."""
        return texts.list_texts(self.folder, kind)

    def read_text(self, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart:
        """The end of one text, at most `limit` bytes of it and not before byte `after`."""
        return texts.read_text(self.folder, kind, name, limit, after)

    def patches(self) -> list[Patch]:
        """What was changed in the run's repository, in order of the attempts of which anything is known."""
        return patches.list_patches(self.folder)

    # -- media

    def media(self) -> list[MediaItem]:
        """Pictures, tables, texts and histograms, in the order in which they were logged."""
        return self._media.list()

    # -- lines

    def events(self) -> list[EventRow]:
        """Everything that happened, in order of time."""
        return [EventRow.parse(line) for line in self._read_lines("events")]

    def alerts(self) -> list[AlertRow]:
        """Every change of every alert, in order of time."""
        return [AlertRow.parse(line) for line in self._read_lines("alerts")]

    def count_benchmarks(self) -> int:
        return len(list_benchmarks(self.folder))

    def benchmarks(self) -> list[Benchmark]:
        """By step and time."""
        return read_benchmarks(self.folder)

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> Follower:
        """New rows as they are written."""
        return Follower(self.folder, tuple(tables), from_end=from_end)

    # -- the rest

    def _read_lines(self, table: str) -> list[dict[str, Any]]:
        rows = [row for _, row in read_table(self.folder, table)]
        self._folder_files.require()
        return rows
