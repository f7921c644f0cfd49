"""Families handed on every interval, from a separate thread: the simplest exporter of families.
Tested in tests/exporters/test_pushgateway.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from prometheus_client.metrics_core import Metric

from trainvitals.redaction import redact_text

PATIENCE = 2.0
"""Seconds for the last push."""


class Pushing:
    """Calls `write` with all families every interval, and once more when a run has ended or the agent ends.

    A `write` that raises is tried again an interval later, counted in `failures`, and reported once.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Metric]], None],
        collect: Callable[[], Sequence[Metric]],
        *,
        interval: float,
        title: str,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._write = write
        self._collect = collect
        self._interval = interval
        self._title = title
        self._warn = warn
        self._trouble: str | None = None
        self.failures = 0
        self._hurry = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=title, daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Push now, not only after the interval."""
        self._hurry.set()

    def close(self) -> None:
        self._ending.set()
        self._hurry.set()
        self._thread.join(PATIENCE)

    def push_now(self) -> None:
        """Push what there is."""
        try:
            self._write(self._collect())
            self._trouble = None
        except Exception as error:  # noqa: BLE001 - the boundary around an exporter, which may be another package's
            self.failures += 1
            text = f"cannot push metrics to {self._title}: {getattr(error, 'reason', None) or error}"
            if text != self._trouble:
                self._trouble = text
                self._warn(redact_text(text))

    def _run(self) -> None:
        ending = False
        while not ending:
            self._hurry.wait(self._interval)
            self._hurry.clear()
            ending = self._ending.is_set()
            self.push_now()
