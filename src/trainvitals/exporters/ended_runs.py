"""Runs that have ended, until every way out has shown their last values. Tested in tests/exporters/test_service.py."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainvitals.exporters.runs import RunView

LINGER_SECONDS = 30.0
"""How long a run that has ended is still there for whoever has not seen its last values."""

Viewer = tuple[str, str]
"""One way out."""


@dataclass(slots=True)
class _Ended:
    run: RunView
    until: float
    unseen: set[Viewer]


class Leaving:
    """Not safe for threads by itself: whoever holds it has the lock."""

    def __init__(self) -> None:
        self._ended: dict[Path, _Ended] = {}

    def add(self, run: RunView, viewers: Iterable[Viewer]) -> None:
        """It has ended, and none of these has seen the end."""
        self._ended[run.folder] = _Ended(run, time.monotonic() + LINGER_SECONDS, set(viewers))

    def forget(self, folders: Iterable[Path]) -> None:
        """These are there again."""
        for folder in folders:
            self._ended.pop(folder, None)

    def runs(self, viewer: Viewer | None = None) -> list[RunView]:
        """All that are still to be shown, or those still to be shown by this one."""
        self._drop_old()
        return [item.run for item in self._ended.values() if viewer is None or viewer in item.unseen]

    def see(self, viewer: Viewer) -> None:
        """It has just shown all of them."""
        for item in self._ended.values():
            item.unseen.discard(viewer)

    def _drop_old(self) -> None:
        now = time.monotonic()
        self._ended = {path: item for path, item in self._ended.items() if item.unseen and item.until > now}
