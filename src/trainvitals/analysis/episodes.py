"""What began at some step and lasted: slower steps, a rising loss, single wild values.

Everything here judges a value by those before it only, so that what a finished run is said to have had is what would
have been reported while it ran: nothing that was found once is gone when there are more values, and `named_at` is the
step at which it was known. Tested in tests/analysis/test_episodes.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.findings import Curve, Floats
from trainvitals.analysis.robust import FLOOR

Places = NDArray[np.intp]
DEVIATION = 1.4826
"""Times the median absolute deviation: the standard deviation, if the values are normal."""


class Episode(NamedTuple):
    """Something that began at `since`."""

    since: int
    """The step where it began."""
    named_at: int
    """The step at which it could be known."""
    until: int | None
    """The step at which it was over; None if it lasts."""
    before: float
    after: float
    """The usual value before and in it; of a spike the highest."""
    deviations: float
    """The change in standard deviations of what is compared."""

    def covers(self, other: Episode) -> bool:
        """Whether `other` says of a later step what is known already: that the level is up, and no more than this."""
        lasts = self.until is None or other.since < self.until
        return lasts and self.since <= other.since and other.after <= self.after * 1.02


def stride_of(x: Floats) -> float:
    """Steps from one value to the next."""
    return max(float(np.median(np.diff(x))), 1e-9) if len(x) > 1 else 1.0


class _Blocks(NamedTuple):
    """Neighbours by `size`."""

    size: int
    first: Floats
    last: Floats
    middle: Floats


MAX_BLOCKS = 10_000
BLOCK_STEPS = 10
"""Steps whose median is looked at as one, if there is a value for each."""


def _blocks_of(x: Floats, y: Floats, times: int) -> _Blocks:
    size = times * max(round(BLOCK_STEPS / stride_of(x)), 1, -(-len(y) // MAX_BLOCKS))
    count = len(y) // size
    pieces = y[: count * size].reshape(count, size)
    ends = np.arange(count) * size
    return _Blocks(size, x[ends], x[ends + size - 1], np.median(pieces, axis=1))


SCALES = (1, 4, 16)
"""Sizes of blocks, in those of the first."""
REFERENCE = 30
"""Blocks that say what is usual."""
LEAST_REFERENCE = 5
LEAST_STEPS = 100
"""Steps that a change has lasted before it is named ..."""
LEAST_BLOCKS = 4
"""... and blocks."""
CLEAR = 8.0
"""Standard errors by which a change must exceed the noise."""


def find_shifts(curve: Curve, share: float) -> list[Episode]:
    """Changes of the level upwards by `share` or more that lasted, in order. The values are positive.

    The usual level and its noise are those of the blocks just before, so neither a slow drift nor earlier changes hide
    or displace one. A level that rises too slowly for that is compared with the lowest there was.
    """
    x, y = curve
    if len(y) < 2 * LEAST_BLOCKS or not (y > 0).all():
        return []
    logarithms, found = np.log(y), list[Episode]()
    for size in SCALES:
        blocks = _blocks_of(x, logarithms, size)
        reach = 3 * blocks.size * stride_of(x)
        # What a finer look has found is not found again by a coarser one, which is for louder noise.
        for episode in _Shifts(blocks, x, logarithms, math.log1p(share)).find():
            known = any(abs(episode.since - other.since) <= reach or other.covers(episode) for other in found)
            if not known:
                found.append(episode)
    return sorted(found)


class _Shifts:
    """The state while the blocks are gone through."""

    def __init__(self, blocks: _Blocks, x: Floats, y: Floats, least: float) -> None:
        self._blocks = blocks
        self._x = x
        self._y = y
        self._least = least
        steps = blocks.size * stride_of(x)
        self._enough = max(math.ceil(LEAST_STEPS / steps), LEAST_BLOCKS)
        self._usual: list[float] = []
        self._level = self._noise = 0.0
        self._lowest = math.inf
        self._lowest_noise = 0.0
        self._direction = 0
        """Of the change that may be one."""
        self._changed: list[int] = []
        """Its blocks."""
        self._found: list[Episode] = []
        self._levels: list[float] = []
        """The level before each episode that lasts."""

    def find(self) -> list[Episode]:
        for place, value in enumerate(self._blocks.middle.tolist()):
            if len(self._usual) < LEAST_REFERENCE:
                self._take(place, value)
                continue
            step = value - self._level
            if self._changed and (step > 0) != (self._direction > 0):
                self._give_up()
            if abs(step) > max(self._least / 2, 3 * self._noise):
                self._direction = 1 if step > 0 else -1
                self._changed.append(place)
                self._judge(place)
            elif self._changed:
                self._changed.append(place)
                values = self._blocks.middle[self._changed]
                if np.mean(np.abs(values - self._level) > self._least / 2) < 0.7:
                    self._give_up()
            else:
                self._take(place, value)
        return self._found

    def _take(self, place: int, value: float) -> None:
        """One more usual block."""
        self._usual.append(value)
        if len(self._usual) > 2 * REFERENCE:
            del self._usual[:REFERENCE]
        if len(self._usual) % 5 and len(self._usual) > LEAST_REFERENCE:
            return
        recent = np.array(self._usual[-REFERENCE:])
        self._level = float(np.median(recent))
        # Of two modes the rarer one is noise too, which a median absolute deviation does not see.
        low, high = np.percentile(recent, (10, 90))
        spread = max(DEVIATION * float(np.median(np.abs(recent - self._level))), 0.39 * float(high - low))
        self._noise = max(spread, FLOOR / 2)
        if len(self._usual) >= REFERENCE:
            if self._level < self._lowest:
                self._lowest, self._lowest_noise = self._level, self._noise
            elif not self._levels and self._level - self._lowest > max(2.5 * self._least, CLEAR * self._lowest_noise):
                self._name_drift(place)

    def _give_up(self) -> None:
        """The change did not last: its blocks were usual after all."""
        changed, self._changed = self._changed, []
        for place in changed:
            self._usual.append(float(self._blocks.middle[place]))

    def _judge(self, place: int) -> None:
        values = self._blocks.middle[self._changed]
        if len(values) < self._enough:
            return
        step = float(np.median(values)) - self._level
        error = self._noise * math.sqrt(1 / len(values) + 1 / min(len(self._usual), REFERENCE))
        if abs(step) < self._least or abs(step) < CLEAR * error:
            return
        level = self._level
        since = self._find_start(step)
        self._usual = values.tolist()
        self._changed = []
        self._level = level + step
        named_at = int(self._blocks.last[place])
        if step > 0:
            self._found.append(
                Episode(since, named_at, None, math.exp(level), math.exp(level + step), step / self._noise)
            )
            self._levels.append(level)
        else:
            self._end_those_above(since)

    def _end_those_above(self, step: int) -> None:
        """Episodes whose level is back where it was."""
        while self._levels and self._level < self._levels[-1] + self._least / 2:
            self._levels.pop()
            lasting = max(n for n, episode in enumerate(self._found) if episode.until is None)
            self._found[lasting] = self._found[lasting]._replace(until=step)

    def _name_drift(self, place: int) -> None:
        rise = self._level - self._lowest
        below = np.flatnonzero(self._blocks.middle[: place + 1] <= self._lowest + rise / 2)
        start = int(self._blocks.first[min(int(below[-1]) + 1, place)] if len(below) else self._blocks.first[0])
        self._found.append(
            Episode(
                start,
                int(self._blocks.last[place]),
                None,
                math.exp(self._lowest),
                math.exp(self._level),
                rise / max(self._lowest_noise, 1e-12),
            )
        )
        self._levels.append(self._lowest)

    def _find_start(self, step: float) -> int:
        """The value where the level changed, to the step: where those before fit the old and those after the new."""
        size = self._blocks.size
        begin = max(self._changed[0] - 2, 0) * size
        end = min((self._changed[0] + 2) * size, len(self._y))
        off = self._y[begin:end] - self._level - step / 2
        # A single wild value must not say where.
        off = np.clip(off * np.sign(step), -abs(step), abs(step))
        sums = np.concatenate([[0.0], np.cumsum(off)])
        return int(self._x[min(begin + int(sums.argmin()), len(self._x) - 1)])


SPIKE_WINDOW = 100
"""Steps before a value that say what is usual, at most as many values ..."""
SPIKE_LEAST_WINDOW = 20
"""... and at least as many."""
SPIKE_FEWEST = 30
SPIKE_SHARE = 0.12


def find_spikes(curve: Curve, deviations: float) -> list[Episode]:
    """Single values, or a few, that are `deviations` above those before them, and far above what those ever were."""
    x, y = curve
    if len(y) <= SPIKE_FEWEST:
        return []
    window = min(max(round(SPIKE_WINDOW / stride_of(x)), SPIKE_LEAST_WINDOW), SPIKE_WINDOW)
    height, level = _heights(y, window)
    if y.min() > 0:
        # The noise of a small value is multiplicative and leans to one side: a spike stands out on both scales.
        height = np.minimum(height, _heights(np.log(y), window)[0])
    bar = np.maximum(deviations, 1.5 * _usual_heights(height))
    few = SPIKE_FEWEST + np.arange(len(y)) < 4 * SPIKE_FEWEST
    # Near zero a loss jumps by factors and means nothing: a spike is large against where the run was farthest off.
    tall = y - level > SPIKE_SHARE * np.maximum.accumulate(np.abs(level))
    high = np.flatnonzero((height > np.where(few, 2 * bar, bar)) & tall)
    if not len(high):
        return []
    calm = np.flatnonzero(height < deviations / 2)
    found = []
    for group in np.split(high, np.flatnonzero(np.diff(high) > 20) + 1):
        first, last = int(group[0]), int(group[-1])
        after = int(np.searchsorted(calm, last))
        peak = first + int(y[first : last + 1].argmax())
        found.append(
            Episode(
                int(x[first]),
                int(x[first]),
                int(x[calm[after]]) if after < len(calm) else None,
                float(level[first]),
                float(y[peak]),
                float(height[group].max()),
            )
        )
    return found


def _heights(y: Floats, window: int) -> tuple[Floats, Floats]:
    """How many deviations each value is above the median of those before it, and that median."""
    hop = max(window // 10, len(y) // MAX_BLOCKS)
    starts = np.arange(0, len(y), hop)
    level, scale = np.empty(len(starts)), np.empty(len(starts))
    full = starts >= window
    for place in np.flatnonzero(~full):
        before = y[: max(int(starts[place]), 1)]
        level[place] = np.median(before)
        scale[place] = DEVIATION * np.median(np.abs(before - level[place]))
    if full.any():
        windows = np.lib.stride_tricks.sliding_window_view(y, window)[starts[full] - window]
        level[full] = np.median(windows, axis=1)
        scale[full] = DEVIATION * np.median(np.abs(windows - level[full, None]), axis=1)
    scale = np.maximum(scale, FLOOR * np.abs(level))
    level, scale = np.repeat(level, hop)[: len(y)], np.repeat(scale, hop)[: len(y)]
    height = np.asarray((y - level) / np.where(scale > 0, scale, np.inf))
    height[:SPIKE_FEWEST] = 0
    return height, level


def _usual_heights(height: Floats, size: int = 100, back: int = 10) -> Floats:
    """How high those of the last `back` pieces of `size` often were: the tail of the noise is no news."""
    count = len(height) // size
    often = np.zeros(len(height))
    if not count:
        return often
    highs = np.partition(height[: count * size].reshape(count, size), -3, axis=1)[:, -3]
    padded = np.concatenate([np.zeros(back - 1), highs])
    recent = np.lib.stride_tricks.sliding_window_view(padded, back).max(axis=1)
    often[size:] = np.repeat(recent, size)[: len(height) - size] if len(height) <= (count + 1) * size else 0
    return often


RISE_SCALES = (1, 5)
RISE_WINDOW = 50
RISE_FEWEST = 8
RISE_HISTORY = 60
RISE_CLEAR = 7.0


def find_rises(curve: Curve, share: float) -> list[Episode]:
    """Where a value that should fall rose by `share` of its best and stays there."""
    found: list[Episode] = []
    for times in RISE_SCALES:
        # Wider windows are for louder noise: what narrower ones have found is not found again.
        for episode in _find_rises(curve, share, times):
            if not any(_overlap(other, episode) for other in found):
                found.append(episode)
    return sorted(found)


def _overlap(one: Episode, other: Episode) -> bool:
    ends = [math.inf if episode.until is None else episode.until for episode in (one, other)]
    return one.since <= ends[1] and other.since <= ends[0]


def _find_rises(curve: Curve, share: float, times: int) -> list[Episode]:
    x, y = curve
    window = times * max(min(RISE_WINDOW, round(RISE_WINDOW / stride_of(x))), RISE_FEWEST)
    hop = max(window // 5, 1, -(-len(y) // MAX_BLOCKS))
    if len(y) < 3 * window:
        return []
    ends = np.arange(window - 1, len(y), hop)
    middle = np.median(np.lib.stride_tricks.sliding_window_view(y, window)[ends - window + 1], axis=1)
    apart = -(-window // hop)
    noise = _noise_of(y, ends, window, middle, apart)
    start = float(np.median(y[:3]))
    best = np.minimum.accumulate(middle)
    limit = np.maximum(share * np.abs(best), RISE_CLEAR * noise)
    places = np.arange(len(middle))
    exploded = (start > 0) & (middle > 5 * start) & (places >= apart)
    for place in np.flatnonzero(exploded).tolist():  # nearly all of them, not half
        exploded[place] = np.percentile(y[ends[place] - window + 1 : ends[place] + 1], 10) > 2 * start
    before = np.concatenate([np.full(apart, -np.inf), middle[:-apart]])
    high = (middle > best + limit) & (middle >= before - noise) & (places >= 4 * apart) | exploded
    found: list[Episode] = []
    held = 0
    lasting: tuple[float, float] | None = None
    """Of the episode that lasts: the best before it, and the limit."""
    for place in range(len(middle)):
        if lasting is not None:
            if middle[place] < lasting[0] + lasting[1] / 2:
                found[-1] = found[-1]._replace(until=int(x[ends[place]]))
                lasting, held = None, 0
            else:
                found[-1] = found[-1]._replace(after=float(middle[place]))
            continue
        held = held + 1 if high[place] else 0
        if held * hop >= window and place >= apart:
            base = min(float(best[place]), start) if exploded[place] else float(best[place])
            rise = float(middle[place]) - base
            low = np.flatnonzero(middle[: place + 1] <= base + rise / 5)
            since = max(int(ends[low[-1]]) - window // 2, 0) if len(low) else 0
            found.append(
                Episode(
                    int(x[since]),
                    int(x[ends[place]]),
                    None,
                    base,
                    float(middle[place]),
                    rise / max(float(noise[place]), 1e-300),
                )
            )
            lasting = (base, float(limit[place]))
    return found


def _noise_of(y: Floats, ends: Places, window: int, middle: Floats, apart: int) -> Floats:
    """How much medians of neighbouring windows differ by chance, as far as is known at each."""
    windows = np.lib.stride_tricks.sliding_window_view(y, window)[ends - window + 1]
    inside = DEVIATION * np.median(np.abs(windows - middle[:, None]), axis=1) * 1.25 / math.sqrt(window)
    change = middle[apart:] - middle[:-apart]
    between = np.array(
        [_half_scale(change[max(place - RISE_HISTORY, 0) : place]) for place in range(len(change) + 1)]
        if len(change) <= RISE_HISTORY
        else [_half_scale(change[:place]) for place in range(RISE_HISTORY)]
    )
    if len(change) > RISE_HISTORY:
        rolling = np.lib.stride_tricks.sliding_window_view(change, RISE_HISTORY)
        centre = np.median(rolling, axis=1)
        spread = DEVIATION * np.median(np.abs(rolling - centre[:, None]), axis=1) / math.sqrt(2)
        between = np.concatenate([between, spread])
    between = np.concatenate([np.full(apart - 1, between[0]), between])[: len(middle)]
    noise = np.maximum(between, inside)
    # What is judged does not set its own bar: the noise known two windows ago.
    late = np.concatenate([np.full(2 * apart, noise[: 2 * apart].max()), noise])[: len(noise)]
    return np.asarray(np.maximum(late, 1e-12 + FLOOR / 2 * np.abs(middle)))


def _half_scale(change: Floats) -> float:
    if len(change) < 3:
        return 0.0
    return DEVIATION * float(np.median(np.abs(change - np.median(change)))) / math.sqrt(2)
