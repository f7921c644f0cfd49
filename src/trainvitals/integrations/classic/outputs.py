"""Where a GPUMonitor's readings go besides the program: a run folder, and a page for Prometheus.

Tested in tests/integrations/test_classic.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainvitals import runtime, settings
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import MONITOR, RunFile, new_run
from trainvitals.journal.encoding import encode_line
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter
from trainvitals.newest import Newest
from trainvitals.sources import Sample
from trainvitals.trainer import facts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from trainvitals.exporters.families import FamilyOptions


class SampleOutput(Protocol):
    def take(self, samples: Sequence[Sample], rows: Sequence[dict[str, Any]]) -> None: ...
    def close(self) -> None: ...


class LogFolder:
    """`log_dir`: a run folder like that of `trainvitals monitor`; another attempt if it is there already."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """JournalError or OSError if it cannot be written."""
        self._folder = Path(folder).absolute()
        effective = settings.resolve_for_training({})
        self._mode = effective.file_mode
        before = run_folder.find_run(self._folder)
        attempt = before.attempt + 1 if before is not None else 1
        run_folder.create(self._folder, effective.shared)
        self._run: RunFile = new_run(
            self._folder.name,
            kind=MONITOR,
            project="monitor",
            name=self._folder.name,
            facts=facts.capture(effective, config=None, argv=sys.orig_argv, environ=os.environ, cwd=Path.cwd()),
            pid=os.getpid(),
            attempt=attempt,
            before=before,
            correlation_id=facts.correlation_id(os.environ),
        )
        run_folder.replace_run(self._folder, self._run, before, self._mode)
        self._writer = LineWriter(self._folder, FileName("gpu", attempt, ""))

    def take(self, samples: Sequence[Sample], rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            self._writer.append(encode_line(row))

    def close(self) -> None:
        self._writer.close()
        run_folder.replace_run(self._folder, self._run.end("finished"), self._run, self._mode)


class MetricsPage:
    """`prometheus_port`: the readings as `trainvitals monitor --prometheus-port` serves them."""

    def __init__(self, port: int, interval: float) -> None:
        """OSError if the port is taken."""
        from trainvitals.exporters import page
        from trainvitals.exporters.contracts import Order

        self._interval = interval
        self._newest = Newest()
        self._host, self._started = runtime.host_name(), time.time()
        order = Order(
            target="",
            settings=settings.resolve_for_training({"prometheus_port": port}),
            collect=self._collect,
            host=self._host,
            started=self._started,
            folder=Path(),
            warn=lambda text: None,
        )
        self._server = page.start(order)

    def take(self, samples: Sequence[Sample], rows: Sequence[dict[str, Any]]) -> None:
        self._newest.take("monitor", "monitor", samples, time.monotonic(), self._interval)

    def _collect(self, options: FamilyOptions) -> list[Metric]:
        from trainvitals.exporters.families import MetricsSnapshot, build

        return build(MetricsSnapshot(self._host, self._started, tuple(self._newest.things("gpu"))), options)

    def close(self) -> None:
        self._server.close()
