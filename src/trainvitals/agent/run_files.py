"""What the agent writes into a run folder: samples, the health of the sources, events.

A line is written only for a new sample: what is late is marked as late, and nothing old is repeated as fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.agent.reading import Reading
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.wanted import intervals_of, wants_source
from trainvitals.analysis.gpu_use import GpuUses
from trainvitals.journal.documents.events import ProcessEvent
from trainvitals.journal.documents.fields import Document
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.documents.rows import EventRow, new_event
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import read_table
from trainvitals.journal.identity import Participant, gpu_key, is_gpu_named
from trainvitals.journal.writer import MIB, LineWriter
from trainvitals.sources import Notice, Sample


class RunLines:
    """The agent's files in one run folder, one per table, and which samples belong into them."""

    def __init__(self, context: RunContext, attempt: int, gpu_use: GpuUses) -> None:
        self._context = context
        self._settings = context.settings
        self._also = {"correlation_id": context.correlation_id} if context.settings.correlation_ids else {}
        self._attempt = attempt
        self._intervals = intervals_of(context.settings)
        self._targets = _target_names(context.openmetrics_urls)
        self._writers: dict[str, LineWriter] = {}
        self._due: dict[str, float] = {}
        self.gpu_use = gpu_use
        self.until: float | None = None
        """When the run ended: what was sampled later is not the run's, though its process may live on."""
        self.listen: Callable[[Sample], None] | None = None
        """Is given every sample that is written."""
        self.gpus: dict[str, Sample] = {}
        """The newest line of each GPU, by UUID or number."""
        self.processes: dict[Participant, Sample] = {}
        """The newest line of each participant's processes."""

    @property
    def shortest_interval(self) -> float:
        return min(self._settings.interval, *self._intervals.values())

    @property
    def dropped(self) -> int:
        """Lines lost because the disk stayed full."""
        return sum(writer.dropped for writer in self._writers.values())

    @property
    def open_files(self) -> set[str]:
        return {writer.path.name for writer in self._writers.values()}

    def take(self, reading: Reading) -> list[Notice]:
        """Write the lines of this reading that the run wants. Returns what is to become events."""
        if not wants_source(self._settings, reading.source):
            return []
        notices: list[Notice] = []
        samples: list[Sample] = []
        for item in reading.items:
            if isinstance(item, Notice):
                if self._concerns(item.data):
                    notices.append(item)
            elif (self.until is None or item.time <= self.until) and self._concerns(item.labels):
                samples.append(item)
        if samples and self._is_due(reading, samples[0].table):
            for sample in samples:
                self._write_sample(sample, reading)
        return notices

    def write_health(self, healths: Mapping[str, SourceHealth]) -> None:
        """A line for each unit of each source that the run wants."""
        now = format_time()
        for unit, health in healths.items():
            mine = health.source != "process" or unit.startswith(f"process:{self._context.run_id}:")
            if mine and wants_source(self._settings, health.source):
                labels = {"source": health.source, "unit": unit, "host": self._context.host}
                self._append("source", {"timestamp": now, **labels, **health.values()})

    def write_event(
        self,
        event: str,
        message: str,
        *,
        severity: str = "info",
        about: Participant | None = None,
        data: Document | Mapping[str, Any] | None = None,
        when: float | None = None,
    ) -> None:
        """Write down that something happened; `when` in seconds since 1970, now by default."""
        row = new_event(
            event,
            message,
            when=when,
            severity=severity,
            correlation_id=self._context.correlation_id,
            host=self._context.host,
            data=data,
            **(about.labels if about is not None else {}),
        )
        self._append("events", row.as_json())

    def begin_attempt(self, attempt: int) -> None:
        """Write into files of another attempt from now on."""
        self.close()
        self._writers.clear()
        self._attempt = attempt

    def tend(self) -> None:
        """Start new files where they are old, and try again where the disk was full."""
        for writer in self._writers.values():
            writer.rotate_if_due()
            if writer.waiting:
                writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close(seconds=0.2)

    def _append(self, table: str, row: Mapping[str, Any]) -> None:
        writer = self._writers.get(table)
        if writer is None:
            writer = self._writers[table] = LineWriter(
                self._context.folder,
                self._context.file_name(table, self._attempt),
                rotate_bytes=int(self._settings.rotate_size_mb * MIB),
                mode=self._settings.file_mode,
                on_trouble=self._warn,
            )
        writer.append(encode_line({**row, **self._also} if self._also else row))

    def _warn(self, text: str) -> None:
        self._context.log.warning("cannot write to the run folder", reason=text)

    def _write_sample(self, sample: Sample, reading: Reading) -> None:
        row: dict[str, Any] = {
            "timestamp": format_time(sample.time),
            **sample.labels,
            "host": self._context.host,
            **sample.values,
        }
        if reading.late:
            row["late_seconds"] = reading.duration
        self._append(sample.table, row)
        if self.listen is not None:
            self.listen(sample)
        if sample.table == "gpu":
            self.gpu_use.add(sample.labels, sample.values, sample.time)
            self.gpus[gpu_key(sample.labels)] = sample
        elif sample.table == "process":
            self.processes[Participant.of(sample.labels)] = sample

    def _is_due(self, reading: Reading, table: str) -> bool:
        """Whether this run, which may want fewer samples than another, wants this one."""
        interval = self._intervals.get(table, self._settings.interval)
        if interval <= reading.interval:
            return True
        due = self._due.get(reading.unit, reading.moment)
        if reading.moment < due - reading.interval / 2:
            return False
        behind = reading.moment - due > interval
        self._due[reading.unit] = (reading.moment if behind else due) + interval
        return True

    def _concerns(self, labels: Mapping[str, Any]) -> bool:
        """Whether what these labels speak of belongs to this run."""
        if labels.get("run_id", self._context.run_id) != self._context.run_id:
            return False
        if "target" in labels and labels["target"] not in self._targets:
            return False
        index = labels.get("gpu_index")
        if labels.get("simulated") and isinstance(index, int) and index >= self._settings.simulate_gpus:
            return False
        wanted = self._settings.gpus
        if wanted is None or (index is None and "gpu_uuid" not in labels):
            return True
        return any(is_gpu_named(item, labels) for item in wanted)


def read_rank_events(folder: Path, host: str) -> set[tuple[str, Participant, int]]:
    """(event, participant, pid) of what earlier agents of this host wrote about ranks, so that it is not written
    again."""
    written: set[tuple[str, Participant, int]] = set()
    for _, line in read_table(folder, "events"):
        row = EventRow.parse(line)
        pid = row.details(ProcessEvent).pid
        if row.host == host and pid is not None and row.participant is not None:
            written.add(("rank_ended" if row.event == "rank_lost" else row.event, row.participant, pid))
    return written


def _target_names(urls: tuple[str, ...]) -> frozenset[str]:
    if not urls:
        return frozenset()
    from trainvitals.sources.openmetrics import target_name

    return frozenset(target_name(url) for url in urls)
