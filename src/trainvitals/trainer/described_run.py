"""Which run this is, and what run.json says of it: read and changed. Tested in tests/trainer/test_run.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.identity import Participant
from trainvitals.settings import Settings
from trainvitals.trainer.ranks import Rank
from trainvitals.trainer.refusals import Refusals
from trainvitals.trainer.run_document import RunDocument

if TYPE_CHECKING:
    from trainvitals.journal.summaries import SummaryWithMean


class DescribedRun:
    """A run and this process's part in it; the first base of `Run`."""

    def __init__(self, folder: Path, rank: Rank, effective: Settings, file: RunFile) -> None:
        self.folder = folder
        self.role = rank.role
        self.rank = rank.rank
        self.world_size = rank.world_size
        self._rank = rank
        self._settings = effective
        self._document = RunDocument(folder, file, rank, effective)
        self._refusals = Refusals(effective.strict)

    @property
    def id(self) -> str:
        return self._document.file.id

    @property
    def project(self) -> str:
        return self._document.file.project

    @property
    def name(self) -> str:
        return self._document.file.name

    @property
    def attempt(self) -> int:
        return self._document.file.attempt

    @property
    def config(self) -> Mapping[str, Any]:
        return self._document.file.config or {}

    @property
    def tags(self) -> tuple[str, ...]:
        return self._document.file.tags

    @property
    def notes(self) -> str:
        return self._document.file.notes

    @property
    def participant(self) -> Participant:
        """Which participant of the run this process is."""
        return self._rank.participant

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    @property
    def summary(self) -> dict[str, SummaryWithMean]:
        """Last, min and max of every metric with their steps, and the mean, read back from the folder."""
        from trainvitals.journal.reader import RunReader
        from trainvitals.journal.summaries import SummaryWithMean

        reader = RunReader(self.folder)
        found = reader.summary(participant=self.participant)
        means = reader.means(found, self.participant)
        return {name: SummaryWithMean(**asdict(item), mean=means.get(name)) for name, item in found.items()}

    def __repr__(self) -> str:
        return f"<trainvitals run {self.id} in {self.folder}>"

    def add_config(self, values: Mapping[str, Any]) -> None:
        """Add to the configuration what is known only now; existing values are kept."""
        try:
            self._document.add_config(values)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

    def change(self, *, config: Mapping[str, Any] | None = None, **fields: str | tuple[str, ...]) -> None:
        """Another `name`, `notes` or `tags`, or other values in the configuration, whose other values stay."""
        try:
            self._document.revise(config=config, **fields)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)
