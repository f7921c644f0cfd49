"""Names in a run folder, and nothing else: how files are named and what a name means.

    <table>_metrics_YYYYMMDD_HHMMSS[[.role-R].rankN][.pidP][.host-H][.attemptK].jsonl   written by one process
    events_YYYYMMDD_HHMMSS[...].jsonl   alerts_YYYYMMDD_HHMMSS[...].jsonl
    segments/<same stem>.parquet        a closed file, sealed
    segments/<same stem>.minmax.parquet its 1:1000 side table

The stamp orders the files of one writer. It is the wall clock, but never earlier than the writer's newest file plus
one second, so a clock that is set back or two rotations in one second keep their order.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainvitals.journal.identity import TRAINER, Participant

RUN_FILE = "run.json"
STATUS_FILE = "status.json"
FINDINGS_FILE = "findings.json"
MOVED_FILE = "moved.json"
"""Only in a store: of a run that goes on in another project."""
REMOVED_FILE = "removed.json"
"""Only in a store: of a run that was removed there."""
VIEW_FILE = "view.json"
SEGMENTS = "segments"
SIDE = ".minmax.parquet"
STACKS = "stacks"
MEDIA = "media"
BENCHMARKS = "benchmarks"
PATCHES = "patches"
REPORTS = "reports"
_LONGEST_NAME = 80
STAMP_FORMAT = "%Y%m%d_%H%M%S"

METRIC_TABLES = ("training", "gpu", "system", "process", "openmetrics", "source")
LINE_TABLES = ("events", "alerts")

# Keys that identify what a line is about, rather than what was measured.
LABEL_KEYS = {
    "gpu": (
        *("gpu_index", "gpu_uuid", "gpu_name", "vendor", "host"),
        *("simulated", "mig_parent", "mig_index", "memory_kind"),
    ),
    "system": ("host",),
    "process": ("run_id", "role", "rank", "pid", "host"),
    "source": ("source", "unit", "host"),
}
# Tables whose lines may have any labels: what is text there is a label.
TEXT_IS_LABEL = frozenset({"openmetrics"})

_NAME = re.compile(
    r"^(?:(?P<table>[a-z]+)_metrics|(?P<lines>events|alerts))_(?P<stamp>\d{8}_\d{6})"
    r"(?:(?:\.role-(?P<role>[a-z0-9_]+))?\.rank(?P<rank>\d+))?"
    r"(?:\.pid(?P<pid>\d+))?(?:\.host-(?P<host>[A-Za-z0-9_-]+))?"
    r"(?:\.attempt(?P<attempt>\d+))?"
    r"(?P<suffix>\.jsonl|\.parquet|\.minmax\.parquet)$"
)


class FileName(NamedTuple):
    """The parts of the name of a journal file. Tuples sort in reading order within a table."""

    table: str
    attempt: int
    stamp: str
    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    role: str = TRAINER

    @property
    def stem(self) -> str:
        """The name without its suffix; the same for the JSONL file and its sealed segment."""
        head = self.table if self.table in LINE_TABLES else f"{self.table}_metrics"
        parts = [f"{head}_{self.stamp}"]
        if self.rank is not None:
            parts.append(self.participant.file_part)
        if self.pid is not None:
            parts.append(f"pid{self.pid}")
        if self.host is not None:
            parts.append(f"host-{self.host}")
        if self.attempt > 1:
            parts.append(f"attempt{self.attempt}")
        return ".".join(parts)

    @property
    def jsonl(self) -> str:
        return f"{self.stem}.jsonl"

    @property
    def order(self) -> tuple[int, str]:
        """Ascending for the files of one writer."""
        return (self.attempt, self.stamp)

    @property
    def participant(self) -> Participant:
        """Whose file it is, where it is one of a participant."""
        return Participant(self.role, self.rank or 0)

    @property
    def writer(self) -> tuple[str, str, int | None, int | None, str | None]:
        """Who writes: files with the same writer follow each other in time."""
        return (self.table, self.role, self.rank, self.pid, self.host)


def parse_name(name: str) -> tuple[FileName, str] | None:
    """(the parts of the name, its suffix), or None for a file that is not part of the journal."""
    match = _NAME.match(name)
    if match is None:
        return None
    rank, pid, attempt = (match[key] for key in ("rank", "pid", "attempt"))
    return (
        FileName(
            table=match["table"] or match["lines"],
            attempt=int(attempt or 1),
            stamp=match["stamp"],
            rank=int(rank) if rank is not None else None,
            pid=int(pid) if pid is not None else None,
            host=match["host"],
            role=match["role"] or TRAINER,
        ),
        match["suffix"],
    )


def host_token(host: str) -> str:
    """A host name as allowed in a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", host).strip("-") or "host"


def status_file(token: str | None) -> str:
    """What the agent of a host writes, by how the host is called in the names of its files; None if it is not."""
    return STATUS_FILE if token is None else f"status.host-{token}.json"


def safe_name(name: str) -> str:
    """What a user named, as the name of one file or folder; two names never share one."""
    clean = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:_LONGEST_NAME]
    if clean == name and clean:
        return clean
    import hashlib  # a training without such names does without

    return f"{clean}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def next_stamp(taken: Iterable[str], now: float | None = None) -> str:
    """The clock as a stamp, moved past every stamp already `taken`."""
    stamp = time.strftime(STAMP_FORMAT, time.gmtime(now if now is not None else time.time()))
    latest = max(taken, default="")
    if stamp > latest:
        return stamp
    following = _seconds(latest) + 1
    return time.strftime(STAMP_FORMAT, time.gmtime(following))


def _seconds(stamp: str) -> int:
    import calendar  # only needed when a stamp collides

    return calendar.timegm(time.strptime(stamp, STAMP_FORMAT))


def is_regular(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one. A pipe or a device of such a name would be waited for without end."""
    try:
        return entry.is_file()
    except OSError:
        return False  # a link that leads to itself


def _parse_entry(entry: os.DirEntry[str]) -> tuple[FileName, str] | None:
    parsed = parse_name(entry.name)
    return parsed if parsed is not None and is_regular(entry) else None


def list_files(folder: Path) -> list[tuple[FileName, str, Path]]:
    """Every journal file of a run folder, sealed ones included, in reading order."""
    found: list[tuple[FileName, str, Path]] = []
    for place in (folder, folder / SEGMENTS):
        try:
            with os.scandir(place) as entries:
                found += [(*parsed, place / entry.name) for entry in entries if (parsed := _parse_entry(entry))]
        except (FileNotFoundError, NotADirectoryError):
            continue
    return in_reading_order(found)


def in_reading_order(files: list[tuple[FileName, str, Path]]) -> list[tuple[FileName, str, Path]]:
    """By table, and within it as they are read."""
    return sorted(files, key=lambda item: (item[0].table, item[0].attempt, item[0].stamp, repr(item[0].writer[1:])))
