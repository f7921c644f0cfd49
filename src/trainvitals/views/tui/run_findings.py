"""The findings of the run that is shown: judged in the background as the page, `diagnose` and the report judge it.
Tested in tests/views/tui/test_run_findings.py.
"""

from __future__ import annotations

import threading
import time

from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import RunRef
from trainvitals.journal.run_info import RunInfo
from trainvitals.settings import Settings
from trainvitals.views.tui.snapshot import Judged

FIRST_SECONDS = 0.5
"""The first frames come first, and who looks through the list of runs does not have each of them judged."""
AGAIN_SECONDS = 30.0
MOST_SHARE = 0.02
"""Of a core: a long run takes seconds to judge, and is judged more rarely."""


class RunFindings:
    """Of one run: what was kept of one that has ended, else judged here. `read` never waits."""

    def __init__(self, run: RunRef, settings: Settings) -> None:
        self.place = run.place
        self.problem = ""
        """Why it could not be judged the last time."""
        self._run = run
        self._settings = settings
        self._last: Judged | None = None
        self._due = time.monotonic() + FIRST_SECONDS
        self._judged_as: tuple[int, bool] | None = None
        """Attempt, and whether it was live: both change what is to be said at once."""
        self._stamp: object = None
        self._thread: threading.Thread | None = None

    def read(self, info: RunInfo | None) -> Judged | None:
        """As judged last, None before the first time; judges again in a thread once it is due."""
        if info is None or (self._thread is not None and self._thread.is_alive()):
            return self._last
        state = (info.attempt, info.is_live)
        has_changed = self._judged_as is not None and state != self._judged_as
        if has_changed or time.monotonic() >= self._due:
            self._judge_in_thread(state)
        return self._last

    def wait(self, info: RunInfo | None, seconds: float) -> Judged | None:
        """The first time, at once: for a frame that has no next one."""
        if info is not None and self._thread is None:
            self._judge_in_thread((info.attempt, info.is_live))
            assert self._thread is not None
            self._thread.join(seconds)
        return self._last

    def _judge_in_thread(self, state: tuple[int, bool]) -> None:
        self._thread = threading.Thread(target=self._judge, args=(state,), name="top-findings", daemon=True)
        self._thread.start()

    def _judge(self, state: tuple[int, bool]) -> None:
        began = time.monotonic()
        try:
            self._read_anew(state)
            self.problem = ""
        except TrainvitalsError as error:
            self.problem = error.message
        except Exception as error:  # noqa: BLE001 - the boundary around all that is read: the rest of the screen stays
            self.problem = f"{type(error).__name__}: {error}"
        self._judged_as = state
        took = time.monotonic() - began  # at least its CPU time, and what another machine or a slow disk took
        self._due = time.monotonic() + max(AGAIN_SECONDS, took / MOST_SHARE)

    def _read_anew(self, state: tuple[int, bool]) -> None:
        from trainvitals.analysis.findings import Finding
        from trainvitals.views.data.diagnosis import read_findings

        reader = self._run.open()
        stamp = reader.stamp()
        if stamp == self._stamp and state == self._judged_as:
            return
        found = read_findings(reader, self._settings)
        rows = tuple(
            Finding(**{**row, "evidence": tuple(row["evidence"]), "about": tuple(row["about"])})
            for row in found["findings"]
        )
        self._last = Judged(rows, len(found["fine"]), len(found["not_judged"]))
        self._stamp = stamp
