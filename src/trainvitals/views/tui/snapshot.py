"""What the screen asks of the feed, and what it gets: frozen and whole, so that drawing never waits and never sees half
a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainvitals.analysis.health import Health
from trainvitals.analysis.progress import Progress
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.identity import Participant
from trainvitals.views.data.run_rows import ListedRun
from trainvitals.views.panels import Panel

if TYPE_CHECKING:
    # numpy takes 130 ms to import: the first picture does not wait for it.
    import numpy as np
    from numpy.typing import NDArray

    from trainvitals.journal.points import Axis

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
    """A stretch of the axis in full resolution; None is all of it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG slice, as it was read last."""

    key: str
    index: str
    """`0`, or `0:2` for a slice."""
    name: str
    uuid: str
    values: Mapping[str, Value]
    time: float
    """When it was read, seconds since 1970."""
    problem: str = ""
    """Why there is nothing new: `no answer for 12 s`, `lost`; empty while it answers."""
    simulated: bool = False
    host: str = ""
    history: tuple[float, ...] = ()
    """The newest utilisations, oldest first."""

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
    """Tells it from a later process with the same pid; in the platform's own unit."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. `x` is ascending; NaN and infinity in `y` are data."""

    metric: str
    label: str
    """What it is of: `GPU 0`, `rank 3`; empty where there is only one."""
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel with its data."""

    panel: Panel
    axis: Axis
    lines: tuple[Line, ...]
    total: int = 0
    """How many curves there are, of which `lines` are the first."""
    of: str = ""
    """The run it is of; empty for this machine."""


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
    """Step times of the newest steps against the median over all of its role at that time; oldest first."""
    seen: float | None = None
    """When it logged last."""
    cpu_percent: float | None = None
    rss_mb: float | None = None


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
    """How long a step took lately."""
    last_step_time: float | None = None
    """When a step was logged last, seconds since 1970."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The newest value of every metric of the lowest participant, by catalog name where it has one."""
    ranks: tuple[RankRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the screen shows, at one moment."""

    time: float
    host: str = ""
    origin: str = ""
    """Where the hardware numbers are from: `agent`, `own sampling`, `run folder`, or empty before the first."""
    gpus: tuple[Gpu, ...] = ()
    system: Mapping[str, Value] = field(default_factory=dict)
    processes: tuple[ProcessRow, ...] = ()
    run: RunState | None = None
    runs: tuple[ListedRun, ...] = ()
    health: Health = WELL
    """Of the run; where none is shown, of this machine."""
    alerts: tuple[AlertRow, ...] = ()
    """Every change of every alert, in order of time."""
    active: tuple[AlertRow, ...] = ()
    """What fires now, the worst first, with `silenced` and `acknowledged` where somebody asked for it."""
    firing: tuple[AlertRow, ...] = ()
    """Those of them that are not silenced."""
    events: tuple[EventRow, ...] = ()
    output: tuple[str, ...] = ()
    """The newest lines that the watched program printed: always under `trainvitals run --top`, elsewhere on the page
    of events, where they are kept."""
    panels: tuple[Panel, ...] = ()
    """Everything that could be charted and fits the filter, in order of importance."""
    charts: tuple[Chart, ...] = ()
    """Those of `panels` that were asked for, with their data."""
    notes: tuple[str, ...] = ()
    """What should be known: no driver, a folder that vanished. One sentence each."""
    waiting: bool = False
    """True until the feed has looked once."""


EMPTY = Snapshot(time=0.0, waiting=True)
