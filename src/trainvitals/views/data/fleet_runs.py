"""What the fleet pages know of each run: who started it, on which hosts it is, which GPUs it holds and what these did.
All of it is in run.json and status.json, wherever the runs are kept. Tested in tests/views/data/test_fleet.py."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from trainvitals.analysis.gpu_days import MOST_DAYS
from trainvitals.analysis.gpu_use import KeptGpu, kept_gpus
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import Runs
from trainvitals.journal.documents.run import UNREADABLE
from trainvitals.journal.documents.status import AlertStatus, Status
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo
from trainvitals.safe_text import one_line

MOST_GPUS = 64
"""Of one host."""
FRESH_SECONDS = 2.0
REST = 5
"""What took long to read is read less often: it is shown for so many times as long."""
LOOK_AGAIN_SECONDS = 60.0
"""An ended run may be continued, edited or removed; it is not read again sooner."""
RACK_LABEL = "rack"
"""Of pods."""


@dataclass(frozen=True, slots=True)
class HostPart:
    """A run on one host, as the agent there reported it last."""

    host: str
    rack: str
    updated: float | None
    """Seconds since 1970."""
    pids: tuple[int, ...]
    """Processes that live, in order of their rank."""
    participants: frozenset[Participant]
    gpus: tuple[KeptGpu, ...]
    """All that were measured, held or not."""
    held: frozenset[str]
    alerts: tuple[AlertStatus, ...]

    def holds(self, gpu: KeptGpu) -> bool:
        """Whether the run holds this GPU. Those that do not exist are nobody else's."""
        return gpu.simulated or gpu.key in self.held


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One run."""

    key: str
    info: RunInfo
    parts: tuple[HostPart, ...]

    @property
    def user(self) -> str:
        """Who started it; empty if that was not recorded."""
        return one_line(self.info.file.user)[:80]

    @property
    def hosts(self) -> Iterator[str]:
        return (part.host for part in self.parts)

    @property
    def is_live(self) -> bool:
        return self.info.is_live

    def host_of(self, participant: Participant) -> str | None:
        """Where this participant is or was last."""
        return next((part.host for part in self.parts if participant in part.participants), None)


class FleetBook:
    """Remembers ended runs: of thousands, only those that live are read each time. Safe for several threads."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[float, FleetRun]] = {}
        self._found: list[FleetRun] = []
        self._until = 0.0
        self._lock = threading.Lock()

    def read(self, runs: Runs, keys: Iterable[str]) -> list[FleetRun]:
        """Those of the last weeks, oldest first."""
        with self._lock:
            begun = time.monotonic()
            if begun >= self._until:
                self._found = self._look(runs, keys, begun)
                ended = time.monotonic()
                self._until = ended + max(FRESH_SECONDS, REST * (ended - begun))
            return self._found

    def _look(self, runs: Runs, keys: Iterable[str], now: float) -> list[FleetRun]:
        known = self._ended
        ended: dict[str, tuple[float, FleetRun]] = {}
        found = []
        for key in keys:
            until, run = known.get(key, (0.0, None))
            if run is None or now >= until:
                run = _read(runs, key)
                # Not all of them again at the same moment.
                until = now + LOOK_AGAIN_SECONDS * (0.5 + zlib.crc32(key.encode("utf-8", "replace")) % 1000 / 1000)
            if run is None:
                continue
            if not run.is_live:
                ended[key] = (until, run)
            found.append(run)
        self._ended = ended
        return found


def _read(runs: Runs, key: str) -> FleetRun | None:
    try:
        info = runs.describe(key)
        if info.status == UNREADABLE:
            return None
        ended = parse_time(info.ended)
        is_old = not info.is_live and (ended is None or ended < time.time() - MOST_DAYS * 86_400)
        parts = () if is_old else tuple(_read_part(status, info) for status in runs.statuses(key) if status.host)
    except (TrainvitalsError, OSError):
        return None  # removed meanwhile
    return FleetRun(key, info, parts)


def _read_part(status: Status, info: RunInfo) -> HostPart:
    alive = {key: rank.pid for key, rank in status.ranks.items() if rank.alive and rank.pid is not None}
    return HostPart(
        host=one_line(status.host)[:200],
        rack=one_line(status.rack or info.file.placed.labels.get(RACK_LABEL, ""))[:80],
        updated=parse_time(status.updated),
        # Under `trainvitals run` the same process is its command and a rank.
        pids=tuple(dict.fromkeys(alive.values())),
        participants=frozenset(status.participants()),
        gpus=tuple(islice(kept_gpus(status), MOST_GPUS)),
        held=frozenset(status.held_gpus or ()),
        alerts=status.alerts if status.attempt in (None, info.attempt) else (),
    )
