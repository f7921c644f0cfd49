"""What a view may ask about runs, wherever they are kept.

Views take a `Runs` or a `Reader` and never a path. Folders implement both (`folder_runs.FolderRuns`,
`reader.RunReader`); an engine that keeps the runs of a fleet can replace them.
Tested in tests/views/test_memory_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.row_cache import MakeRow, Row
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.summaries import MetricSummary

if TYPE_CHECKING:  # numpy, which a list of runs does not wait for
    from trainvitals.journal.damage import Damage
    from trainvitals.journal.documents.benchmark import Benchmark
    from trainvitals.journal.points import Axis, Floats

Extent = Mapping[str, int]
"""How many rows of each file of a table are meant, by stem."""
TextKind = Literal["console", "stack"]
"""What the program printed, or a dump of its threads' stacks."""
MediaKind = Literal["image", "table", "text", "histogram"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one participant, GPU, host or process. `x` is ascending; NaN and infinity in `y` are data."""

    name: str
    labels: Mapping[str, Any]
    rank: int | None
    x: Floats
    y: Floats
    total: int
    """Points before any were left out for `max_points`."""
    nonfinite: int
    """How many of these are NaN or infinite."""

    @property
    def participant(self) -> Participant:
        """Whose it is, in a table of participants."""
        return Participant.of(self.labels, self.rank)


@dataclass(frozen=True, slots=True)
class States:
    """What is a word and not a number, such as why a GPU is throttled: when it changed."""

    name: str
    labels: Mapping[str, Any]
    rank: int | None
    changes: Sequence[tuple[float, str]]
    """(seconds since 1970, word), ascending."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text that belongs to a run."""

    name: str
    size: int
    modified: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """The end of a text, as a terminal would show it."""

    name: str
    size: int
    start: int
    """Where `text` begins; before the byte asked for if the text was started over."""
    next: int
    """Where its last unfinished line begins: asking again from there gives that line and what follows."""
    cut: bool
    """Whether something before `start` was left out."""
    text: str


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture, a table or a text that belongs to a run. Of a histogram only the name counts: `Reader.histograms` has
    what it holds."""

    kind: MediaKind
    name: str
    step: int | None
    time: float | None
    """Seconds since 1970."""
    file: str
    """Identifies it within the run."""
    participant: Participant
    facts: Mapping[str, Any]
    """What else is known of it, such as `bytes`, `caption`, `width`: as its writer noted it."""
    read: Callable[[], bytes]
    """Its content; raises JournalError."""


@dataclass(frozen=True, slots=True)
class Patch:
    """What was changed in the repository of a run before an attempt of it, or why that is not known."""

    about: PatchFile
    read: Callable[[], bytes]
    """The patch, byte by byte, where one was kept; raises JournalError."""


class RowFeed(Protocol):
    """New rows of a run as they are written."""

    def poll(self, limit: int | None = None) -> list[tuple[FileName, dict[str, Any]]]:
        """What was written since the last poll, at most about `limit` bytes of each writer."""
        ...


class Reader(Protocol):
    """One run. Not for use from several threads at once. A run that is gone raises RunNotFound."""

    # -- about the run

    @property
    def info(self) -> RunInfo: ...

    def statuses(self) -> list[Status]:
        """What the agent of each host reported last."""
        ...

    def findings(self) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        ...

    def view(self) -> ViewFile | None:
        """How the page shows its project; None if nobody has changed anything, or where it is not kept. Raises
        JournalError if it is damaged."""
        ...

    def damage(self) -> Damage:
        """What could not be understood."""
        ...

    def stamp(self) -> object:
        """Equal to an earlier one as long as nothing was written since."""
        ...

    # -- numbers and words

    def tables(self) -> list[str]: ...

    def names(self, table: str = "training") -> list[str]: ...

    def labels(self, table: str) -> list[dict[str, Any]]: ...

    def participants(self, attempt: int | None = None) -> list[Participant]:
        """Those that logged, in this attempt or in any, the lowest first."""
        ...

    def series(
        self,
        names: Iterable[str],
        *,
        table: str = "training",
        x: Axis = "step",
        start: float | None = None,
        end: float | None = None,
        max_points: int | None = None,
        participants: Iterable[Participant] | None = None,
        all_attempts: bool = False,
    ) -> list[Series]: ...

    def states(self, names: Iterable[str], *, table: str = "gpu") -> list[States]: ...

    def summary(self, table: str = "training", participant: Participant | None = None) -> dict[str, MetricSummary]: ...

    def newest_steps(self, count: int) -> list[tuple[int, float]]: ...

    def first_steps(self) -> dict[int, int]:
        """The first step that each attempt logged."""
        ...

    def histogram_names(self) -> list[str]: ...

    def histograms(self, name: str) -> list[dict[str, Any]]: ...

    # -- lines

    def events(self) -> list[EventRow]: ...

    def alerts(self) -> list[AlertRow]: ...

    def count_benchmarks(self) -> int: ...

    def benchmarks(self) -> list[Benchmark]:
        """By step and time."""
        ...

    def extent(self, table: str = "training") -> Extent: ...

    def rows(self, table: str = "training", extent: Extent | None = None) -> Iterator[dict[str, Any]]: ...

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> RowFeed: ...

    # -- texts

    def texts(self, kind: TextKind) -> list[TextFile]: ...

    def read_text(self, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart: ...

    def patches(self) -> list[Patch]:
        """In order of the attempts of which anything is known."""
        ...

    # -- media

    def media(self) -> list[MediaItem]:
        """In the order in which they were logged."""
        ...


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run that is opened later, by the thread that reads it."""

    place: str
    open: Callable[[], Reader]


@dataclass(frozen=True, slots=True)
class AlertTally:
    """How often one alert of a run fired within some time."""

    key: str
    """Of the run."""
    count: int
    days: int
    """On how many days (UTC)."""
    first: float
    """Seconds since 1970."""
    newest: AlertRow


class Runs(Protocol):
    """Runs by key. What a list shows of them costs no numbers to be read."""

    @property
    def place(self) -> str:
        """Where they are kept, for people."""
        ...

    def list_keys(self) -> list[str]:
        """Every run, oldest first."""
        ...

    def find(self, reference: str) -> str:
        """The key of a run by key, id, name, unique part of either, or `latest`; raises RunNotFound."""
        ...

    def describe(self, key: str) -> RunInfo:
        """The run at a glance: also an unreadable one, with the reason."""
        ...

    def statuses(self, key: str) -> list[Status]: ...

    def alerts(self, key: str) -> list[AlertRow]: ...

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        """Which alerts of these rules fired from `start` to before `end`, in any run, by run, rule and labels."""
        ...

    def findings(self, key: str) -> FindingsFile | None: ...

    def has_values(self, key: str) -> bool:
        """Whether the training logged anything."""
        ...

    def recall(self, key: str, make: MakeRow) -> Row:
        """What `make` gives, as JSON has it. It need not be asked again for an ended run that did not change."""
        ...

    def has_folder(self, project: str) -> bool:
        """Whether runs of this project are known to be there without any of them being read. False says nothing."""
        ...

    def find_view(self, project: str) -> ViewFile | None:
        """How the page shows a project; None if nobody has changed anything. Raises JournalError if it is damaged."""
        ...

    def keep_rows(self) -> None:
        """All have been recalled that somebody wanted: the next program may have them."""
        ...

    def open(self, key: str) -> Reader:
        """A new reader; raises RunNotFound."""
        ...
