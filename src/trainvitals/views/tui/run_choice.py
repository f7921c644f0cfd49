"""Which run is shown: the selected one, else the newest live one on this machine.
Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainvitals import runtime
from trainvitals.journal.contracts import RunRef
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.folder import is_run
from trainvitals.journal.folder_runs import refer_to


class RunChoice:
    """`choose` may be called from any thread, `find` from one."""

    def __init__(self, chosen: RunRef | None = None, holds: Callable[[int], bool] | None = None) -> None:
        """With `holds`, only runs of processes for which it is true."""
        self._chosen = chosen
        self._holds = holds
        self._found: tuple[str, RunRef] | None = None
        """The run that was found and its id, while none is selected."""

    def choose(self, run: RunRef | None) -> None:
        """None is whatever runs on this machine."""
        self._chosen, self._found = run, None

    def find(self, registered: Sequence[Registration]) -> RunRef | None:
        """The run to show, given the processes of this machine."""
        if self._chosen is not None:
            return self._chosen
        alive = [entry for entry in registered if self._is_candidate(entry)]
        if alive:
            newest = max(alive, key=lambda entry: entry.run_id)
            # A program that starts several runs continues as the first of them when a later one has ended.
            is_earlier = self._found is not None and newest.run_id < self._found[0] and is_run(self._found[1].place)
            if self._holds is None or not is_earlier:
                self._found = (newest.run_id, refer_to(Path(newest.folder)))
        # The run shown so far has ended: it stays on the screen, with how it ended.
        return self._found[1] if self._found is not None else None

    def _is_candidate(self, entry: Registration) -> bool:
        if entry.kind == "monitor" or not runtime.is_same_process(entry.pid, entry.pid_start):
            return False
        if self._holds is not None and not self._holds(entry.pid):
            return False
        return is_run(entry.folder)
