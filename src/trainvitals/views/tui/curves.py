"""The curves of one run: read from its files when first requested, and continued with each new line.
Tested in tests/views/tui/test_shown_run.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

from trainvitals.journal.contracts import Series
from trainvitals.journal.encoding import number
from trainvitals.journal.points import Axis
from trainvitals.views.tui.canvas import Floats
from trainvitals.views.tui.tracks import Track, Tracks, owner_of

ReadSeries = Callable[..., list[Series]]
"""`Reader.series` of a run that may vanish: then it is empty."""
LOADED_POINTS = 2000
_NOT_METRICS = frozenset(
    ("timestamp", "step", "gpu_index", "simulated", "mig_index", "role", "rank", "pid", "gpu_uuid", "host", "stale")
)


class Detail(NamedTuple):
    """A range of one curve in full resolution."""

    label: str
    x: Floats
    y: Floats


class RunCurves:
    """Only requested curves are kept; of every other metric just the name."""

    def __init__(self, read: ReadSeries) -> None:
        self._read = read
        self._tracks = Tracks()
        self._kept: defaultdict[str, set[str]] = defaultdict(set)
        """Table -> names of the requested metrics."""
        self._names: defaultdict[str, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._tracks)

    def names(self, table: str) -> Set[str]:
        """Every metric of a table that has been logged."""
        return self._names[table]

    def add_names(self, table: str, names: Iterable[str]) -> None:
        self._names[table].update(names)

    def tracks(self, table: str, name: str, axis: Axis) -> list[Track]:
        """The curves of one metric, one per participant or GPU; read from the files at the first request."""
        axes: tuple[Axis, ...] = ("step", "time") if table == "training" else ("time",)
        if name not in self._kept[table]:
            self._kept[table].add(name)
            for one in axes:
                for series in self._read([name], table=table, x=one, max_points=LOADED_POINTS):
                    owner = owner_of(table, series.labels, series.rank)
                    self._tracks.track(name, owner, table, name, one).extend(series.x, series.y)
        return self._tracks.of_group(table, name, axis if axis in axes else "time")

    def read_detail(self, table: str, name: str, axis: Axis, start: float, end: float) -> list[Detail]:
        """A range in full resolution, for a zoomed chart."""
        one: Axis = axis if table == "training" else "time"
        found = self._read([name], table=table, x=one, start=start, end=end, max_points=LOADED_POINTS)
        return [Detail(owner_of(table, series.labels, series.rank).label, series.x, series.y) for series in found]

    def add(
        self, table: str, row: Mapping[str, Any], labels: Mapping[str, Any], moment: float, step: int | None
    ) -> None:
        """Continue the curves that are kept with a new line, and note the names that are new. `labels` are those of
        its owner."""
        names = self._names[table]
        names.update(name for name in row.keys() - names - _NOT_METRICS if number(row[name]) is not None)
        owner = owner_of(table, labels)
        for name in self._kept[table].intersection(row):
            value = number(row[name])
            if value is None:
                continue
            over_time = self._tracks.track(name, owner, table, name, "time")
            if len(over_time) and moment <= over_time.x[-1] and (table != "training" or step is None):
                continue  # already read: it was written between the first read and now
            over_time.add(moment, value)
            if step is not None:
                self._tracks.track(name, owner, table, name, "step").add(step, value)

    def read_again(self) -> None:
        """Forget what was read: the next request reads it again."""
        self._tracks.clear()
        self._kept.clear()

    def reset(self) -> None:
        """Forget the curves; they restart with what is written from now on."""
        self._tracks.clear()
        for table, names in self._names.items():
            self._kept[table] = set(names)
