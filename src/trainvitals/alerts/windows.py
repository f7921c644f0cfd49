"""What a function remembers of the past. A new point costs the same whatever the length of the window or the run.

Values are kept in buckets, oldest first. In a window of steps every point is a bucket; in a window of
seconds a bucket is 1/600 of it, so that a trainer with 1,000 steps per second needs no more memory than one with one.
Means, deviations, slopes and extremes of every bucket are exact; quantiles look at the first value of each bucket.
NaN and infinity are omitted: they have separate functions.

Two stacks make the queue (one is added to, the other taken from), each with the fold of what lies in it: nothing is
ever subtracted, so a value of 1e30 that has left the window leaves no trace.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from trainvitals.alerts.language import Window
from trainvitals.episodes import Judge, RiseJudge, ShiftJudge
from trainvitals.leaks import LEAST_SECONDS, LEAST_STEPS, LeakJudge

BUCKETS = 600
BLOCK = 1000

F = TypeVar("F")


class Fold(Generic[F]):
    """A queue of buckets and the fold of all of them."""

    __slots__ = ("_back", "_back_fold", "_front", "_join")

    def __init__(self, join: Callable[[F, F], F]) -> None:
        self._join = join
        self._front: list[tuple[int, F]] = []  # newest first, each with the fold from it to the newest
        self._back: list[tuple[int, F]] = []  # oldest first, each as it is
        self._back_fold: F | None = None

    def add(self, bucket: int, item: F) -> None:
        back = self._back
        if back and back[-1][0] == bucket:
            back[-1] = (bucket, self._join(back[-1][1], item))
        else:
            back.append((bucket, item))
        self._back_fold = item if self._back_fold is None else self._join(self._back_fold, item)

    def expire(self, limit: int) -> None:
        """Drop the buckets up to and including `limit`."""
        while True:
            if not self._front:
                if not self._back or self._back[0][0] > limit:
                    return
                self._turn()
            while self._front and self._front[-1][0] <= limit:
                self._front.pop()
            if self._front:
                return

    def _turn(self) -> None:
        join = self._join
        fold: F | None = None
        for bucket, item in reversed(self._back):
            fold = item if fold is None else join(item, fold)
            self._front.append((bucket, fold))
        self._back = []
        self._back_fold = None

    def total(self) -> F | None:
        """The fold of everything in the window, None if it is empty."""
        front = self._front[-1][1] if self._front else None
        if front is None:
            return self._back_fold
        return front if self._back_fold is None else self._join(front, self._back_fold)


Moments = tuple[int, float, float]
"""Number of values, mean, sum of squared differences from it."""


def join_moments(a: Moments, b: Moments) -> Moments:
    n = a[0] + b[0]
    d = b[1] - a[1]
    return n, a[1] + d * b[0] / n, a[2] + b[2] + d * d * a[0] * b[0] / n


Line = tuple[int, float, float, float, float, float]
"""Number, mean of x, mean of y, Sxx, Sxy, Syy."""


def join_line(a: Line, b: Line) -> Line:
    n = a[0] + b[0]
    dx, dy = b[1] - a[1], b[2] - a[2]
    share = a[0] * b[0] / n
    return (
        n,
        a[1] + dx * b[0] / n,
        a[2] + dy * b[0] / n,
        a[3] + b[3] + dx * dx * share,
        a[4] + b[4] + dx * dy * share,
        a[5] + b[5] + dy * dy * share,
    )


class SortedValues:
    """Values in order, in blocks of bounded size, so that adding and removing move little."""

    __slots__ = ("_blocks", "_lasts", "size")

    def __init__(self) -> None:
        self._blocks: list[list[float]] = []
        self._lasts: list[float] = []
        self.size = 0

    def add(self, value: float) -> None:
        self.size += 1
        if not self._blocks:
            self._blocks.append([value])
            self._lasts.append(value)
            return
        place = min(bisect_left(self._lasts, value), len(self._lasts) - 1)
        block = self._blocks[place]
        insort(block, value)
        if len(block) > 2 * BLOCK:
            self._blocks.insert(place + 1, block[BLOCK:])
            self._lasts.insert(place, block[BLOCK - 1])
            del block[BLOCK:]
        else:
            self._lasts[place] = block[-1]

    def remove(self, value: float) -> None:
        """Take out one that was added."""
        place = bisect_left(self._lasts, value)
        block = self._blocks[place]
        del block[bisect_right(block, value) - 1]
        self.size -= 1
        if block:
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def quantile(self, share: float) -> float:
        """Between the two nearest values, as numpy's default does."""
        where = share * (self.size - 1)
        low = int(where)
        if len(self._blocks) == 1:  # nearly always
            block = self._blocks[0]
            a = block[low]
            return a if where == low else a + (block[low + 1] - a) * (where - low)
        a = self._at(low)
        if where == low:
            return a
        b = self._at(low + 1)
        return a + (b - a) * (where - low)

    def _at(self, index: int) -> float:
        for block in self._blocks:
            if index < len(block):
                return block[index]
            index -= len(block)
        raise IndexError(index)


class Memory(ABC):
    """What functions keep of one series over one window. `add` a value; then ask one of its questions.

    `index` (how many points there were) and `now` come with every call, so that a window of seconds also empties when
    nothing arrives. An answer is None as long as the window holds too little to judge by: it must be half full for a
    mean or a quantile.
    """

    __slots__ = ("_count", "_first_time", "_seconds", "_steps", "_width")

    def __init__(self, window: Window) -> None:
        self._steps = window.steps if window.values is None else window.values
        self._count = None if window.values is None else 0
        """How many values there were, where they are counted instead of lines."""
        self._seconds = window.seconds
        self._width = (window.seconds or 0.0) / BUCKETS
        self._first_time: float | None = None

    def add(self, value: float, index: int, step: float, now: float) -> None:
        if value - value != 0.0:
            return  # NaN or infinite
        if self._count is not None:
            self._count = index = self._count + 1
        if self._steps is not None:
            self.drop(index - self._steps)
            self.keep(index, value, step, now)
            return
        if self._first_time is None:
            self._first_time = now
        self.expire(now)
        self.keep(int(now / self._width) if self._width else 0, value, step, now)  # "all" is one bucket

    def expire(self, now: float) -> None:
        """Let go of what is too old; a window of steps does so when a value is added."""
        if self._seconds is not None:
            self.drop(int((now - self._seconds) / self._width))

    def is_half_full(self, count: int, now: float) -> bool:
        if self._steps is not None:
            return 2 * count >= self._steps
        if self._seconds is not None:
            first = self._first_time
            return first is not None and now - first >= self._seconds / 2 and count >= 3
        return count > 0

    @abstractmethod
    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        """Take a finite value into its bucket."""

    @abstractmethod
    def drop(self, limit: int) -> None:
        """Let go of the buckets up to and including `limit`."""


class MomentMemory(Memory):
    """mean, std"""

    __slots__ = ("_fold",)

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._fold: Fold[Moments] = Fold(join_moments)

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        self._fold.add(bucket, (1, value, 0.0))

    def drop(self, limit: int) -> None:
        self._fold.expire(limit)

    def mean(self, now: float) -> float | None:
        self.expire(now)
        total = self._fold.total()
        return total[1] if total is not None and self.is_half_full(total[0], now) else None

    def std(self, now: float) -> float | None:
        self.expire(now)
        total = self._fold.total()
        if total is None or total[0] < 2 or not self.is_half_full(total[0], now):
            return None
        return math.sqrt(max(total[2], 0.0) / (total[0] - 1))


class ScoreMemory(MomentMemory):
    """zscore: how far the newest value lies from the mean of those before it, in standard deviations."""

    __slots__ = ("_score",)

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._score: float | None = None

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        mean, std = self.mean(now), self.std(now)
        self._score = (value - mean) / std if mean is not None and std else None
        super().keep(bucket, value, step, now)

    def zscore(self, now: float) -> float | None:
        return self._score


class ExtremeMemory(Memory):
    """min or max. Over seconds only once half of them have passed: `max(utilization, 10m) < 5` is about a time."""

    __slots__ = ("_fold",)

    def __init__(self, window: Window, extreme: Callable[..., float]) -> None:
        super().__init__(window)
        self._fold: Fold[float] = Fold(extreme)

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        self._fold.add(bucket, value)

    def drop(self, limit: int) -> None:
        self._fold.expire(limit)

    def extreme(self, now: float) -> float | None:
        self.expire(now)
        return self._fold.total() if self._seconds is None or self.is_half_full(3, now) else None


class CountMemory(Memory):
    """count: how many points there were, NaN and infinity included."""

    __slots__ = ("_fold",)

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._fold: Fold[int] = Fold(int.__add__)

    def add(self, value: float, index: int, step: float, now: float) -> None:
        super().add(0.0, index, step, now)

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        self._fold.add(bucket, 1)

    def drop(self, limit: int) -> None:
        self._fold.expire(limit)

    def count(self, now: float) -> float | None:
        self.expire(now)
        return float(self._fold.total() or 0)


class LineMemory(Memory):
    """slope (per step, or per second in a window of seconds), and correlation with time, from -1 to 1"""

    __slots__ = ("_fold", "_origin")

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._fold: Fold[Line] = Fold(join_line)
        self._origin: float | None = None

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        x = now if self._width else step
        if self._origin is None:
            self._origin = x
        self._fold.add(bucket, (1, x - self._origin, value, 0.0, 0.0, 0.0))

    def drop(self, limit: int) -> None:
        self._fold.expire(limit)

    def _line(self, now: float) -> Line | None:
        self.expire(now)
        line = self._fold.total()
        if line is None or line[0] < 3 or line[3] <= 0 or not self.is_half_full(line[0], now):
            return None
        return line

    def slope(self, now: float) -> float | None:
        line = self._line(now)
        return None if line is None else line[4] / line[3]

    def correlation(self, now: float) -> float | None:
        line = self._line(now)
        if line is None:
            return None
        return line[4] / math.sqrt(line[3] * line[5]) if line[5] > 0 else 0.0


class ChangeMemory(Memory):
    """change (newest minus oldest), and rate (the same per second)"""

    __slots__ = ("_items", "_newest")

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._items: deque[tuple[int, float, float]] = deque()
        self._newest: tuple[float, float] | None = None

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        if not self._items or self._items[-1][0] != bucket:
            self._items.append((bucket, value, now))
        self._newest = (value, now)

    def drop(self, limit: int) -> None:
        # The newest value before the window is where the change begins: a counter that is read once a minute and rose
        # between two readings has changed within the last ten seconds too.
        while len(self._items) > 1 and self._items[1][0] <= limit:
            self._items.popleft()

    def change(self, now: float) -> float | None:
        self.expire(now)
        return self._newest[0] - self._items[0][1] if self._newest is not None and self._items else None

    def rate(self, now: float) -> float | None:
        change = self.change(now)
        if change is None or self._newest is None or not self.is_half_full(max(len(self._items), 3), now):
            return None
        elapsed = self._newest[1] - self._items[0][2]
        return change / elapsed if elapsed > 0 else None


class SortedMemory(Memory):
    """median, quantile, deviation"""

    __slots__ = ("_newest", "_order", "_sorted")

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._order: deque[tuple[int, float]] = deque()
        self._sorted = SortedValues()
        self._newest = 0.0

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        self._newest = value
        if not self._order or self._order[-1][0] != bucket:
            self._order.append((bucket, value))
            self._sorted.add(value)

    def drop(self, limit: int) -> None:
        order = self._order
        while order and order[0][0] <= limit:
            self._sorted.remove(order.popleft()[1])

    def quantile(self, now: float, share: float = 0.5) -> float | None:
        found = self._sorted
        if self._steps is not None:
            return found.quantile(share) if 2 * found.size >= self._steps else None
        self.expire(now)
        return found.quantile(share) if self.is_half_full(found.size, now) else None

    def deviation(self, now: float) -> float | None:
        """How far the newest value lies from the median, in robust standard deviations.

        The scale is half the distance between the 16 % and the 84 % quantile, but never under 0.5 % of the median: on
        a perfectly steady series the smallest change is not an event.
        """
        centre = self.quantile(now)
        if centre is None:
            return None
        scale = (self._sorted.quantile(0.84) - self._sorted.quantile(0.16)) / 2
        scale = max(scale, 0.005 * abs(centre))
        return (self._newest - centre) / scale if scale > 0 else None


class ImprovementMemory(Memory):
    """since_improved: steps since the value was lower than ever before by at least a share of itself."""

    __slots__ = ("_best", "_best_step", "_share", "_step")

    def __init__(self, share: float) -> None:
        super().__init__(Window())
        self._share = share
        self._best: float | None = None
        self._best_step = 0.0
        self._step = 0.0

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        self._step = step
        if self._best is None or value < self._best - self._share * abs(self._best):
            self._best, self._best_step = value, step
        elif step < self._best_step:  # resumed from a checkpoint
            self._best_step = step

    def drop(self, limit: int) -> None:
        pass  # it looks at everything there was

    def since(self, now: float) -> float | None:
        return None if self._best is None else self._step - self._best_step


class EarlyMemory(Memory):
    """baseline: the median of the run's own early window, 100 values after the first 50. None before it is complete."""

    __slots__ = ("_early", "_values")

    SKIP, COUNT = 50, 100

    def __init__(self) -> None:
        super().__init__(Window())
        self._values: list[float] | None = []
        self._early: float | None = None

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        if self._values is None:
            return
        self._values.append(value)
        if len(self._values) >= self.SKIP + self.COUNT:
            early = sorted(self._values[self.SKIP :])
            self._early = early[len(early) // 2]
            self._values = None

    def drop(self, limit: int) -> None:
        pass  # it is kept for the whole run

    def early(self, now: float) -> float | None:
        return self._early


class EpisodeMemory(Memory):
    """shifted, risen: by which share the value is above what it was, since it changed for good; 0 while it has not."""

    __slots__ = ("_judge", "_step")

    def __init__(self, judge: Judge[Any] | LeakJudge) -> None:
        super().__init__(Window())
        self._judge = judge
        self._step = 0.0

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        self._step = step
        self._judge.add(step, value)

    def drop(self, limit: int) -> None:
        pass  # it looks at everything there was

    def share(self, now: float) -> float | None:
        lasting = self._judge.lasting
        return lasting.share if lasting is not None else 0.0

    def since(self, now: float) -> float | None:
        """Steps since the newest began, whether it lasts or not."""
        episodes = self._judge.episodes
        return self._step - episodes[-1].since if episodes else None


class LeakMemory(EpisodeMemory):
    """leaking: the same of memory that grows without end: over the steps of a rank, over time of anything else."""

    __slots__ = ("_has_steps",)

    def __init__(self, share: float, has_steps: bool) -> None:
        super().__init__(LeakJudge(share, LEAST_STEPS if has_steps else LEAST_SECONDS))
        self._has_steps = has_steps

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        super().keep(bucket, value, step if self._has_steps else now, now)


class FirstMemory(Memory):
    """first: the median of the first values. None before they are complete."""

    __slots__ = ("_median", "_size", "_values")

    def __init__(self, window: Window) -> None:
        super().__init__(Window())
        self._size = window.values or 1
        self._values: list[float] = []
        self._median: float | None = None

    def keep(self, bucket: int, value: float, step: float, now: float) -> None:
        if self._median is None:
            insort(self._values, value)
            if len(self._values) == self._size:
                self._median = (self._values[self._size // 2] + self._values[(self._size - 1) // 2]) / 2

    def drop(self, limit: int) -> None:
        pass  # it is kept for the whole run

    def first(self, now: float) -> float | None:
        return self._median


# Function -> what it keeps (functions with the same memory share it), and how it asks.
_MEMORIES: dict[str, tuple[str, Callable[[Window, float, bool], Memory], str]] = {
    "mean": ("moments", lambda window, share, has_steps: MomentMemory(window), "mean"),
    "std": ("moments", lambda window, share, has_steps: MomentMemory(window), "std"),
    "zscore": ("score", lambda window, share, has_steps: ScoreMemory(window), "zscore"),
    "min": ("min", lambda window, share, has_steps: ExtremeMemory(window, min), "extreme"),
    "max": ("max", lambda window, share, has_steps: ExtremeMemory(window, max), "extreme"),
    "slope": ("line", lambda window, share, has_steps: LineMemory(window), "slope"),
    "correlation": ("line", lambda window, share, has_steps: LineMemory(window), "correlation"),
    "rate": ("change", lambda window, share, has_steps: ChangeMemory(window), "rate"),
    "change": ("change", lambda window, share, has_steps: ChangeMemory(window), "change"),
    "count": ("count", lambda window, share, has_steps: CountMemory(window), "count"),
    "median": ("sorted", lambda window, share, has_steps: SortedMemory(window), "quantile"),
    "quantile": ("sorted", lambda window, share, has_steps: SortedMemory(window), "quantile"),
    "deviation": ("sorted", lambda window, share, has_steps: SortedMemory(window), "deviation"),
    "since_improved": ("improvement", lambda window, share, has_steps: ImprovementMemory(share), "since"),
    "shifted": ("shift", lambda window, share, has_steps: EpisodeMemory(ShiftJudge(share)), "share"),
    "since_shifted": ("shift", lambda window, share, has_steps: EpisodeMemory(ShiftJudge(share)), "since"),
    "risen": ("rise", lambda window, share, has_steps: EpisodeMemory(RiseJudge(share)), "share"),
    "since_risen": ("rise", lambda window, share, has_steps: EpisodeMemory(RiseJudge(share)), "since"),
    "leaking": ("leak", lambda window, share, has_steps: LeakMemory(share, has_steps), "share"),
    "baseline": ("early", lambda window, share, has_steps: EarlyMemory(), "early"),
    "early": ("early", lambda window, share, has_steps: EarlyMemory(), "early"),
    "first": ("first", lambda window, share, has_steps: FirstMemory(window), "first"),
}


def family(name: str) -> str:
    """Functions of one family over the same window of the same series share their memory."""
    return _MEMORIES[name][0]


def create(name: str, window: Window, share: float = 0.5, *, has_steps: bool = True) -> Memory:
    """The memory of that function, over something that has steps or only times."""
    return _MEMORIES[name][1](window, share, has_steps)


def question(name: str, memory: Memory, share: float = 0.5) -> Callable[[float], float | None]:
    """How that function asks its memory, given the time."""
    ask: Callable[..., float | None] = getattr(memory, _MEMORIES[name][2])
    return (lambda now: ask(now, share)) if name == "quantile" else ask
