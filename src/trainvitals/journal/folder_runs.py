"""The runs below a folder, by key: the folder's name, or `project~name` where two projects have the same.
Tested in tests/views/test_memory_runs.py."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.row_cache import Made, MakeRow, Row, cache_of_folder

if TYPE_CHECKING:  # which a list of runs does not wait for
    from trainvitals.journal.contracts import AlertTally, RunRef
    from trainvitals.journal.documents.findings import FindingsFile
    from trainvitals.journal.documents.rows import AlertRow
    from trainvitals.journal.documents.status import Status
    from trainvitals.journal.documents.view import ViewFile
    from trainvitals.journal.reader import RunReader
    from trainvitals.journal.run_info import RunInfo


class FolderRuns:
    """Implements `contracts.Runs`. With `inside_only`, links that lead out of the root are left out: who may ask for a
    run by name then learns nothing of other folders."""

    def __init__(self, root: Path, *, inside_only: bool = False) -> None:
        self.root = root
        self._inside_only = inside_only
        self._places: dict[str, str] = {}
        self._rows = cache_of_folder(root)

    @property
    def place(self) -> str:
        return str(self.root)

    def list_keys(self) -> list[str]:
        """Every run, oldest first."""
        if self._inside_only:
            may_follow = functools.partial(_leads_inside, root=self.root.resolve())
            places = run_folder.list_places(self.root, may_follow=may_follow, find_created=self._rows.find_created)
        else:
            places = run_folder.list_places(
                self.root, find_created=self._rows.find_created, is_known=self._rows.has_kept
            )
        found: dict[str, list[str]] = {}
        for place in places:
            found.setdefault(run_folder.name_of(place), []).append(place)
        self._places = {
            (name if len(same) == 1 else f"{Path(place).parent.name}~{name}"): place
            for name, same in found.items()
            for place in same
        }
        return list(self._places)

    def find(self, reference: str) -> str:
        """The key of a run by key, id, name, unique part of either, or `latest`; raises RunNotFound."""
        keys = self.list_keys()
        if reference in self._places:
            return reference
        found = run_folder.find(reference, self.root)
        return next((key for key in keys if Path(self._places[key]) == found), found.name)

    def describe(self, key: str) -> RunInfo:
        """The run at a glance: also an unreadable one, with the reason."""
        from trainvitals.journal.run_info import find_info

        return find_info(self.folder(key))

    def statuses(self, key: str) -> list[Status]:
        """What the agent of each host reported last."""
        return run_folder.read_statuses(self.folder(key))

    def alerts(self, key: str) -> list[AlertRow]:
        """Every line of its alerts, in order of time."""
        folder = self.folder(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Most runs have none, and a list asks thousands: the rest waits for one that has.
            if not any(name.startswith("alerts_") for name in os.listdir(folder)):  # noqa: PTH208
                return []
        from trainvitals.journal.documents.rows import AlertRow
        from trainvitals.journal.follower import read_table

        return [AlertRow.parse(line) for _, line in read_table(folder, "alerts")]

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        """Which alerts of these rules fired from `start` to before `end`, in any run."""
        from trainvitals.journal.alert_tallies import tally

        return tally(self.list_keys(), self.alerts, rules, start, end)

    def findings(self, key: str) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        return run_folder.find_findings(self.folder(key))

    def has_values(self, key: str) -> bool:
        """Whether the training logged anything."""
        return any(name.table == "training" for name, _, _ in layout.list_files(self.folder(key)))

    def recall(self, key: str, make: MakeRow) -> Row:
        """What `make` gives, as JSON has it. It is not asked again for an ended run that did not change."""
        place = self._place(key)

        def make_existing() -> Made:
            # It was listed because its row is kept, and may have lost its run.json since.
            if not run_folder.has_run(place):
                raise RunNotFound(f"no run in {place}", hint="list them: trainvitals runs")
            return make()

        return self._rows.recall(place, make_existing)

    def has_folder(self, project: str) -> bool:
        """Whether runs of this project are known to be there without any of them being read. False says nothing."""
        folder = f"{self.root}{os.sep}{run_folder.project_folder(project)}{os.sep}"
        return any(place.startswith(folder) for place in self._places.values())

    def find_view(self, project: str) -> ViewFile | None:
        """How the page shows a project; None if nobody has changed anything. Raises JournalError if it is damaged."""
        from trainvitals.journal.project_view import find_view

        return find_view(self.root, project)

    def change_view(self, project: str, change: Callable[[ViewFile | None], ViewFile]) -> ViewFile:
        """Raises JournalError, and what `change` raises."""
        from trainvitals.journal.project_view import change_view

        return change_view(self.root, project, change)

    def keep_rows(self) -> None:
        """All have been recalled that somebody wanted: the next program may have them."""
        self._rows.save(self._places.values())

    def open(self, key: str) -> RunReader:
        """A new reader; raises RunNotFound."""
        from trainvitals.journal.reader import RunReader

        folder = self.folder(key)
        if not (folder / layout.RUN_FILE).exists():
            raise RunNotFound(f"run {key} was removed")
        return RunReader(folder)

    def folder(self, key: str) -> Path:
        """Where the run is; raises RunNotFound."""
        return Path(self._place(key))

    def _place(self, key: str) -> str:
        place = self._places.get(key)
        if place is None:
            self.list_keys()  # it may be younger than the last look
            place = self._places.get(key)
        if place is None:
            raise RunNotFound(f"no run '{key}' in {self.root}", hint="list them: trainvitals runs")
        return place


def _leads_inside(link: str, root: Path) -> bool:
    try:
        return Path(link).resolve(strict=True).is_relative_to(root)
    except OSError:
        return False


def refer_to(folder: Path) -> RunRef:
    """The run in this folder, wherever that is."""
    from trainvitals.journal.contracts import RunRef

    def open() -> RunReader:
        from trainvitals.journal.reader import RunReader

        return RunReader(folder)

    return RunRef(str(folder), open)


def name_runs(folders: Sequence[Path]) -> list[tuple[str, RunReader]]:
    """Each run under a name that no other of them has: the folder's, with the project where two share one."""
    from trainvitals.journal.reader import RunReader

    names = [folder.resolve().name for folder in folders]
    return [
        (name if names.count(name) == 1 else f"{folder.resolve().parent.name}~{name}", RunReader(folder))
        for name, folder in zip(names, folders, strict=True)
    ]
