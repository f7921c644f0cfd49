"""The agent's side of the exporters of rows: one runner for each that a run's settings ask for.
Tested in tests/exporters/test_rows.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module

from trainvitals.exporters.registry import Wish, explain_unusable, wishes_of
from trainvitals.exporters.rows import RowExporter, RowRunner, RunDescription, RunEnd
from trainvitals.journal.documents.status import RowExport
from trainvitals.settings import Settings
from trainvitals.settings.secrets import is_reference, read_secret


class RowExporting:
    """All exporters of rows of one run; nothing at all where no setting asks for one."""

    def __init__(
        self, settings: Settings, run: RunDescription, known: Mapping[str, RowExport], warn: Callable[[str], None]
    ) -> None:
        """`known` is what an earlier agent left in status.json."""
        self._known = known
        self._runners = [
            RowRunner(wish.exporter.name, partial(_create, wish), run, known.get(wish.exporter.name), warn=warn)
            for wish in wishes_of(settings, "rows")
        ]
        for text in explain_unusable(settings):
            warn(text)

    def __iter__(self) -> Iterator[RowRunner]:
        """The listeners."""
        return iter(self._runners)

    def describe(self) -> dict[str, RowExport]:
        """For status.json: how far each exporter is, those included that this run does not ask for any more."""
        return {**self._known, **{runner.name: runner.describe() for runner in self._runners}}

    def mark_saved(self) -> None:
        """What `describe` gave last is on disk."""
        for runner in self._runners:
            runner.mark_saved()

    def end(self, end: RunEnd | None) -> list[str]:
        """No more rows will come: the run has ended, or, for None, the agent does. Waits for all exporters, with the
        patience of each, and returns the names of those that did not come to the end."""
        for runner in self._runners:
            runner.end(end)
        return [runner.name for runner in self._runners if not runner.wait()]


def _create(wish: Wish) -> RowExporter:
    """Called from the runner's thread: importing the exporter may take its time and fail."""
    target = read_secret(wish.target) if is_reference(wish.target) else wish.target
    made: RowExporter = import_module(wish.exporter.module).create(target, wish.settings)
    return made
