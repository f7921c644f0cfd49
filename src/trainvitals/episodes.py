"""What began at some step and lasted: slower steps, a loss that rose. Values go in one at a time, as they are logged.

Rules that are judged while the run lives and findings about a whole run ask the same judges, so both name the same
thing at the same step: `named_at`. A value is judged by those before it only, and what was named is never taken back.

The agent loads this, so it imports nothing but the standard library.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, takewhile
from typing import Generic, NamedTuple, TypeVar

DEVIATION = 1.4826
"""Times the median absolute deviation: the standard deviation, if the values are normal."""
FLOOR = 0.005
"""The least scale, as a share of the level: below it a difference is rounding."""
BLOCK_STEPS = 10
"""Steps whose values are looked at as one block."""


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

    @property
    def share(self) -> float:
        """The change as a share of what was usual."""
        return (self.after - self.before) / abs(self.before) if self.before else math.inf

    def covers(self, other: Episode) -> bool:
        """Whether `other` says of a later step what is known already: that the level is up, and no more than this."""
        lasts = self.until is None or other.since < self.until
        return lasts and self.since <= other.since and other.after <= self.after * 1.02

    def overlaps(self, other: Episode) -> bool:
        ends = [math.inf if episode.until is None else episode.until for episode in (self, other)]
        return self.since <= ends[1] and other.since <= ends[0]


class _Block(NamedTuple):
    """Neighbouring values, and their steps."""

    steps: Sequence[float]
    values: Sequence[float]
    low: float
    """The fastest quarter of them are below."""
    middle: float
    last: float
    """The last step."""
    both_signs: bool


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _quantile(ordered: Sequence[float], share: float) -> float:
    where = share * (len(ordered) - 1)
    low = int(where)
    return ordered[low] if where == low else ordered[low] + (ordered[low + 1] - ordered[low]) * (where - low)


def _scale(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = _middle(ordered)
    return DEVIATION * _middle(sorted([abs(value - middle) for value in ordered]))


class _Scale(ABC):
    """Looks at so many blocks at once: few are for quiet series, many for loud ones."""

    def __init__(self, blocks: int) -> None:
        self.found: list[Episode] = []
        self._wanted = blocks
        self._waiting: list[_Block] = []

    def take(self, block: _Block) -> Episode | None:
        """What this block completed, if it is to be named: the last of `found`."""
        self._waiting.append(block)
        if len(self._waiting) < self._wanted:
            return None
        blocks, self._waiting = self._waiting, []
        known = len(self.found)
        self.judge(blocks)
        return self.found[-1] if len(self.found) > known else None

    def end(self, place: int, step: float) -> None:
        """What was found there is over."""
        self.found[place] = self.found[place]._replace(until=int(step))

    @abstractmethod
    def judge(self, blocks: Sequence[_Block]) -> None:
        """Take in the next blocks, which may end what lasts, or complete what is then found."""

    @abstractmethod
    def go_back(self) -> None:
        """The steps go back: the run was resumed from a checkpoint."""


S = TypeVar("S", bound=_Scale)


class Judge(ABC, Generic[S]):
    """Takes the values of one series and names what began and lasted."""

    def __init__(self, scales: Sequence[S]) -> None:
        self._scales = scales
        self._steps: list[float] = []
        self._values: list[float] = []
        self._last = math.nan
        self._named: list[tuple[S, int]] = []

    def add(self, step: float, value: float) -> None:
        """The next value, which is finite."""
        self._add(step, value)

    def extend(self, steps: Sequence[float], values: Sequence[float]) -> None:
        """The same for many values."""
        place, count = 0, len(steps)
        while place < count:
            end = place + BLOCK_STEPS
            # Nearly always: a value for every step.
            if (
                end <= count
                and not self._steps
                and steps[end - 1] - steps[place] == BLOCK_STEPS - 1
                and not steps[place] < self._last
            ):
                self._take(steps[place:end], values[place:end])
                place = end
            else:
                self._add(steps[place], values[place])
                place += 1

    def _add(self, step: float, value: float) -> None:
        steps, last = self._steps, self._last
        if step < last:
            for scale in self._scales:
                scale.go_back()
        self._last = step
        steps.append(step)
        self._values.append(value)
        # As many as cover ten steps: one, if every tenth step is logged.
        if len(steps) < BLOCK_STEPS and not (step - steps[0]) + (step - last) >= BLOCK_STEPS:
            return
        values, self._steps, self._values = self._values, [], []
        self._take(steps, values)

    def _take(self, steps: Sequence[float], values: Sequence[float]) -> None:
        self._last = steps[-1]
        ordered = sorted(values)
        low, middle = ordered[len(ordered) // 4], _middle(ordered)
        block = _Block(steps, values, low, middle, steps[-1], ordered[0] < 0 < ordered[-1])
        for scale in self._scales:
            episode = scale.take(block)
            # What one scale has named is not named again by another.
            if episode is not None and not self.is_known(episode, scale):
                self._named.append((scale, len(scale.found) - 1))

    @property
    def episodes(self) -> list[Episode]:
        """Everything that was named, in that order."""
        return [scale.found[place] for scale, place in self._named]

    @property
    def lasting(self) -> Episode | None:
        """The newest that has not ended."""
        if not self._named:  # nearly always, and it is asked for every line
            return None
        return next((episode for episode in reversed(self.episodes) if episode.until is None), None)

    @abstractmethod
    def is_known(self, episode: Episode, scale: S) -> bool:
        """Whether this, just found by `scale`, was named before."""


# -- steps that got slower

SHIFT_SCALES = (1, 4, 16)
REFERENCE = 30
"""Blocks that say what is usual."""
LEAST_REFERENCE = 5
LEAST_STEPS = 100
"""Steps that a change has lasted before it is named ..."""
LEAST_BLOCKS = 4
"""... and blocks."""
CLEAR = 8.0
"""Standard errors by which a change must exceed the noise."""
LOWS = 0.4
"""Share of a change by which the fastest steps have changed as well."""
JUST = 0.9
"""Of a change that is just large enough: noise shows less of it half of the time."""
FIRST_VALUES = 10
"""Values at the beginning that are not looked at: compilation, caches, the first batches."""
HISTORY = 1000
"""Blocks among which the beginning of a drift is looked for."""


class ShiftJudge(Judge["_Shifts"]):
    """Changes of the level upwards by `share` or more that lasted. Values that are not positive are left out.

    The usual level and its noise are those of the blocks just before, so neither a slow drift nor earlier changes hide
    or displace one. A level that rises too slowly for that is compared with the lowest there was.
    """

    def __init__(self, share: float) -> None:
        super().__init__([_Shifts(blocks, math.log1p(share)) for blocks in SHIFT_SCALES])
        self._skipped = 0

    def add(self, step: float, value: float) -> None:
        if not value > 0:
            return
        if self._skipped < FIRST_VALUES:
            self._skipped += 1
        else:
            self._add(step, math.log(value))

    def extend(self, steps: Sequence[float], values: Sequence[float]) -> None:
        if not all(map((0.0).__lt__, values)):  # hardly ever; of NaN, `min` may say nothing
            steps = [step for step, value in zip(steps, values, strict=True) if value > 0]
            values = [value for value in values if value > 0]
        first = min(FIRST_VALUES - self._skipped, len(values))
        self._skipped += first
        super().extend(steps[first:], list(map(math.log, values[first:])))

    def is_known(self, episode: Episode, scale: _Shifts) -> bool:
        return any(abs(episode.since - other.since) <= scale.reach or other.covers(episode) for other in self.episodes)


class _Shifts(_Scale):
    """Goes through the logarithms of the values."""

    def __init__(self, blocks: int, least: float) -> None:
        super().__init__(blocks)
        self.reach = 3 * blocks * BLOCK_STEPS
        """Steps by which another scale may date the same change differently."""
        self._least = least
        self._usual: list[float] = []
        self._usual_lows: list[float] = []
        self._level = self._noise = 0.0
        self._lowest = math.inf
        self._lowest_noise = 0.0
        self._direction = 0
        """Of the change that may be one."""
        self._changed: list[float] = []
        """Its blocks."""
        self._changed_lows: list[float] = []
        self._edge: list[_Block] = []
        """Where it began: the blocks just before it, and its first."""
        self._before = 0.0
        """The last step before it."""
        self._recent: deque[Sequence[_Block]] = deque(maxlen=2)
        self._history: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        """The first step of everything that was looked at, and the middle."""
        self._lasting: list[tuple[int, float]] = []
        """The episodes that last, and the level before each."""

    def judge(self, blocks: Sequence[_Block]) -> None:
        if len(blocks) == 1:
            value, low = blocks[0].middle, blocks[0].low
        else:
            value = _middle(sorted([block.middle for block in blocks]))
            low = _middle(sorted([block.low for block in blocks]))
        self._history.append((blocks[0].steps[0], value))
        last = blocks[-1].last
        if len(self._usual) < LEAST_REFERENCE:
            self._take(last, value, low)
        else:
            self._compare(blocks, last, value, low)
        self._recent.append(blocks)

    def _compare(self, blocks: Sequence[_Block], last: float, value: float, low: float) -> None:
        step = value - self._level
        if self._changed and (step > 0) != (self._direction > 0):
            self.go_back()
        if abs(step) > max(self._least / 2, 3 * self._noise):
            self._direction = 1 if step > 0 else -1
            self._change(blocks, value, low)
            self._name_change(last)
        elif self._changed:
            self._change(blocks, value, low)
            far = sum(abs(other - self._level) > self._least / 2 for other in self._changed)
            if far < 0.7 * len(self._changed):
                self.go_back()
        else:
            self._take(last, value, low)

    def _change(self, blocks: Sequence[_Block], value: float, low: float) -> None:
        if not self._changed:
            self._before = self._recent[-1][-1].last
            self._edge = [*chain.from_iterable(self._recent), *blocks]
        elif len(self._changed) == 1:
            self._edge += blocks
        self._changed.append(value)
        self._changed_lows.append(low)

    def _take(self, last: float, value: float, low: float) -> None:
        """One more usual block."""
        self._usual.append(value)
        self._usual_lows.append(low)
        if len(self._usual) > 2 * REFERENCE:
            del self._usual[:REFERENCE], self._usual_lows[:REFERENCE]
        if len(self._usual) % 5 and len(self._usual) > LEAST_REFERENCE:
            return
        recent = sorted(self._usual[-REFERENCE:])
        self._level = _middle(recent)
        # Of two modes the rarer one is noise too, which a median absolute deviation does not see.
        spread = max(_scale(recent), 0.39 * (_quantile(recent, 0.9) - _quantile(recent, 0.1)))
        # Few of them are alike by chance.
        self._noise = max(spread * (1 + LEAST_REFERENCE / len(recent)), FLOOR / 2)
        if len(self._usual) >= REFERENCE:
            if self._level < self._lowest:
                self._lowest, self._lowest_noise = self._level, self._noise
            elif not self._lasting and self._level - self._lowest > max(2.5 * self._least, CLEAR * self._lowest_noise):
                self._name_drift(last)

    def go_back(self) -> None:
        """The change did not last: its blocks were usual after all."""
        self._usual += self._changed
        self._usual_lows += self._changed_lows
        self._changed, self._changed_lows = [], []

    def _name_change(self, last: float) -> None:
        if len(self._changed) < LEAST_BLOCKS or last - self._before < LEAST_STEPS:
            return
        level = self._level
        step = _middle(sorted(self._changed)) - level
        error = self._noise * math.sqrt(1 / len(self._changed) + 1 / min(len(self._usual), REFERENCE))
        if abs(step) < JUST * self._least or abs(step) < CLEAR * error:
            return
        # Where batches are of two lengths, chance moves the middle from one to the other.
        lows = _middle(sorted(self._changed_lows)) - _middle(sorted(self._usual_lows[-REFERENCE:]))
        if lows * step < LOWS * step * step:
            return
        since = self._find_start(step)
        self._usual, self._changed = self._changed, []
        self._usual_lows, self._changed_lows = self._changed_lows, []
        self._level = level + step
        if step > 0:
            self._name(since, last, level, self._level, self._noise)
        else:
            while self._lasting and self._level < self._lasting[-1][1] + self._least / 2:
                self.end(self._lasting.pop()[0], since)

    def _name_drift(self, last: float) -> None:
        halfway = (self._lowest + self._level) / 2
        since = self._history[0][0]
        for (_, value), (following, _) in pairwise(self._history):
            if value <= halfway:
                since = following
        self._name(since, last, self._lowest, self._level, self._lowest_noise)

    def _name(self, since: float, last: float, before: float, after: float, noise: float) -> None:
        self._lasting.append((len(self.found), before))
        deviations = (after - before) / max(noise, 1e-12)
        self.found.append(Episode(int(since), int(last), None, math.exp(before), math.exp(after), deviations))

    def _find_start(self, step: float) -> float:
        """Where the level changed, to the step: where those before fit the old and those after the new."""
        steps = list(chain.from_iterable(block.steps for block in self._edge))
        values = chain.from_iterable(block.values for block in self._edge)
        total = lowest = 0.0
        since = steps[0]
        for value, following in zip(values, [*steps[1:], steps[-1]], strict=True):
            off = (value - self._level - step / 2) * math.copysign(1.0, step)
            # A single wild value must not decide where.
            total += min(max(off, -abs(step)), abs(step))
            if total < lowest:
                lowest, since = total, following
        return since


# -- a loss that rose

RISE_BLOCKS = 5
"""Blocks that are looked at together ..."""
RISE_FEWEST = 8
"""... and as many values at least."""
RISE_HELD = 6
"""Blocks in a row in which it is high before it is named."""
RISE_HISTORY = 60
"""Changes from window to window that say what is usual."""
RISE_FEW = 20
"""Changes of which the highest are still chance: of fewer, those downwards are looked at as well ..."""
RISE_LEAST = 6
"""... unless there are so many that their turns show how much they vary."""
RISE_HIGHEST = 0.97
"""Share of the changes above which they are taken for chance no more: a loss that wanders, as a generator's does, often
goes up by more than most of them."""
RISE_LAGS = (1, 2)
"""Windows between which these changes are."""
RISE_CLEAR = 6.5
"""Times the noise by which a rise must exceed it ..."""
RISE_LOUDER = 5.0
"""Times the noise when it was best: what is above it is the rise itself."""
RISE_UNUSUAL = 1.5
"""... and times the highest from which the value came back ..."""
RISE_FALLEN = 0.004
"""... and share of how far the value has fallen."""
RISE_BACK = 0.5
"""By this share of what is a rise it has come back: it is recovering."""
RISE_FALLS = 2.0
"""Standard errors by which the second half of what is looked at is lower than the first: so is it then."""
RISE_LEFT = 0.3
"""Share of the highest rise of an episode below which it is over: what came back that far is learned again."""
RISE_STRADDLING = 0.05
"""Share of windows with values of both signs from which on it goes around zero."""
RISE_RECENT = {1: 4, 5: 3}
"""Blocks of each scale, and windows within which the larger half of a rise took place. A value that is high for longer
is so as a rule, such as that of a generator whose discriminator has learnt."""
RISE_PARTS = 4
"""Parts of a slow rise, each of which is higher than the one before ..."""
RISE_PART = 0.05
"""... by this share of the rise, and by the noise."""
RISE_DOUBT = 2
"""Times as long it is high without a clear slow rise before that is usual."""
RISE_LEARNED = 0.5
"""Times the steps of such a rise for which it fell before: a value that soon rises for longer has learnt little that it
could lose, such as that of a generator whose discriminator learns."""
RISE_FROM_START = 0.6
"""Share of the steps so far: a value that never fell and rises since then has not learnt anything that it could lose,
such as that of a generator whose discriminator learns."""
EXPLODED = 5.0
"""Times where the run began."""


class RiseJudge(Judge["_Rises"]):
    """Where a value that should fall rose by `share` of its best and stays there."""

    def __init__(self, share: float) -> None:
        super().__init__([_Rises(blocks, share) for blocks in RISE_RECENT])

    def is_known(self, episode: Episode, scale: _Rises) -> bool:
        return any(other.overlaps(episode) for other in self.episodes)


class _Window(NamedTuple):
    """The last blocks, as one."""

    centre: float
    """The step in the middle of them."""
    middle: float
    noise: float
    """How much such a middle lies off by chance, as far as was known."""


def _upward(changes: Sequence[float]) -> float:
    """How far a value goes up by chance. How steeply it fell says nothing about that: changes of a loss that falls
    fast and then slowly are far apart, and none of them is noise."""
    spread = _scale(changes)
    if len(changes) >= RISE_FEW:
        return min(spread, max(_quantile(sorted(changes), RISE_HIGHEST), 0.0))
    if len(changes) < RISE_LEAST:
        return spread
    # Of few none is the highest that may come: how much they differ from one to the next says it too.
    turns = [abs(following - change) for change, following in pairwise(changes)]
    by_turns = DEVIATION * _middle(sorted(turns)) / math.sqrt(3) * (1 + LEAST_REFERENCE / len(turns))
    return min(spread, max(by_turns, *changes))


class _Rises(_Scale):
    """Goes through the medians of windows."""

    def __init__(self, blocks: int, share: float) -> None:
        super().__init__(blocks)
        self._share = share
        self._fewest = RISE_FEWEST * blocks
        self._recent = RISE_RECENT[blocks]
        self._pieces: deque[tuple[float, Sequence[float]]] = deque(maxlen=max(RISE_BLOCKS, RISE_FEWEST))
        """The first step and the values of those that are looked at."""
        self._start = math.nan
        self._began = math.nan
        """The same, for what is far above it: the middle of the opening, unless all of that is far above the start."""
        self._opening: list[float] = []
        self._first = 0.0
        self._windows: deque[_Window] = deque(maxlen=10 * RISE_HISTORY)
        self._changes = [deque[float](maxlen=RISE_HISTORY) for _ in RISE_LAGS]
        self._between = 0.0
        self._count = 0
        self._best = math.inf
        self._best_noise = math.inf
        """The noise that was known then."""
        self._straddling = 0
        self._peak = 0.0
        """How far above the best it is at most since it was there."""
        self._usual_peak = 0.0
        self._usual_best = math.inf
        """How far it was above the best before it came back, and the best of that time."""
        self._held = 0
        self._lasting: float | None = None
        """Below this, the episode that lasts is over."""
        self._high = 0.0
        """The highest in it."""

    def go_back(self) -> None:
        self._held = 0

    def judge(self, blocks: Sequence[_Block]) -> None:
        first, last = blocks[0].steps[0], blocks[-1].last
        values = blocks[0].values if len(blocks) == 1 else [block.middle for block in blocks]
        if math.isnan(self._start):
            self._first = first
            self._start = _middle(sorted(blocks[0].values[:3]))
        if math.isnan(self._began):
            self._open(blocks)
        self._pieces.append((first, values))
        apart = max(RISE_BLOCKS, -(-self._fewest // len(values)))
        if len(self._pieces) < apart:
            return
        pieces = self._pieces if len(self._pieces) == apart else list(self._pieces)[-apart:]
        ordered = sorted(chain.from_iterable(values for _, values in pieces))
        self._count += 1
        self._straddling += ordered[0] < 0 < ordered[-1] or (len(blocks) > 1 and any(b.both_signs for b in blocks))
        window = self._measure((pieces[0][0] + last) / 2, ordered, apart)
        if self._lasting is not None:
            self._follow(window, last)
        else:
            self._learn_peaks(window.middle, _middle(sorted(values)) if len(blocks) >= RISE_BLOCKS else window.middle)
            self._compare(window, ordered, last, apart)

    def _open(self, blocks: Sequence[_Block]) -> None:
        self._opening += chain.from_iterable(block.values for block in blocks)
        if len(self._opening) < RISE_FEWEST or blocks[-1].last - self._first < BLOCK_STEPS * RISE_BLOCKS - 1:
            return
        ordered, self._opening = sorted(self._opening), []
        far = _middle(ordered) > EXPLODED * self._start and self._start < _quantile(ordered, 0.05)
        self._began = self._start if far else max(self._start, _middle(ordered))

    def _measure(self, centre: float, ordered: Sequence[float], apart: int) -> _Window:
        middle, count = _middle(ordered), len(ordered)
        for lag, changes in zip(RISE_LAGS, self._changes, strict=True):
            if self._count > lag * apart:
                changes.append(middle - self._windows[-lag * apart].middle)
        if self._count % (5 if self._count < RISE_HISTORY else 15) == 0 and len(self._changes[0]) >= 3:
            # A value that wanders lies off by more the longer it does.
            self._between = max(_upward(changes) for changes in self._changes if len(changes) >= 3) / math.sqrt(2)
        inside = (ordered[int(0.84 * count)] - ordered[int(0.16 * count)]) / 2 * 1.25 / math.sqrt(count)
        window = _Window(centre, middle, max(self._between, inside))
        self._windows.append(window)
        return window

    def _follow(self, window: _Window, last: float) -> None:
        assert self._lasting is not None
        self._high = max(self._high, window.middle)
        base = self.found[-1].before
        if window.middle < max(self._lasting, base + RISE_LEFT * (self._high - base)):
            self.end(-1, last)
            self._lasting, self._held = None, 0
        else:
            self.found[-1] = self.found[-1]._replace(after=window.middle)

    def _compare(self, window: _Window, ordered: Sequence[float], last: float, apart: int) -> None:
        middle = window.middle
        # What is judged does not set its own bar: the noise known two windows ago.
        noise = self._windows[-min(2 * apart + 1, len(self._windows))].noise
        noise = min(noise, RISE_LOUDER * self._best_noise)
        noise = max(noise, 1e-12 + FLOOR / 2 * abs(middle))
        # Near zero a loss rises by factors and means nothing: a rise is large against how far it has fallen.
        limit = max(
            self._share * abs(self._best),
            RISE_FALLEN * (self._start - self._best),
            RISE_CLEAR * noise,
            RISE_UNUSUAL * self._usual_peak,
        )
        start = self._start
        exploded = (
            # Nearly all of them, not half.
            start > 0
            and middle > EXPLODED * self._began
            and self._count > apart
            and _quantile(ordered, 0.1) > 2 * self._began
        )
        high = exploded or (
            middle > self._best + limit
            and self._count > 4 * apart
            and middle > max(other.middle for other in self._latest(2 * apart)) - noise - RISE_BACK * limit
            # The loss of a policy gradient has no floor and no trend.
            and self._straddling < RISE_STRADDLING * self._count
        )
        self._held = self._held + 1 if high else 0
        if self._held < RISE_HELD or (not exploded and self._falls(apart, RISE_BACK / 2 * limit)):
            return
        base = min(self._best, start) if exploded else self._best
        rise = middle - base
        is_old = all(other.middle > base + rise / 2 for other in self._latest(self._recent * apart))
        if is_old and not exploded and not self._keeps_rising(base, rise, noise, apart):
            if self._held < RISE_DOUBT * RISE_HELD:
                return
            self._best = min(other.middle for other in self._latest(self._recent * apart))
            self._held, self._peak = 0, 0.0
            if rise > self._usual_peak:
                self._usual_peak, self._usual_best = rise, self._best
            return
        # Dated by what it was lately, if it had been up a little for long and then jumped.
        lately = base if is_old else max(base, min(other.middle for other in self._latest(2 * self._recent * apart)))
        edge = base + rise / 5 if exploded else lately + (middle - lately) / 5
        low = next((other for other in reversed(self._windows) if other.middle <= edge), None)
        since = low.centre if low is not None else self._windows[0].centre if not exploded else 0.0
        if is_old and not exploded:
            since -= (window.centre - since) / 4  # a slow rise took as long for the first fifth of it
        learned = max((other.centre for other in self._windows if other.middle <= base + rise / 5), default=self._first)
        early = learned - self._first < RISE_FROM_START * (last - self._first) and start - base < rise / 2
        # What a long look is needed for rose slowly.
        soon = (is_old or self._wanted > 1) and learned - self._first < RISE_LEARNED * (last - learned)
        if (early or soon) and not exploded:
            return
        self.found.append(Episode(int(since), int(last), None, base, middle, rise / noise))
        self._lasting, self._high = base + limit / 2, middle

    def _latest(self, count: int) -> list[_Window]:
        return list(self._windows)[-count:]

    def _falls(self, apart: int, least: float) -> bool:
        """Whether the second half of what is looked at is lower than the first."""
        values = list(chain.from_iterable(values for _, values in list(self._pieces)[-apart:]))
        half = len(values) // 2
        older, newer = sorted(values[:half]), sorted(values[-half:])
        spread = _scale([*(value - _middle(older) for value in older), *(value - _middle(newer) for value in newer)])
        return _middle(older) - _middle(newer) > max(least, RISE_FALLS * 1.25 * spread * math.sqrt(2 / half))

    def _keeps_rising(self, base: float, rise: float, noise: float, apart: int) -> bool:
        """Whether it did not jump up long ago, but went up all the time since then, and still does."""
        up = list(takewhile(lambda other: other.middle > base + rise / 5, reversed(self._windows)))[::-1]
        size = len(up) / RISE_PARTS
        if size < apart / 2:
            return False
        middles = [other.middle for other in up]
        parts = [_middle(sorted(middles[int(n * size) : int((n + 1) * size)])) for n in range(RISE_PARTS)]
        least = max(RISE_PART * rise, noise / math.sqrt(max(size / apart, 1)))
        return all(later - earlier > least for earlier, later in pairwise(parts))

    def _learn_peaks(self, middle: float, newest: float) -> None:
        """A value that wanders up and comes back may do so again. Once the best is lower by as much, it is another.
        `newest` is the middle of the newest part: of a jump that falls again, a long window sees little."""
        if middle < self._best:
            self._best = middle
            self._best_noise = self._windows[-1].noise
        if self._usual_best - self._best > self._usual_peak:
            self._usual_peak = 0.0
        above = middle - self._best
        self._peak = max(self._peak, above, newest - self._best)
        if max(above, newest - self._best) < self._peak / 2:
            if self._peak > self._usual_peak:
                self._usual_peak, self._usual_best = self._peak, self._best
            self._peak = above
