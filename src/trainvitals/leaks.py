"""Memory that grows without end. Rules that are judged while the run lives, findings about a whole run and `watch` ask
the same judge, so all of them call the same growth a leak, at the same step.

Peaks come and go, so pieces of the curve are compared by their lowest values: pieces of ten values, of twenty, and so
on, for a slow leak is hidden by noise from short pieces, and a fast one is over before long pieces are complete.

The agent and the trainer load this, so it imports nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainvitals.episodes import Episode

PIECE = 10
"""Values of the smallest piece; each size is twice the one before."""
RISING = 10
"""Pieces, each higher than the one before, that make a leak."""
LATE = 0.4
"""Share of the growth that its second half has: a cache that fills grows ever slower."""
LEAST_HIGHER = 0.01
"""Share of the growth by which it goes on: less is the luck of quiet batches."""
LEAST_STEPS = 400.0
LEAST_SECONDS = 600.0
"""What growth lasts at least: start-up and a first epoch grow too."""
_KEPT = 40
"""Pieces of one size that are kept."""


class _Piece(NamedTuple):
    """Neighbouring values: where they begin, and the lowest."""

    x: float
    floor: float


class _Rise:
    """The pieces of one size, as long as each is higher than the one before."""

    def __init__(self) -> None:
        self.pieces: list[_Piece] = []
        self.ceiling = -math.inf
        """The highest before these: growth up to there came back once."""
        self._waiting: _Piece | None = None

    def take(self, piece: _Piece) -> _Piece | None:
        """The piece of twice the size that this one completed, if it did."""
        pieces = self.pieces
        if pieces and piece.floor <= pieces[-1].floor:
            self.ceiling = max(self.ceiling, pieces[-1].floor)
            pieces.clear()
        pieces.append(piece)
        if len(pieces) > _KEPT:
            del pieces[1:-1:2]
        first, self._waiting = self._waiting, None
        if first is None:
            self._waiting = piece
            return None
        return _Piece(first.x, min(first.floor, piece.floor))


class LeakJudge:
    """Growth by `share` of what was held before, that went on for `least` steps or seconds: whatever `x` is."""

    def __init__(self, share: float, least: float) -> None:
        self.episodes: list[Episode] = []
        """Every leak that was named, in order; `after` is the most that was held at the end of it, or is now."""
        self._share, self._least = share, least
        self._rises: list[_Rise] = []
        self._xs: list[float] = []
        self._values: list[float] = []
        self._last = -math.inf
        self._highest = 0.0
        """Where the last leak was at its highest, and ..."""
        self._named = -math.inf
        """... how high that was."""

    @property
    def lasting(self) -> Episode | None:
        """The leak that goes on."""
        return self.episodes[-1] if self.episodes and self.episodes[-1].until is None else None

    @property
    def rate(self) -> float:
        """How much the newest leak grows, or grew, in a step or a second."""
        leak = self.episodes[-1]
        return (self._named - leak.before) / max(self._highest - leak.since, 1.0)

    def extend(self, xs: list[float], values: list[float]) -> None:
        """Take in many values, all finite."""
        place, count = 0, len(xs)
        while place < count:
            end = place + PIECE
            piece = xs[place:end]
            # Nearly always: the steps of a whole piece go up.
            if end <= count and not self._xs and piece[0] >= self._last and sorted(piece) == piece:
                self._take(_Piece(piece[0], min(values[place:end])), piece[-1])
                place = end
            else:
                self.add(xs[place], values[place])
                place += 1

    def add(self, x: float, value: float) -> None:
        """The next value, which is finite."""
        if x < self._last:  # resumed from a checkpoint, by a process that holds nothing yet
            self._end(x)
            self._rises, self._xs, self._values, self._named = [], [], [], -math.inf
        self._last = x
        self._xs.append(x)
        self._values.append(value)
        if len(self._values) < PIECE:
            return
        piece = _Piece(self._xs[0], min(self._values))
        self._xs, self._values = [], []
        self._take(piece, x)

    def _take(self, piece: _Piece, last: float) -> None:
        """The next piece of the smallest size, which ends at `last`."""
        self._last = last
        self._follow(piece)
        for rise in self._rises:
            larger = rise.take(piece)
            if self.lasting is None and len(rise.pieces) >= RISING and (leak := self._find_leak(rise)):
                self._name(leak)
            if larger is None:
                return
            piece = larger
        self._rises.append(_Rise())
        self._rises[-1].take(piece)

    def _find_leak(self, rise: _Rise) -> Sequence[_Piece]:
        """The longest stretch up to now that grows steadily, and enough; start-up may come before. Empty for none."""
        pieces, last = rise.pieces, rise.pieces[-1]
        for place, first in enumerate(pieces[: len(pieces) - RISING + 1]):
            grown = last.floor - max(first.floor, rise.ceiling, self._named)
            if last.x - first.x < self._least or grown < self._share * max(first.floor, 1.0):
                return ()
            if last.floor - _middle(pieces[place:]).floor >= LATE * (last.floor - first.floor):
                return pieces[place:]
        return ()

    def _name(self, pieces: Sequence[_Piece]) -> None:
        first, middle, last = pieces[0], _middle(pieces), pieces[-1]
        # Of a long piece, where in it the growth began: where its second half, drawn on, meets the level before it.
        since = last.x - (last.floor - first.floor) * (last.x - middle.x) / (last.floor - middle.floor)
        since = min(max(since, first.x), middle.x)
        self.episodes.append(Episode(int(since), int(self._last), None, first.floor, last.floor, math.nan))
        self._highest, self._named = last.x, last.floor

    def _follow(self, piece: _Piece) -> None:
        """Whether what lasts goes on, now that there is one more piece of the smallest size."""
        leak = self.lasting
        if leak is None:
            return
        if piece.floor > leak.after + LEAST_HIGHER * (leak.after - leak.before):
            self._highest, self._named = piece.x, piece.floor
            self.episodes[-1] = leak._replace(after=piece.floor)
        elif piece.floor < (leak.before + leak.after) / 2:
            self._end(piece.x)
        elif piece.x - self._highest > max(self._highest - leak.since, self._least) / 2:
            self._end(self._highest)

    def _end(self, x: float) -> None:
        if self.lasting is not None:
            self.episodes[-1] = self.episodes[-1]._replace(until=int(x))


def _middle(pieces: Sequence[_Piece]) -> _Piece:
    """The one at half of the way."""
    half = (pieces[0].x + pieces[-1].x) / 2
    return next(piece for piece in pieces if piece.x >= half)
