"""The agent's side of the exporters of rows: one runner for each that a run's settings ask for.
Tested in tests/exporters/test_rows.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trainvitals.exporters.registry import Wish, explain_unusable, wishes_of
from trainvitals.exporters.rows import RowRunner, RunDescription, RunEnd
from trainvitals.exporters.start import start_runner
from trainvitals.journal.documents.status import RowExport
from trainvitals.journal.follower import Relay
from trainvitals.settings import Settings


class RowExporting:
    """All exporters of rows of one run; nothing at all where no setting asks for one."""

    def __init__(
        self, settings: Settings, run: RunDescription, known: Mapping[str, RowExport], warn: Callable[[str], None]
    ) -> None:
        """`known` is what an earlier agent left in status.json."""
        self._known = known
        self._runners = [
            start_runner(wish, run, known.get(wish.exporter.name), warn) for wish in _wishes(settings, run)
        ]
        for text in explain_unusable(settings):
            warn(text)

    def __iter__(self) -> Iterator[RowRunner]:
        """The listeners."""
        return iter(self._runners)

    def have_all(self, relay: Relay) -> bool:
        """Whether all of them have accepted all that the relay had for them."""
        return all(runner.has_all(relay) for runner in self._runners)

    def describe(self) -> dict[str, RowExport]:
        """For status.json: how far each exporter is, including those that this run no longer requests."""
        return {**self._known, **{runner.name: runner.describe() for runner in self._runners}}

    def mark_saved(self) -> None:
        """What `describe` gave last is on disk."""
        for runner in self._runners:
            runner.mark_saved()

    def end(self, end: RunEnd | None, relay: Relay) -> list[str]:
        """No more rows will come: the run has ended, or, for None, the agent does. Waits for all exporters, with the
        patience of each, and returns the names of those that did not come to the end."""
        for runner in self._runners:
            runner.end(end if runner.has_all(relay) else None)
        closed = {runner.name: runner.wait() for runner in self._runners}
        return [name for name, done in closed.items() if not done]


def find_incomplete(settings: Settings, run: RunDescription, known: Mapping[str, RowExport]) -> list[Wish]:
    """The exporters that do not have all of a run that has ended."""
    wishes = _wishes(settings, run)
    return [wish for wish in wishes if not known.get(wish.exporter.name, RowExport()).complete]


def _wishes(settings: Settings, run: RunDescription) -> list[Wish]:
    leads = run.about.process.host in ("", run.host)
    return [wish for wish in wishes_of(settings, "rows") if leads or not wish.exporter.is_mirror]
