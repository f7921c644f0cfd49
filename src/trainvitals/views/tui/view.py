"""What the user has selected: the page, the filter, the zoom. The screen is a function of this and the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainvitals.conditions import Conditions
from trainvitals.views.tui.palette import PALETTES, Palette
from trainvitals.views.tui.snapshot import ProcessRow

if TYPE_CHECKING:
    from trainvitals.journal.points import Axis

SIGNALS: tuple[tuple[str, str], ...] = (("t", "SIGTERM"), ("i", "SIGINT"), ("k", "SIGKILL"))
"""Keys and signals of the confirmation."""

PAGES: tuple[tuple[str, str], ...] = (
    ("overview", "Overview"),
    ("charts", "Charts"),
    ("processes", "Processes"),
    ("ranks", "Ranks"),
    ("alerts", "Alerts"),
    ("findings", "Findings"),
    ("events", "Events"),
    ("runs", "Runs"),
)

MACHINES = ("machines", "Machines")
"""The page behind the others, where there are other machines."""


def key_of(page: str) -> str:
    """The key that shows a page."""
    return str([name for name, _ in (*PAGES, MACHINES)].index(page) + 1)


PROCESS_SORTS: tuple[tuple[str, str], ...] = (
    ("cpu_percent", "CPU"),
    ("rss_mb", "memory"),
    ("gpu_memory_mb", "GPU memory"),
    ("gpus", "GPU"),
    ("run", "run"),
    ("pid", "PID"),
)


@dataclass
class View:
    """Changed by keys and the mouse, on the screen's thread."""

    palette: Palette = PALETTES[0]
    conditions: Conditions = field(default_factory=Conditions)
    """The thresholds at which numbers are coloured."""
    page: str = "overview"
    with_machines: bool = False
    """Whether there are other machines."""
    selected: dict[str, int] = field(default_factory=dict)
    """Page -> selected row or chart."""
    filters: dict[str, str] = field(default_factory=dict)
    typing: bool = False
    """Whether keys are letters of the filter."""
    typed_on: str | None = None
    """The page from which charts are being chosen, during that."""
    details: bool = False
    help: bool = False
    help_offset: int = 0
    paused: bool = False
    readonly: bool = False
    ascii: bool = False
    full: bool = False
    """One chart on the whole page."""
    other_scale: bool = False
    smooth: bool = True
    axis: Axis = "step"
    windows: dict[Axis, tuple[float, float]] = field(default_factory=dict)
    """Axis -> the range shown; absent is all of it."""
    cross: float | None = None
    """Position of the crosshair, as a share of the width of a chart."""
    sort: int = 0
    descending: bool = True
    asking: ProcessRow | None = None
    """The process to signal, until it is confirmed or cancelled."""
    message: str = ""
    severity: str | None = None
    interval: float = 1.0
    patience: float = 0.0
    """Seconds for which a drawn curve may be reused although there are new points."""
    chart_columns: int = 2
    """How many charts are side by side; set by drawing, used by the arrow keys."""
    gpu_columns: int = 1
    """How many GPUs are side by side on the overview; the same."""
    rows: int = 0
    """How many rows the page's list has; set by drawing."""
    visible: int = 1
    """How many of them fit; set by drawing."""

    def grade(self, table: str, metric: str, value: float | None) -> str | None:
        """How bad a value is; None if it is fine or unknown."""
        return self.conditions.severity_of(table, metric, value) if value is not None else None

    @property
    def pages(self) -> tuple[tuple[str, str], ...]:
        return (*PAGES, MACHINES) if self.with_machines else PAGES

    @property
    def filter(self) -> str:
        return self.filters.get(self.page, "")

    @property
    def row(self) -> int:
        return self.selected.get(self.page, 0)

    def move(self, by: int) -> None:
        """Select another row, within the list."""
        self.selected[self.page] = min(max(self.row + by, 0), max(self.rows - 1, 0))

    def set_filter(self, text: str) -> None:
        self.filters[self.page] = text
        self.selected[self.page] = 0

    def forget_zoom(self) -> None:
        self.windows.clear()
        self.cross = None

    def show_message(self, text: str, severity: str | None = None) -> None:
        """One sentence in the last line, until the next key."""
        self.message, self.severity = text, severity
