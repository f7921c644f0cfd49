"""A run of another machine, as `contracts.Reader`: every question goes there, and what comes back is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trainvitals.errors import MachineError
from trainvitals.journal import layout
from trainvitals.journal.contracts import Extent, MediaItem, Patch, Series, States, TextFile, TextKind, TextPart
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.fields import mapping, mapping_of, text, whole
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.summaries import MetricSummary
from trainvitals.lab import codec
from trainvitals.lab.messages import Message

if TYPE_CHECKING:
    from trainvitals.journal.damage import Damage
    from trainvitals.journal.points import Axis

MOST_POLLS = 1000
"""In a row, of one run whose new lines do not end."""


class AskRun(Protocol):
    """Asks about one run; raises MachineError, RunNotFound and JournalError."""

    def __call__(self, asked: str, **more: Any) -> Message: ...


class RemoteReader:
    """Implements `contracts.Reader`. For one thread at a time, as every reader."""

    def __init__(
        self, machine: str, ask: AskRun, find_summary: Callable[[], Mapping[str, MetricSummary] | None]
    ) -> None:
        """`find_summary` knows what the list of runs came with, if it did."""
        self._machine = machine
        self._ask = ask
        self._find_summary = find_summary

    def _get(self, asked: str, **more: Any) -> Any:
        return self._ask(asked, **more).json.get("is")

    # -- about the run

    @property
    def info(self) -> RunInfo:
        return codec.load_info(codec.require(mapping(self._get("info")), "no run"), self._machine)

    def statuses(self) -> list[Status]:
        return [Status.parse(item) for item in codec.load_objects(self._get("statuses"))]

    def findings(self) -> FindingsFile | None:
        found = mapping(self._get("findings"))
        return FindingsFile.parse(found) if found is not None else None

    def view(self) -> ViewFile | None:
        """How a machine shows a project is its own."""
        return None

    def damage(self) -> Damage:
        return codec.load_damage(self._get("damage"))

    def stamp(self) -> object:
        return text(self._get("stamp"))

    # -- numbers and words

    def tables(self) -> list[str]:
        return codec.load_texts(self._get("tables"))

    def names(self, table: str = "training") -> list[str]:
        return codec.load_texts(self._get("names", table=table))

    def labels(self, table: str) -> list[dict[str, Any]]:
        return codec.load_objects(self._get("labels", table=table))

    def participants(self, attempt: int | None = None) -> list[Participant]:
        return codec.load_participants(self._get("participants", attempt=attempt))

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
    ) -> list[Series]:
        return codec.load_series(
            self._ask(
                "series",
                names=list(names),
                table=table,
                x=x,
                start=start,
                end=end,
                max_points=max_points,
                participants=list(map(str, participants)) if participants is not None else None,
                all_attempts=all_attempts,
            )
        )

    def states(self, names: Iterable[str], *, table: str = "gpu") -> list[States]:
        return codec.load_states(self._get("states", names=list(names), table=table))

    def summary(self, table: str = "training", participant: Participant | None = None) -> dict[str, MetricSummary]:
        known = self._find_summary() if table == "training" and participant is None else None
        if known is not None:
            return dict(known)
        named = str(participant) if participant is not None else None
        return load_summary(self._get("summary", table=table, participant=named))

    def newest_steps(self, count: int) -> list[tuple[int, float]]:
        return codec.load_steps(self._get("newest_steps", count=count))

    def first_steps(self) -> dict[int, int]:
        return codec.load_first_steps(self._get("first_steps"))

    def histogram_names(self) -> list[str]:
        return codec.load_texts(self._get("histogram_names"))

    def histograms(self, name: str) -> list[dict[str, Any]]:
        return codec.load_objects(self._get("histograms", name=name))

    # -- lines

    def events(self) -> list[EventRow]:
        return [EventRow.parse(item) for item in codec.load_objects(self._get("events"))]

    def alerts(self) -> list[AlertRow]:
        return [AlertRow.parse(item) for item in codec.load_objects(self._get("alerts"))]

    def count_benchmarks(self) -> int:
        return whole(self._get("count_benchmarks")) or 0

    def benchmarks(self) -> list[Benchmark]:
        return [Benchmark.parse(item) for item in codec.load_objects(self._get("benchmarks"))]

    def extent(self, table: str = "training") -> Extent:
        return codec.load_extent(self._get("extent", table=table))

    def rows(self, table: str = "training", extent: Extent | None = None) -> Iterator[dict[str, Any]]:
        skip, more = 0, True
        while more:
            found = codec.require(
                mapping(self._get("rows", table=table, extent=dict(extent) if extent is not None else None, skip=skip)),
                "no rows",
            )
            rows = codec.load_objects(found.get("rows"))
            yield from rows
            skip += len(rows)
            more = found.get("more") is True and bool(rows)

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> RemoteFeed:
        tables = list(tables)
        at = mapping(self._get("end", tables=tables)) if from_end else None
        return RemoteFeed(partial(self._get, "poll", tables=tables), at or {})

    # -- texts

    def texts(self, kind: TextKind) -> list[TextFile]:
        return codec.load_text_files(self._get("texts", kind=kind))

    def read_text(self, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart:
        return codec.load_text_part(self._get("read_text", kind=kind, name=name, limit=limit, after=after))

    def patches(self) -> list[Patch]:
        abouts = (PatchFile.parse(item) for item in codec.load_objects(self._get("patches")))
        return [Patch(about, partial(self._read, "read_patch", attempt=about.attempt)) for about in abouts]

    # -- media

    def media(self) -> list[MediaItem]:
        return codec.load_media(self._get("media"), lambda file: self._read("read_medium", file=file))

    def _read(self, asked: str, **more: Any) -> bytes:
        return self._ask(asked, **more).rest


class RemoteFeed:
    """Implements `contracts.RowFeed`. Where it is, is known here: a connection that is lost loses and doubles
    nothing."""

    def __init__(self, ask: Callable[..., Any], at: Mapping[str, Any]) -> None:
        self._ask = ask
        self._at = at

    def poll(self, limit: int | None = None) -> list[tuple[FileName, dict[str, Any]]]:
        found: list[tuple[FileName, dict[str, Any]]] = []
        for _ in range(MOST_POLLS):
            try:
                answer = codec.require(mapping(self._ask(at=dict(self._at), limit=limit)), "no lines")
                at = codec.require(mapping(answer.get("at")), "no positions")
            except MachineError:
                if found:
                    return found  # what came before is not lost, and the next poll says what is wrong
                raise
            found += _load_lines(answer.get("rows"))
            self._at = at
            if answer.get("more") is not True or limit is not None:
                break
        return found


def _load_lines(data: object) -> Iterator[tuple[FileName, dict[str, Any]]]:
    for item in data if isinstance(data, list) else ():
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], dict):
            name = layout.parse_name(item[0])
            if name is not None and isinstance(item[1].get("timestamp"), str):
                yield name[0], item[1]


def load_summary(data: object) -> dict[str, MetricSummary]:
    return dict(mapping_of(MetricSummary.read)(data) or {})
