"""Histories that grow: a curve keeps its extremes for as long as it is watched, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainvitals.journal.downsample import pick
from trainvitals.journal.identity import gpu_key_across_hosts, gpu_number
from trainvitals.views.tui.canvas import Floats

KEPT = 4000
"""Points after thinning out; twice as many before it."""


class Track:
    """One curve. Adding is cheap; the arrays are made when they are asked for and something is new."""

    __slots__ = ("_points", "_sorted", "label", "metric", "order", "x", "y")

    def __init__(self, metric: str, label: str, order: tuple[Any, ...]) -> None:
        self.metric = metric
        self.label = label
        self.order = order
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
    """Curves by what they are of."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, ...], Track] = {}

    def __len__(self) -> int:
        return len(self._tracks)

    def track(self, metric: str, label: str, order: tuple[Any, ...], *key: str) -> Track:
        """The curve of that key, made if there is none."""
        found = self._tracks.get(key)
        if found is None:
            found = self._tracks[key] = Track(metric, label, order)
        return found

    def get(self, *key: str) -> Track | None:
        return self._tracks.get(key)

    def matching(self, *beginning: str) -> list[Track]:
        """The curves whose key begins so, in order."""
        size = len(beginning)
        found = [track for key, track in self._tracks.items() if key[:size] == beginning]
        return sorted(found, key=lambda track: track.order)

    def names(self, beginning: str) -> set[str]:
        """The second part of every key that begins so."""
        return {key[1] for key in self._tracks if key[0] == beginning}

    def clear(self) -> None:
        self._tracks.clear()


def identity(table: str, labels: Mapping[str, Any], rank: int | None = None) -> tuple[str, str, tuple[Any, ...]]:
    """(key, words, order) of what a line speaks: `GPU 0`, `rank 3`, the host."""
    if table == "gpu":
        index = gpu_number(labels)
        return gpu_key_across_hosts(labels), f"GPU {index}", (str(labels.get("host") or ""), *_numbers(index))
    if table in ("training", "process"):
        number = labels.get("rank", rank)
        number = number if isinstance(number, int) else 0
        return str(number), f"rank {number}", (number,)
    host = str(labels.get("host") or labels.get("target") or "")
    return host, host, (host,)


def _numbers(index: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 999 for part in index.split(":"))
