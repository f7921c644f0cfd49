"""Histories that grow: a curve keeps its extremes for as long as it is watched, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trainvitals.journal.downsample import pick
from trainvitals.journal.identity import Participant, gpu_key_across_hosts, gpu_number, gpu_title
from trainvitals.views.tui.canvas import Floats

KEPT = 4000
"""Points after thinning out; twice as many before it."""


class TrackOwner(NamedTuple):
    """Whose curve it is: a GPU, a rank, the host."""

    key: str
    label: str
    """`GPU 0`, `rank 3`; empty for the host where there is only one."""
    order: tuple[Any, ...]


class Track:
    """One curve. Adding is cheap; the arrays are made on request, if something is new."""

    __slots__ = ("_points", "_sorted", "metric", "owner", "x", "y")

    def __init__(self, metric: str, owner: TrackOwner) -> None:
        self.metric = metric
        self.owner = owner
        self.x = array("d")
        self.y = array("d")
        self._points: tuple[Floats, Floats] | None = None
        self._sorted = True

    def __len__(self) -> int:
        return len(self.x)

    def add(self, x: float, y: float) -> None:
        if self.x and x < self.x[-1]:
            self._sorted = False  # a step that goes back, a clock that was set
        self.x.append(x)
        self.y.append(y)
        self._points = None
        if len(self.x) > 2 * KEPT:
            self._thin()

    def extend(self, x: Floats, y: Floats) -> None:
        self.x.extend(x.tolist())
        self.y.extend(y.tolist())
        self._points = None

    def points(self) -> tuple[Floats, Floats]:
        """x ascending and y; the arrays are never changed afterwards."""
        if self._points is None:
            x, y = np.array(self.x, dtype=np.float64), np.array(self.y, dtype=np.float64)
            if not self._sorted:
                order = np.argsort(x, kind="stable")
                x, y = x[order], y[order]
            self._points = (x, y)
        return self._points

    def last(self, count: int) -> tuple[float, ...]:
        """The newest values, oldest first."""
        return tuple(self.y[-count:])

    def _thin(self) -> None:
        x, y = self.points()
        chosen = pick(y, KEPT)
        self.x, self.y = array("d", x[chosen].tolist()), array("d", y[chosen].tolist())
        self._points, self._sorted = None, True


class Tracks:
    """Curves in groups: a group is of one metric, its members are the GPUs, ranks or hosts."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], dict[str, Track]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def track(self, metric: str, owner: TrackOwner, *group: str) -> Track:
        """The curve of an owner in a group, made if there is none."""
        try:
            return self._groups[group][owner.key]
        except KeyError:
            return self._groups.setdefault(group, {}).setdefault(owner.key, Track(metric, owner))

    def find(self, key: str, *group: str) -> Track | None:
        return self._groups.get(group, {}).get(key)

    def of_group(self, *group: str) -> list[Track]:
        """In order."""
        return sorted(self._groups.get(group, {}).values(), key=lambda track: track.owner.order)

    def names(self, table: str) -> set[str]:
        """The second word of every group with this first word."""
        return {group[1] for group in self._groups if group[0] == table}

    def clear(self) -> None:
        self._groups.clear()


def owner_of(table: str, labels: Mapping[str, Any], rank: int | None = None) -> TrackOwner:
    """`rank` is that of the file, for rows that do not have it."""
    if table == "gpu":
        place = (str(labels.get("host") or ""), *_numbers(gpu_number(labels)))
        return TrackOwner(gpu_key_across_hosts(labels), gpu_title(labels), place)
    if table in ("training", "process"):
        participant = Participant.of(labels, rank)
        return TrackOwner(str(participant), participant.title, (participant,))
    host = str(labels.get("host") or labels.get("target") or "")
    return TrackOwner(host, host, (host,))


def _numbers(index: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 999 for part in index.split(":"))
