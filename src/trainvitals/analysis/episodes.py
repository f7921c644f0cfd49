"""What began at some step and lasted, in a whole curve: slower steps, a rising loss, single wild values.

Everything here judges a value by those before it only, so that what a finished run is said to have had is what would
have been reported while it ran: nothing that was found once is gone when there are more values, and `named_at` is the
step at which it was known. Tested in tests/test_episodes.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainvitals.analysis.findings import Curve, Floats
from trainvitals.episodes import DEVIATION, FLOOR, Episode, Judge, RiseJudge, ShiftJudge


def find_shifts(curve: Curve, share: float) -> list[Episode]:
    """Where the values, which are positive, rose by `share` or more and stay there, in order."""
    return _judge(curve, ShiftJudge(share))


def find_rises(curve: Curve, share: float) -> list[Episode]:
    """Where a value that should fall rose by `share` of its best and stays there, in order."""
    return _judge(curve, RiseJudge(share))


def _judge(curve: Curve, judge: Judge[Any]) -> list[Episode]:
    judge.extend(curve.x.tolist(), curve.y.tolist())
    return sorted(judge.episodes)


def stride_of(x: Floats) -> float:
    """Steps from one value to the next."""
    return max(float(np.median(np.diff(x))), 1e-9) if len(x) > 1 else 1.0


MAX_HOPS = 10_000
"""Places of a curve at which the usual is worked out anew."""
SPIKE_WINDOW = 100
"""Steps before a value that say what is usual, at most as many values ..."""
SPIKE_LEAST_WINDOW = 20
"""... and at least as many."""
SPIKE_FEWEST = 30
SPIKE_APART = 20
"""Steps without one after which the next is another spike ..."""
SPIKE_LEAST_APART = 3
"""... and as many values at least."""
SPIKE_SHARE = 0.12
SPIKE_FACTOR = 0.5
GIANT_TIMES = 10.0
"""Times the usual, and ..."""
GIANT_DEVIATIONS = 5.0
"""... deviations on both scales from which on a value is a spike, however few there were and however often it comes."""
SPIKE_NEAR_ZERO = 0.003
"""Share of where the run was farthest off below which a loss is zero, and its jumps are nothing."""


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
    farthest = np.maximum.accumulate(np.abs(level))
    tall = y - level > SPIKE_SHARE * farthest
    giant = tall & (level > 0) & (y > GIANT_TIMES * level) & (height > GIANT_DEVIATIONS)
    # What is not large is one only if nothing like it could come of the noise.
    near_zero = np.abs(level) < SPIKE_NEAR_ZERO * farthest
    tall |= (height > 1.5 * bar) & (y - level > SPIKE_FACTOR * np.abs(level)) & ~near_zero
    high = np.flatnonzero(((height > np.where(few, 2 * bar, bar)) & tall) | giant)
    if not len(high):
        return []
    calm = np.flatnonzero(height < deviations / 2)
    found = []
    apart = max(round(SPIKE_APART / stride_of(x)), SPIKE_LEAST_APART)
    for group in np.split(high, np.flatnonzero(np.diff(high) > apart) + 1):
        first, last = int(group[0]), int(group[-1])
        peak = first + int(y[first : last + 1].argmax())
        # Where values stay high the usual level comes up to them in the end: that is no recovery.
        low = (level[first] + y[peak]) / 2
        after = next((at for at in calm[np.searchsorted(calm, last) :] if y[at] < low), None)
        found.append(
            Episode(
                int(x[first]),
                int(x[first]),
                int(x[after]) if after is not None else None,
                float(level[first]),
                float(y[peak]),
                float(height[group].max()),
            )
        )
    return found


def _heights(y: Floats, window: int) -> tuple[Floats, Floats]:
    """How many deviations each value is above the median of those before it, and that median."""
    hop = max(window // 10, len(y) // MAX_HOPS)
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
