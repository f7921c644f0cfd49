"""Points that a tracker keeps one by one, put together as the rows in which they were logged: those of one time and
step. By columns, for a store has millions of them. Tested in tests/trackers/test_mlflow_store.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.journal.segment_writer import Lines
from trainvitals.trackers.foreign import LATEST

_LATEST = int(LATEST) * 1000
_STEP_LIMIT = 2**62


class PointColumns(NamedTuple):
    """Values of metrics in the order in which they were logged, as columns."""

    keys: Sequence[str]
    milliseconds: Sequence[Any]
    """Since 1970."""
    steps: Sequence[Any]
    values: Sequence[float]
    again: bool = False
    """They are given with all points of their metrics, of which the run may have some."""


class PointRows:
    """Points, until there are enough of them for a piece."""

    def __init__(self) -> None:
        self.count = 0
        self.damaged = 0
        """Points whose time or step cannot be one: SQLite and JSON hold anything in any place."""
        self.again: set[str] = set()
        self._codes: dict[str, int] = {}
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, points: PointColumns) -> None:
        """Take these in."""
        keys, times, steps, values, again = points
        if not (_are_whole(times, 0, _LATEST) and _are_whole(steps, 1 - _STEP_LIMIT, _STEP_LIMIT - 1)):
            kept = [
                item
                for item in zip(keys, times, steps, values, strict=True)
                if _are_whole(item[1:2], 0, _LATEST) and _are_whole(item[2:3], 1 - _STEP_LIMIT, _STEP_LIMIT - 1)
            ]
            self.damaged += len(keys) - len(kept)
            keys, times, steps, values = zip(*kept, strict=True) if kept else ((), (), (), ())
        if not keys:
            return
        names = set(keys)
        for key in sorted(names):
            self._codes.setdefault(key, len(self._codes))
        if again:
            self.again |= names
        codes = np.fromiter(map(self._codes.__getitem__, keys), np.int64, len(keys))
        whole = (np.array(item, np.int64) for item in (times, steps))
        self._parts.append((codes, *whole, np.array(values, np.float64)))
        self.count += len(keys)

    def make_lines(self) -> Lines:
        """All of them, earliest first."""
        lines = Lines("training")
        if not self._parts:
            return lines
        codes, times, steps, values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.lexsort((codes, steps, times))
        codes, times, steps, values = codes[order], times[order], steps[order], values[order]
        # Logged several times in a millisecond: the second value of a metric is in the second row, and so on.
        turn = _count_within(_changes(codes, times, steps))
        order = np.lexsort((codes, turn, steps, times))
        codes, times, steps, values, turn = (item[order] for item in (codes, times, steps, values, turn))
        first = _changes(times, steps, turn)
        rows = np.cumsum(first) - 1
        by_name = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(self._codes)))
        columns = {
            name: (rows[chosen], values[chosen])
            for name, chosen in zip(self._codes, np.split(by_name, ends[:-1]), strict=True)
            if len(chosen)
        }
        lines.add_columns(times[first] * 1000, steps[first], columns)
        return lines


def _are_whole(numbers: Sequence[Any], least: int, most: int) -> bool:
    return set(map(type, numbers)) <= {int} and (not numbers or (min(numbers) >= least and max(numbers) <= most))


def _changes(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Where another combination of values begins than the one before."""
    found = np.ones(len(columns[0]), dtype=bool)
    found[1:] = False
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def _count_within(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the same are before each."""
    places = np.arange(len(first))
    return places - np.maximum.accumulate(np.where(first, places, 0))
