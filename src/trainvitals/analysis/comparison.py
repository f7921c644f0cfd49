"""Two or more runs beside each other: what differs in their configuration, and which came out better.

Both curves are compared at the same steps, at the end of those they have in common. The noise is what is left of each
curve around its own trend: a loss that falls does not count as noisy. Neighbouring values of a training are alike, so
they count as fewer than they are. Where there are several seeds, the noise is what differs between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.chance import ROUNDING, detrended_size, t_confidence
from trainvitals.analysis.metric_sense import Direction, better, is_share
from trainvitals.analysis.wording import count_of, percent
from trainvitals.episodes import FLOOR
from trainvitals.journal.flat_config import flatten

Floats = NDArray[np.float64]
XY = tuple[Floats, Floats]

STRETCH = 0.2
"""Share of the common steps, at their end, that is compared."""
SURE = 0.99
NOTABLE = 0.01
"""Relative difference below which even a certain difference is called the same."""
DENSE = 8
"""Values in the stretch from which on they show their own noise; fewer, such as evaluations, take it from the curve."""
MEANS = 60
"""Into how many means many values are taken together, so that a long memory of the noise is seen too."""
LAGS = (1, 2, 4)
"""Distances at which the roughness of a curve is compared."""
LIKENESSES = tuple(step / 50 for step in range(50))
NOISE_VALUES = 200
LEAST_FREEDOM = 2.0
"""Of many values, however alike neighbours are."""
FAR_APART = 0.5
"""Relative to the larger: values this far apart are called better or worse even if the noise is not known."""


Word = Literal["better", "worse", "same", "different", "uncertain"]
"""`different` where no direction is known."""


class Verdict(NamedTuple):
    """What came of comparing one metric of one run with the same of the baseline."""

    metric: str
    word: Word
    baseline: float | None
    value: float | None
    change: float | None
    """Relative to the baseline; None where that is 0."""
    confidence: float | None
    """That the difference is not chance, 0 to 1."""
    reason: str


class Difference(NamedTuple):
    """One key of the configuration whose value is not the same in all runs."""

    key: str
    values: tuple[Any, ...]
    """One per run; None where the run does not have it."""


def compare_configs(configs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Every key whose value differs or that some run lacks, in order of name."""
    flat = [flatten(config) for config in configs]
    keys = sorted({key for config in flat for key in config})
    missing = object()
    differing = [key for key in keys if any(c.get(key, missing) != flat[0].get(key, missing) for c in flat[1:])]
    return [Difference(key, tuple(config.get(key) for config in flat)) for key in differing]


SEED_KEYS = frozenset({"seed", "random_seed", "manual_seed", "rng_seed"})


def without_seed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat configuration without what only makes another attempt of the same experiment."""
    return {key: value for key, value in flat.items() if key.rpartition(".")[2] not in SEED_KEYS}


def group_seeds(configs: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Which runs differ in nothing but their seed, by index, in order. Runs without a seed, or with the same one, are
    apart; so are all if there is nothing else to compare them with."""
    groups: list[list[int]] = []
    kinds: list[tuple[dict[str, Any], list[Any]]] = []
    for place, config in enumerate(configs):
        flat = flatten(config)
        rest = without_seed(flat)
        seed = {key: value for key, value in flat.items() if key not in rest}
        fitting = (n for n, (kind, seen) in enumerate(kinds) if kind == rest and seed not in seen and {} not in seen)
        at = next(fitting, len(kinds)) if seed else len(kinds)
        if at == len(kinds):
            groups.append([])
            kinds.append((rest, []))
        groups[at].append(place)
        kinds[at][1].append(seed)
    return groups if len(groups) > 1 else [[place] for place in range(len(configs))]


class EndLevel(NamedTuple):
    """What a metric came to at the end of the common steps, in one run or in the mean of several seeds."""

    value: float
    error: float | None
    """Standard error; None if there are too few values to know."""
    freedom: float
    """Degrees of freedom of `error`."""


def compare_metric(
    metric: str,
    baseline: XY | Sequence[XY],
    other: XY | Sequence[XY],
    stretch: tuple[float, float] | None = None,
) -> Verdict:
    """Each side is (x, y), ascending in x, or several of them: one per seed. `stretch` is the part of x that is
    compared, where the caller knows it (see `last_stretch`); a curve may go back further, which helps where the stretch
    has few values."""
    sides = [_as_curves(side) for side in (baseline, other)]
    curves = [curve for side in sides for curve in side]
    if not all(len(side) for side in sides):
        return _unknown(metric, "not logged by both runs")
    begin, end = last_stretch(*(x for x, _ in curves)) if stretch is None else stretch
    if end < begin:
        return _unknown(metric, "the runs have no steps in common")
    broken = [any(not np.isfinite(_within(curve, begin, end)[1]).all() for curve in side) for side in sides]
    finite = [[(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in side] for side in sides]
    kept = [[curve for curve in side if len(curve[0]) and curve[0][0] <= end] for side in finite]
    a, b = (_join(levels) if (levels := _levels(side, begin, end, kept)) else None for side in kept)
    if broken[0] != broken[1]:
        word: Word = "worse" if broken[1] else "better"
        reason = "NaN or infinite, unlike the baseline" if broken[1] else "finite, unlike the baseline"
        values = a.value if a is not None and not broken[0] else None, b.value if b is not None and broken[0] else None
        return Verdict(metric, word, *values, None, 1.0, reason)
    if a is None or b is None:
        values = a.value if a is not None else None, b.value if b is not None else None
        return Verdict(metric, "uncertain", *values, None, None, "no finite values in the compared steps")
    change = (b.value - a.value) / abs(a.value) if a.value else None
    confidence = _confidence(a, b, (len(kept[0]), len(kept[1])))
    notable = NOTABLE * _measure(metric, a.value, b.value)
    word = _word(a.value, b.value, notable, confidence, better(metric))
    return Verdict(metric, word, a.value, b.value, change, confidence, _explain(word, confidence, kept, begin, end))


def last_stretch(*xs: Floats) -> tuple[float, float]:
    """The end of what all have; begins after it ends where they have nothing in common."""
    end, start = float(min(x[-1] for x in xs)), float(max(x[0] for x in xs))
    return (end - (end - start) * STRETCH, end) if end >= start else (start, end)


def _as_curves(side: XY | Sequence[XY]) -> list[XY]:
    curves = [side] if isinstance(side[0], np.ndarray) else side
    return [(x, y) for x, y in curves if len(x)]  # type: ignore[misc]


def _unknown(metric: str, reason: str) -> Verdict:
    return Verdict(metric, "uncertain", None, None, None, None, reason)


def _within(curve: XY, begin: float, end: float) -> XY:
    x, y = curve
    chosen = (x >= begin) & (x <= end)
    return x[chosen], y[chosen]


# -- what a curve came to


def _levels(curves: Sequence[XY], begin: float, end: float, all_curves: Sequence[Sequence[XY]]) -> list[EndLevel]:
    """Of every curve at the same places: the middle of the stretch, or where the sparsest has its values."""
    parts = [_within(curve, begin, end)[0] for side in all_curves for curve in side]
    known = [part for part in parts if len(part)]
    sparsest = min(known, key=len) if known else np.array([end])
    places = sparsest if len(sparsest) < DENSE else np.array([(begin + end) / 2])
    return [_level(curve, _within(curve, begin, end), places) for curve in curves]


def _level(curve: XY, stretch: XY, places: Floats) -> EndLevel:
    x, y = stretch
    noise = _noise(*curve)
    if len(y) < DENSE:
        value = float(np.interp(places, *curve).mean())
        error = None if noise is None else noise.error_of(len(y), FLOOR * abs(value))
        return EndLevel(value, error, noise.freedom if noise is not None else 0.0)
    few = len(y) < MEANS
    size = -(-len(y) // MEANS)
    count = len(y) // size
    x, y = (part[len(part) - count * size :].reshape(count, size).mean(axis=1) for part in (x, y))
    slope, residuals = _detrend(x, y)
    # The line took two of the independent values that the mean square of what is left would need.
    freedom = max(detrended_size(residuals) - 2, LEAST_FREEDOM)
    error = math.sqrt(float((residuals * residuals).mean()) / freedom)
    if few and noise is not None:
        # A few neighbours look independent: what came before them shows how alike they are.
        error, freedom = max(error, noise.error_of(count)), min(freedom, max(noise.freedom, LEAST_FREEDOM))
    return EndLevel(float(y.mean()) + slope * float(places.mean() - x.mean()), error, freedom)


def _detrend(x: Floats, y: Floats) -> tuple[float, Floats]:
    """The slope of the line through the values, and what is left of them around it."""
    from_middle = x - x.mean()
    square = float((from_middle * from_middle).sum())
    slope = float((from_middle * y).sum()) / square if square else 0.0
    residuals: Floats = y - y.mean() - slope * from_middle
    return slope, np.where(np.abs(residuals) <= ROUNDING * np.abs(y).max(), 0.0, residuals)


class _Noise(NamedTuple):
    """What the values around the trend at the end of a curve are like."""

    deviation: float
    likeness: float
    """Of neighbours: their correlation."""
    freedom: float
    """Degrees of freedom of `deviation`."""

    def error_of(self, count: int, least: float = 0.0) -> float:
        """The standard error of the mean of so many neighbours."""
        worth = max(count * (1 - self.likeness) / (1 + self.likeness), 1.0)
        return max(self.deviation, least) / math.sqrt(worth)


def _noise(x: Floats, y: Floats) -> _Noise | None:
    """None for fewer than three values. The last half of the curve shows how large it is, all of it how alike
    neighbours are."""
    x, y = x[-NOISE_VALUES:], y[-NOISE_VALUES:]
    if len(y) < 3:
        return None
    start = min(len(y) // 2, max(len(y) - DENSE, 0))
    noise = _roughness(x[start:], y[start:])
    scaled = y
    if y.min() > 0:  # a curve that still falls steeply is straighter on a logarithmic scale
        scaled = np.log(y)
        noise = min(noise, _roughness(x[start:], scaled[start:]) * float(y[-1]))
    likeness = _likeness([_roughness(x, scaled, lag) for lag in LAGS if len(y) > 4 * lag])
    # Neighbouring triples overlap: they are worth about half of as many independent values (18/35).
    return _Noise(noise / math.sqrt(_seen(likeness)), likeness, max((len(y) - start - 2) * 18 / 35, 1.0))


def _roughness(x: Floats, y: Floats, lag: int = 1) -> float:
    """A standard deviation from how far each value is off the line between two others, `lag` before and after it
    (Gasser, Sroka and Jennen-Steinmetz 1986)."""
    spans = x[2 * lag :] - x[: -2 * lag]
    left = np.divide(x[2 * lag :] - x[lag:-lag], spans, out=np.full(len(spans), 0.5), where=spans > 0)
    off = left * y[: -2 * lag] + (1 - left) * y[2 * lag :] - y[lag:-lag]
    return math.sqrt(float((off * off / (left * left + (1 - left) * (1 - left) + 1)).mean()))


def _seen(likeness: float) -> float:
    """Share of the variance that the roughness sees, where neighbours are alike: each is close to the line between."""
    return max(1 - 4 / 3 * likeness + likeness * likeness / 3, 1e-3)


def _likeness(noises: Sequence[float]) -> float:
    """How alike neighbours are, from how much rougher a curve is at twice the distance."""
    found = []
    for lag, (near, far) in zip(LAGS, itertools.pairwise(noises), strict=False):
        ratio = min(max((far / near) ** 2 if near else 1.0, 1.0), 2.0)
        fits = [abs(_seen(like ** (2 * lag)) / _seen(like**lag) - ratio) for like in LIKENESSES]
        found.append(LIKENESSES[fits.index(min(fits))])
    return float(np.mean(found)) if found else 0.0


def _join(levels: Sequence[EndLevel]) -> EndLevel:
    """The mean of the seeds, with the error that their spread shows."""
    if len(levels) == 1:
        return levels[0]
    values = np.array([level.value for level in levels])
    return EndLevel(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def _confidence(a: EndLevel, b: EndLevel, seeds: tuple[int, int]) -> float | None:
    """That the difference is not chance; None if the noise of neither is known."""
    if math.isclose(a.value, b.value, rel_tol=ROUNDING):
        return 0.0
    if max(seeds) > 1:
        # Seeds of both spread alike, and one that is alone spreads as those of the other.
        known = [(level, count) for level, count in zip((a, b), seeds, strict=True) if count > 1]
        freedom = float(sum(count - 1 for _, count in known))
        variance = sum((level.error or 0.0) ** 2 * count * (count - 1) for level, count in known) / freedom
        error = math.sqrt(variance * (1 / seeds[0] + 1 / seeds[1]))
        return t_confidence(abs(a.value - b.value) / error, freedom) if error else 1.0
    known_errors = [level.error for level in (a, b) if level.error is not None]
    if not known_errors:
        return None
    squares = [(level.error if level.error is not None else known_errors[0]) ** 2 for level in (a, b)]
    total = sum(squares)
    if not total:
        return 1.0
    # Welch and Satterthwaite
    freedom = total**2 / sum(square**2 / level.freedom for square, level in zip(squares, (a, b), strict=True))
    return t_confidence(abs(a.value - b.value) / math.sqrt(total), freedom)


# -- what is made of it


def _measure(metric: str, a: float, b: float) -> float:
    """What a difference is weighed against: the baseline's mean, or its errors where they are fewer than its hits."""
    if is_share(metric) and max(a, b) <= 1.0:
        return min(abs(a), 1.0 - min(a, b))
    return abs(a)


def _word(a: float, b: float, notable: float, confidence: float | None, direction: Direction | None) -> Word:
    if math.isclose(a, b, rel_tol=ROUNDING):
        return "same"
    if confidence is None and abs(b - a) < FAR_APART * max(abs(a), abs(b)):
        return "uncertain"
    if abs(b - a) < notable:
        return "same"
    if confidence is not None and confidence < SURE:
        return "uncertain"
    if direction is None:
        return "different"
    return "better" if (b < a) == (direction == "lower") else "worse"


def _explain(word: Word, confidence: float | None, sides: Sequence[Sequence[XY]], begin: float, end: float) -> str:
    """What was compared, in a phrase, and why it is not certain."""
    if max(map(len, sides)) > 1:
        basis = f"{len(sides[0])} vs. {count_of(len(sides[1]), 'seed')}, last {percent(STRETCH)} of the steps"
    else:
        counts = [max(len(_within(side[0], begin, end)[0]), 1) for side in sides]
        basis = f"last {percent(STRETCH)} of the common steps, {counts[0]} vs. {count_of(counts[1], 'value')}"
    if word == "same":
        return f"{basis}; they differ by less than {percent(NOTABLE, 0)}"
    if confidence is None:
        return f"{basis}; too few to {'rule out chance' if word == 'uncertain' else 'know the noise, but far apart'}"
    return f"{basis}; the difference could be chance (p > 0.01)" if word == "uncertain" else basis
