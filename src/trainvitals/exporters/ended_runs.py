"""Runs that have ended, for a while: every scraper sees their state, last values and cause.
Tested in tests/exporters/test_service.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from trainvitals.exporters.runs import RunView

Viewer = tuple[str, str]
"""One way out."""


@dataclass(frozen=True, slots=True)
class _Ended:
    run: RunView
    until: float
    viewers: frozenset[Viewer]


class EndedRuns:
    """Not safe for threads by itself: whoever holds it has the lock."""

    def __init__(self) -> None:
        self._ended: dict[Path, _Ended] = {}

    def add(self, run: RunView, viewers: Iterable[Viewer]) -> None:
        """It has ended while these were open: they stay open for it."""
        self._ended[run.folder] = _Ended(run, monotonic() + run.keep_seconds, frozenset(viewers))

    def forget(self, folders: Iterable[Path]) -> None:
        """These are there again."""
        for folder in folders:
            self._ended.pop(folder, None)

    def runs(self, viewer: Viewer | None = None) -> list[RunView]:
        """All that are still shown, or those for which this one stays open."""
        now = monotonic()
        self._ended = {path: item for path, item in self._ended.items() if item.until > now}
        return [item.run for item in self._ended.values() if viewer is None or viewer in item.viewers]
