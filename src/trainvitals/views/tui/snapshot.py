"""What the screen requests from the feed, and what it gets: frozen and complete, so that drawing never waits and never
sees half a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainvitals.analysis.health import Health
from trainvitals.analysis.progress import Progress
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.identity import Participant
from trainvitals.views.data.run_rows import ListedRun
from trainvitals.views.panels import Panel

if TYPE_CHECKING:
    # numpy takes 130 ms to import: the first frame does not wait for it.
    import numpy as np
    from numpy.typing import NDArray

    from trainvitals.analysis.findings import Finding
    from trainvitals.journal.points import Axis
    from trainvitals.views.data.machines import MachineNow

    Floats = NDArray[np.float64]

Value = float | int | str
WELL = Health("healthy", "ok")


@dataclass(frozen=True, slots=True)
class Request:
    """What the screen wants to show."""

    page: str = "overview"
    filter: str = ""
    """Words that a charted metric must contain."""
    offset: int = 0
    charts: int = 6
    axis: Axis = "step"
    window: tuple[float, float] | None = None
    """A range of the axis in full resolution; None is all of it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG slice, as last read."""

    key: str
    index: str
    """`0`, or `0:2` for a slice."""
    name: str
    uuid: str
    values: Mapping[str, Value]
    time: float
    """When it was read, seconds since 1970."""
    problem: str = ""
    """Why there is no new sample: `no response for 12 s`, `lost`; empty while it responds."""
    simulated: bool = False
    host: str = ""
    history: tuple[float, ...] = ()
    """The newest utilization values, oldest first."""

    @property
    def is_slice(self) -> bool:
        return ":" in self.index

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) else None


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process that uses a GPU, belongs to a run, or is among the busiest of the machine."""

    pid: int
    command: str
    user: str = ""
    gpus: tuple[str, ...] = ()
    run: str = ""
    participant: Participant | None = None
    cpu_percent: float | None = None
    rss_mb: float | None = None
    gpu_memory_mb: float | None = None
    sm_percent: float | None = None
    threads: int | None = None
    state: str = ""
    age: float | None = None
    """Seconds since it started."""
    start: float | None = None
    """Distinguishes it from a later process with the same pid; in the platform's unit."""
    job: str = ""
    """What a scheduler knows it as: `Slurm job 4711`, `pod vision/trainer-0`."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. `x` is ascending; NaN and infinity in `y` are data."""

    metric: str
    label: str
    """The device or rank: `GPU 0`, `rank 3`; empty if there is only one."""
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel with its data."""

    panel: Panel
    axis: Axis
    lines: tuple[Line, ...]
    total: int = 0
    """Number of curves, of which `lines` are the first."""
    of: str = ""
    """The run it belongs to; empty for this machine."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One participant of the run."""

    participant: Participant
    host: str = ""
    pid: int | None = None
    step: int | None = None
    step_time: float | None = None
    """Median of the newest steps, seconds."""
    ratios: tuple[float | None, ...] = ()
    """Step times of the newest steps relative to the median of its role at that time; oldest first."""
    seen: float | None = None
    """When it logged last."""
    cpu_percent: float | None = None
    rss_mb: float | None = None


class Restart(NamedTuple):
    """Where a later attempt of a run begins."""

    time: float | None
    step: int | None
    """None if it logged no step."""


class Judged(NamedTuple):
    """What the diagnosis of the run came to."""

    findings: tuple[Finding, ...]
    """The worst first, and what explains it before it."""
    passed: int
    """Checks that found nothing."""
    skipped: int
    """Checks whose data is missing."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Without what is only information, as on the page's overview."""
        return tuple(finding for finding in self.findings if finding.severity != "info")


@dataclass(frozen=True, slots=True)
class RunState:
    """The run that is shown."""

    id: str
    name: str
    project: str
    folder: str
    status: str
    cause: str
    live: bool
    started: float | None
    ended: float | None
    attempt: int
    simulated: bool
    step: int | None = None
    progress: Progress = field(default_factory=Progress)
    step_seconds: float | None = None
    """Recent duration of a step."""
    last_step_time: float | None = None
    """When a step was logged last, seconds since 1970."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The newest value of every metric of the lowest participant, by catalog name where it has one."""
    ranks: tuple[RankRow, ...] = ()
    restarts: tuple[Restart, ...] = ()
    """Of every attempt but the first."""
    seconds_before: float = 0.0
    """How long the attempts before the newest took."""
    job: str = ""
    """What a scheduler knows it as."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the screen shows, at one moment."""

    time: float
    host: str = ""
    origin: str = ""
    """Where the hardware numbers are from: `agent`, `own sampling`, `run folder`, or empty before the first."""
    gpus: tuple[Gpu, ...] = ()
    system: Mapping[str, Value] = field(default_factory=dict)
    driver: str = ""
    """Versions of the GPUs' driver, where it is known."""
    processes: tuple[ProcessRow, ...] = ()
    on_gpus: tuple[ProcessRow, ...] = ()
    """The processes on the GPUs shown, by GPU and memory; read for the overview."""
    run: RunState | None = None
    runs: tuple[ListedRun, ...] = ()
    machines: tuple[MachineNow, ...] = ()
    """Those of `--host`."""
    health: Health = WELL
    """Of the run; where none is shown, of this machine."""
    alerts: tuple[AlertRow, ...] = ()
    """Every change of every alert, in order of time."""
    active: tuple[AlertRow, ...] = ()
    """The active alerts, worst first, with `silenced` and `acknowledged` where somebody requested it."""
    firing: tuple[AlertRow, ...] = ()
    """Those of them that are not silenced."""
    judged: Judged | None = None
    """None until the run was diagnosed for the first time."""
    events: tuple[EventRow, ...] = ()
    output: tuple[str, ...] = ()
    """The newest lines of the program's output: always under `trainvitals run --top`, otherwise on the events page, if
    they are kept."""
    panels: tuple[Panel, ...] = ()
    """All charts that have data and match the filter, most important first."""
    charts: tuple[Chart, ...] = ()
    """The requested ones of `panels`, with their data."""
    notes: tuple[str, ...] = ()
    """Notices such as a missing driver or a folder that vanished. One sentence each."""
    waiting: bool = False
    """True until the first reading."""


EMPTY = Snapshot(time=0.0, waiting=True)
