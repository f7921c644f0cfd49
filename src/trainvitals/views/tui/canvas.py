"""Curves in Braille: every terminal cell is two dots wide and four high.

A column of dots shows the smallest and the largest value that fall into it, so no peak is lost however many points
there are. Rows count downwards from the top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.gaps import find_gaps

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_WEIGHTS = np.array([[1, 8], [2, 16], [4, 32], [64, 128]], dtype=np.uint32)
_BLANK = 0x2800
FAR = 1e9
"""Columns beyond which the distance of a point does not matter."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The window on the data: what is at the left, right, bottom and top edge."""

    left: float
    right: float
    low: float
    high: float
    log: bool = False

    def columns(self, x: Floats, count: int) -> Integers:
        """Column of dots of each x; outside the window it is negative or beyond `count`."""
        span = self.right - self.left
        with np.errstate(over="ignore"):  # far outside of a narrow window
            places = (x - self.left) / (span if span > 0 else 1.0) * (count - 1) + 0.5
        return np.floor(np.clip(places, -FAR, FAR)).astype(np.int64)

    def rows(self, y: Floats, count: int) -> Floats:
        """Row of dots of each finite y, kept inside."""
        low, high = self.low, self.high
        if self.log:
            y, low, high = np.log10(np.maximum(y, 1e-300)), float(np.log10(low)), float(np.log10(high))
        span = high / 2 - low / 2  # halves, since 1e308 - -1e308 overflows
        if not span > 0:
            return np.full(len(y), (count - 1) / 2)
        with np.errstate(over="ignore"):  # far above or below what is shown
            share = np.clip((y / 2 - low / 2) / span, 0.0, 1.0)
        return np.asarray((1.0 - share) * (count - 1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Mark:
    """A NaN or infinite value, at a cell."""

    column: int
    row: int
    kind: str  # nan, high, low


class Canvas:
    """A field of `width` x `height` cells. Later curves lie over earlier ones."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._dots = np.zeros((height * 4, width * 2), dtype=bool)
        self._owner = np.full((height, width), -1, dtype=np.int16)
        self._row_numbers = np.arange(height * 4, dtype=np.int64)[:, None]

    def curve(self, x: Floats, y: Floats, axes: Axes, owner: int, *, gaps: bool = False) -> list[Mark]:
        """Draw a curve over ascending `x`, owned by `owner`; returns the marks for NaN and infinite values.

        With `gaps` the line is interrupted where samples are missing for far longer than usual.
        """
        count = self.width * 2
        columns = axes.columns(x, count)
        # One point beyond each edge, so that the line runs off the chart instead of ending short of the edge.
        first = max(int(np.searchsorted(x, axes.left)) - 1, 0)
        last = int(np.searchsorted(x, axes.right, side="right")) + 1
        x, y, columns = x[first:last], y[first:last], columns[first:last]
        drawable = np.isfinite(y) & (y > 0) if axes.log else np.isfinite(y)
        centre = self._line(x[drawable], y[drawable], columns[drawable], axes, owner, gaps)
        return self._marks(y, columns, drawable, centre)

    def band(self, x: Floats, bottom: Floats, top: Floats, axes: Axes, owner: int) -> None:
        """Fill between two curves over the same ascending `x`; NaN counts as nothing there."""
        good = np.isfinite(bottom) & np.isfinite(top)
        count = self.width * 2
        columns = axes.columns(x, count)[good]
        if not len(columns):
            return
        places = np.arange(count)
        inside = (places >= columns[0]) & (places <= columns[-1])
        low = np.interp(places, columns, axes.rows(bottom[good], self.height * 4))
        high = np.interp(places, columns, axes.rows(top[good], self.height * 4))
        upper, lower = np.ceil(high - 0.5).astype(np.int64), np.floor(low - 0.5).astype(np.int64)
        self._fill(upper, lower, inside & (lower >= upper), owner)

    def _line(self, x: Floats, y: Floats, columns: Integers, axes: Axes, owner: int, gaps: bool) -> Floats | None:
        if not len(y):
            return None
        count = self.width * 2
        rows = axes.rows(y, self.height * 4)
        starts = np.flatnonzero(np.diff(columns, prepend=columns[0] - 1))
        at = columns[starts]
        centre = np.interp(np.arange(count), columns, rows)
        upper, lower = np.rint(centre).astype(np.int64), np.rint(centre).astype(np.int64)
        seen = (at >= 0) & (at < count)
        upper[at[seen]] = np.rint(np.minimum.reduceat(rows, starts)[seen]).astype(np.int64)
        lower[at[seen]] = np.rint(np.maximum.reduceat(rows, starts)[seen]).astype(np.int64)
        # Neighbouring columns touch, so that the curve is one line.
        above, below = upper[:-1].copy(), lower[:-1].copy()
        upper[1:] = np.where(upper[1:] > below, np.minimum(upper[1:], below + 1), upper[1:])
        lower[1:] = np.where(lower[1:] < above, np.maximum(lower[1:], above - 1), lower[1:])
        places = np.arange(count)
        inside = (places >= columns[0]) & (places <= columns[-1])
        if gaps:
            for place in find_gaps(x):
                inside[max(columns[place] + 1, 0) : max(columns[place + 1], 0)] = False
        self._fill(upper, lower, inside, owner)
        return centre

    def _fill(self, upper: Integers, lower: Integers, inside: NDArray[np.bool_], owner: int) -> None:
        dots = (self._row_numbers >= upper) & (self._row_numbers <= lower) & inside
        self._dots |= dots
        cells = dots.reshape(self.height, 4, self.width, 2).any(axis=(1, 3))
        self._owner[cells] = owner

    def _marks(self, y: Floats, columns: Integers, drawable: NDArray[np.bool_], centre: Floats | None) -> list[Mark]:
        if drawable.all():
            return []
        count, marks = self.width * 2, {}
        strange = ~drawable & (columns >= 0) & (columns < count)
        values = y[strange]
        # Below everything: minus infinity, or what a logarithmic scale cannot show.
        kinds = np.where(np.isnan(values), 0, np.where(values > 0, 1, 2))
        # Thousands may fall into one column: one of each kind is enough.
        for code in np.unique(columns[strange] * 3 + kinds).tolist():
            column, kind = divmod(code, 3)
            if kind == 0:
                row = self.height // 2 if centre is None else int(centre[column]) // 4
                marks[column // 2] = Mark(column // 2, row, "nan")
            elif kind == 1:
                marks.setdefault(column // 2, Mark(column // 2, 0, "high"))
            else:
                marks.setdefault(column // 2, Mark(column // 2, self.height - 1, "low"))
        return list(marks.values())

    def rows(self) -> list[tuple[str, list[int]]]:
        """Each row of cells: its characters, a blank where nothing is drawn, and the owner of each cell (-1: none)."""
        cells = self._dots.reshape(self.height, 4, self.width, 2).astype(np.uint32)
        codes = np.einsum("hrwc,rc->hw", cells, _WEIGHTS) + _BLANK
        codes[codes == _BLANK] = ord(" ")
        return [
            ("".join(map(chr, row)), owners) for row, owners in zip(codes.tolist(), self._owner.tolist(), strict=True)
        ]
