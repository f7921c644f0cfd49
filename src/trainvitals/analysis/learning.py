"""Findings in how the model learns: not at all, in too large or too small steps, with dead units or a falling loss
scale, differently on each rank. Tested in tests/analysis/test_learning.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from trainvitals.analysis.episodes import find_rises
from trainvitals.analysis.findings import Curve, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.metric_sense import is_share
from trainvitals.analysis.robust import holding_since, lasting_since, scale_of
from trainvitals.analysis.wording import count_of, percent, show
from trainvitals.conditions import Conditions, Severity

UPDATES = "update_ratio/"
DEAD = "activation_dead/"
MAX_LAYERS = 400
LAST_SAMPLES = 20
"""Newest samples of a layer whose median is judged."""
FEWEST_SAMPLES = 5
BEGINNING = 20
"""Steps that show where the loss began ..."""
FEWEST_FIRST = 3
"""... and as many values at least."""
SOON = 0.1
"""Share of a run after which a loss is no longer that of an untrained model."""
FEWEST_SWINGS = 5
OSCILLATION_CLEAR = 2.0
"""Times what chance changes by which an accuracy must go up and down."""
CHANCE_NEAR = 9
"""Evaluations whose mean is the share at the time of the one in the middle."""
MAX_CASES = 2000
SHARE_ROUNDING = 1e-4
"""Shares are logged with four digits at least; the cases of larger sets are not seen."""
SCALE_WINDOW = 200
"""Steps within which the halvings of a loss scale are counted."""
_LOSS_SCALE = re.compile(r"(^|[^a-z])(loss|grad|amp|gradscaler|scaler)_?(scale|scaler)([^a-z]|$)")


class _Progress:
    """How far the loss came from where it began; with `after`, from where it was after that share of the run."""

    def __init__(self, loss: Curve, after: float = 0.0) -> None:
        self.steps = int(loss.x[-1] - loss.x[0])
        begin = int(after * len(loss.y))
        # Steps, not values: of a line every ten steps, twenty show a loss that has fallen long since.
        end = begin + max(int((loss.x[begin:] < loss.x[begin] + BEGINNING).sum()), FEWEST_FIRST)
        first = loss.y[begin:end]
        self.start = float(np.median(first))
        if self.start > 1.2 * abs(first[0]):  # it has exploded since
            self.start = float(first[0])
        last = loss.y[-len(loss.y) // 3 :]
        self.now = float(np.median(last))
        noise = scale_of(last) * 1.25 * (1 / len(first) + 1 / len(last)) ** 0.5
        self.gain = (self.start - self.now) / abs(self.start) if self.start else 0.0
        self._is_noise = abs(self.start - self.now) < 3 * noise

    def is_none(self, limit: float) -> bool:
        """Whether it is where it began, within that share of it or the noise."""
        return abs(self.gain) < limit or self._is_noise


def _progress_of(measured: Measurements, conditions: Conditions, after: float = 0.0) -> _Progress:
    if measured.from_step is not None:
        raise NotJudged(f"the first steps (of so long a run only those from {measured.from_step:,} are checked)")
    steps = int(conditions.thresholds["never_learns_steps"])
    progress = _Progress(measured.need("loss", 3 * BEGINNING).finite(), after)
    if progress.steps < steps:
        raise NotJudged(f"{steps:,} steps (found {progress.steps:,})")
    return progress


def detect_never_learns(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The loss is where it began. At chance it may be where it soon came to: what is untrained is worse than that."""
    flat = _find_flat_share(measured)
    after = SOON if flat is not None else 0.0
    progress = _progress_of(measured, conditions, after)
    limit = conditions.thresholds["never_learns_gain"]
    if not progress.is_none(limit):
        return []  # it fell, or it rose: that is a divergence
    loss = measured.need("loss").finite()
    evidence = [f"median loss: {show(progress.start)} at the beginning, {show(progress.now)} now"]
    if flat is not None:
        evidence.append(f"{flat[0]} stays at {show(flat[1])}")
    return [
        Finding(
            "loss.never_learns",
            # A loss that hardly falls is usual for fine-tuning and games of two players; one at chance is not.
            "warning" if flat is not None else "info",
            f"The loss has not fallen in {progress.steps:,} steps",
            tuple(evidence),
            conditions["never_learns"].advice,
            step=0,
            named_at=holding_since(
                loss.x,
                conditions.thresholds["never_learns_steps"],
                lambda count: _Progress(Curve(loss.x[:count], loss.y[:count]), after).is_none(limit),
            ),
            values={"gain": progress.gain},
        )
    ]


def _find_flat_share(measured: Measurements, fallen: bool = False) -> tuple[str, float] | None:
    """An accuracy that has not risen and is not high either, and what it is; with `fallen` also one that got worse."""
    if measured.from_step is not None:
        return None  # it may have risen before
    for name in sorted(measured.training.names(), key=len):
        curve = measured.training.get(name) if is_share(name) else None
        values = curve.finite().y if curve is not None else np.zeros(0)
        if len(values) < 6:
            continue
        first, last = (np.median(part) for part in (values[: len(values) // 3], values[-len(values) // 3 :]))
        noise = scale_of(values) * 1.25 / (len(values) / 3) ** 0.5
        largest = 100 if values.max() > 1 else 1
        change = last - first if fallen else abs(last - first)
        if change <= max(0.02 * largest, 3 * noise) and last < 0.7 * largest:
            return name, float(last)
    return None


def detect_update_size(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Steps that are too large for the weights and do harm, or too small to change them."""
    limits = conditions.thresholds
    ratios = _samples_of(measured, UPDATES, "updates by layer (trainvitals.watch)")
    # The largest of the beginning and the end: weights that have exploded hardly change any more.
    middles = np.array([_usual_update(curve.y) for curve in ratios.values()])
    usual = float(np.median(middles))
    rate = measured.training.get("learning_rate")
    rates = rate.finite().y if rate is not None else np.zeros(0)
    evidence = [
        f"median update of a step, as a share of the weights: {show(usual)} in {count_of(len(ratios), 'layer')}"
    ]
    evidence += [f"learning rate: {show(rates[-1])}"] if len(rates) else []
    high, low = limits["update_ratio_high"], limits["update_ratio_low"]
    if usual > high:
        known = _when_known(ratios, lambda middles: bool(np.median(middles) > high))
        return _describe_large(measured, conditions, usual, evidence, known)
    if 0 < middles.max() < low:
        known = _when_known(ratios, lambda middles: bool(0 < middles.max() < low))
        return _describe_small(measured, conditions, usual, evidence, known)
    return []


def _when_known(ratios: Mapping[str, Curve], holds: Callable[[Floats], bool]) -> int:
    """The step at which the samples until then told it of the layers' usual updates."""
    steps = max((curve.x for curve in ratios.values()), key=len)

    def holds_of(count: int) -> bool:
        until = [curve.y[: np.searchsorted(curve.x, steps[count - 1], side="right")] for curve in ratios.values()]
        return holds(np.array([_usual_update(y) for y in until if len(y) >= FEWEST_SAMPLES] or [0.0]))

    return holding_since(steps, max(steps[FEWEST_SAMPLES - 1] - steps[0], 1.0), holds_of)


def _usual_update(values: Floats) -> float:
    """Where the first steps destroy the weights there is only one large update, which counts a tenth."""
    first, last = values[:FEWEST_SAMPLES], values[-LAST_SAMPLES:]
    return float(max(np.median(first), np.median(last), first.max() / 10))


def _describe_large(
    measured: Measurements, conditions: Conditions, usual: float, evidence: Sequence[str], known: int
) -> list[Finding]:
    """Small networks learn well in large steps: only where the loss suffers are they too large."""
    loss = measured.need("loss", 30).finite()
    rises = find_rises(loss, conditions.thresholds["loss_divergence_percent"] / 100)
    lasting = next((rise for rise in rises if rise.until is None), None)
    small = conditions.thresholds["never_learns_gain"]
    progress = _Progress(loss) if len(loss.y) >= 3 * BEGINNING and measured.from_step is None else None
    stuck = progress is not None and (progress.gain <= small or progress.is_none(small))
    if lasting is None and not stuck and _find_flat_share(measured, fallen=True) is None:
        return []
    # That an accuracy got worse is judged of the whole run.
    harmed: int | None = None
    if lasting is not None:
        harmed = lasting.named_at
    elif stuck:
        harmed = holding_since(
            loss.x,
            max(loss.x[3 * BEGINNING - 1] - loss.x[0], 1.0),
            lambda count: (
                (part := _Progress(Curve(loss.x[:count], loss.y[:count]))).gain <= small or part.is_none(small)
            ),
        )
    harm = "the loss rose" if lasting is not None else "nothing is learned"
    critical = usual > conditions.thresholds["update_ratio_critical"]
    return [
        Finding(
            "lr.too_high",
            "critical" if critical else "warning",
            f"Each step changes the weights by {percent(usual, 1)}, and {harm}",
            tuple(evidence),
            conditions["update_too_large"].advice,
            step=lasting.since if lasting is not None else 0,
            named_at=max(known, harmed) if harmed is not None else None,
            values={"update_ratio": usual},
        )
    ]


def _describe_small(
    measured: Measurements, conditions: Conditions, usual: float, evidence: Sequence[str], known: int
) -> list[Finding]:
    progress = _progress_of(measured, conditions)
    least = conditions.thresholds["update_too_small_gain"]
    if progress.gain > least:
        return []
    loss = measured.need("loss").finite()
    named = holding_since(
        loss.x,
        conditions.thresholds["never_learns_steps"],
        lambda count: _Progress(Curve(loss.x[:count], loss.y[:count])).gain <= least,
    )
    severity: Severity = "warning" if _find_flat_share(measured) is not None else "info"
    return [
        Finding(
            "lr.too_low",
            severity,
            f"The weights hardly change: by {usual:.1g} of their size in a step",
            (*evidence, f"the loss fell by {percent(max(progress.gain, 0.0), 1)} in {progress.steps:,} steps"),
            conditions["update_too_small"].advice,
            step=0,
            named_at=max(known, named),
            values={"update_ratio": usual, "gain": progress.gain},
        )
    ]


def detect_dead_units(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Units that are never active."""
    limit = conditions.thresholds["dead_units_percent"] / 100
    samples = _samples_of(measured, DEAD, "activations (watch.activations)")
    shares = {name: float(np.median(curve.y[-LAST_SAMPLES:])) for name, curve in samples.items()}
    dead = sorted((name for name, share in shares.items() if share > limit), key=lambda name: -shares[name])
    if not dead:
        return []
    most, curve = shares[dead[0]], samples[dead[0]]
    since, named = lasting_since(curve.x, curve.y > limit, LAST_SAMPLES, FEWEST_SAMPLES) or (None, None)
    return [
        Finding(
            "units.dead",
            "warning" if most > conditions.thresholds["dead_units_high_percent"] / 100 else "info",
            f"{percent(most)} of the units of {dead[0]} are never active",
            (
                f"{count_of(len(dead), 'layer')} of {len(shares)} with more than {percent(limit)} dead units",
                "layers: " + ", ".join(f"{name} {percent(shares[name])}" for name in dead[:6]),
            ),
            conditions["units_dead"].advice,
            step=since,
            named_at=named,
            values={"share": most, "layers": float(len(dead))},
        )
    ]


def _samples_of(measured: Measurements, prefix: str, needs: str) -> dict[str, Curve]:
    """The samples of each layer that has enough of them."""
    names = [name for name in measured.training.names() if name.startswith(prefix)][:MAX_LAYERS]
    found = {}
    for name in names:
        curve = measured.training.get(name)
        if curve is not None and len((finite := curve.finite()).y) >= FEWEST_SAMPLES:
            found[name.removeprefix(prefix)] = finite
    if not found:
        raise NotJudged(f"{FEWEST_SAMPLES} samples of {needs}" if names else needs)
    return found


def detect_scale_collapse(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """A loss scale that is halved again and again, or has nothing left."""
    name = next((name for name in measured.training.names() if _LOSS_SCALE.search(name.lower())), None)
    if name is None:
        raise NotJudged("the loss scale, such as 'loss_scale'")
    scale = measured.need(name, 2).finite()
    halved = np.flatnonzero(scale.y[1:] <= 0.6 * scale.y[:-1]) + 1
    times = int(conditions.thresholds["loss_scale_halvings"])
    lowest = np.flatnonzero(scale.y <= 1.0) if scale.y[0] > 1.0 else np.zeros(0, dtype=int)
    close = [at for at in range(len(halved) - times + 1)
             if scale.x[halved[at + times - 1]] - scale.x[halved[at]] <= SCALE_WINDOW]  # fmt: skip
    if not close and not len(lowest):
        return []
    first = int(halved[close[0]]) if close else int(lowest[0])
    named = int(halved[close[0] + times - 1]) if close else first
    return [
        Finding(
            "amp.scale_collapse",
            "warning",
            f"The loss scale fell from {show(scale.y[max(first - 1, 0)])} to {show(float(scale.y[first:].min()))} "
            f"from step {int(scale.x[first]):,} on",
            (
                f"{name}: halved {count_of(len(halved), 'time')}, now {show(scale.y[-1])}",
                "each time the gradients of a step overflowed, and the step was skipped",
            ),
            conditions["loss_scale_collapsed"].advice,
            step=int(scale.x[first]),
            named_at=int(scale.x[named]),
            values={"halved": float(len(halved)), "now": float(scale.y[-1])},
        )
    ]


def _chance_of(shares: Floats) -> Floats:
    """How far a share of so many cases changes by chance from each evaluation to the next. How many cases there are is
    seen from the values: of 128, each is a multiple of 1/128. 0 if they are not seen."""
    none = np.zeros(len(shares) - 1)
    gaps = np.diff(np.unique(shares))
    gaps = gaps[gaps > SHARE_ROUNDING]
    if not len(gaps) or not 2 <= (cases := round(1 / float(gaps.min()))) <= MAX_CASES:
        return none
    counts = shares * cases
    if (np.abs(counts - np.round(counts)) > 2 * SHARE_ROUNDING * cases).any():
        return none
    # Of the share at that time: half of the cases vary more than nearly all. None is never all or nothing by chance.
    near = np.ones(min(CHANCE_NEAR, len(shares)))
    usual = np.convolve(shares, near, "same") / np.convolve(np.ones(len(shares)), near, "same")
    usual = np.clip((usual[1:] + usual[:-1]) / 2, 0.5 / cases, 1 - 0.5 / cases)
    return np.asarray(np.sqrt(2 * usual * (1 - usual) / cases))


def detect_oscillation(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """A held-out share such as an accuracy that goes up and down from one evaluation to the next."""
    limits = conditions.thresholds
    names = [name for name in measured.training.names() if is_share(name)]
    curves = {name: curve.finite() for name in names if (curve := measured.training.get(name)) is not None}
    judged = {name: curve for name, curve in curves.items() if 10 <= len(curve.y) <= 1000}
    if not judged:
        raise NotJudged("10 evaluations of an accuracy or another share")
    for name, curve in judged.items():
        largest = 100 if curve.y.max() > 1 else 1
        change = np.diff(curve.y) / largest
        least = np.maximum(limits["oscillation_swing"], OSCILLATION_CLEAR * _chance_of(curve.y / largest))
        large = np.abs(change) >= least
        turns = (change[1:] * change[:-1] < 0) & large[1:] & large[:-1]
        share = float(turns.mean())
        if share >= limits["oscillation_percent"] / 100 and turns.sum() >= FEWEST_SWINGS:
            first = int(curve.x[int(turns.argmax()) + 1])
            swing = float(np.median(np.abs(change[1:][turns])))
            return [
                Finding(
                    "loss.oscillation",
                    "info",
                    f"{name} goes up and down by {show(swing * largest)}",
                    (f"in {percent(share)} of {len(curve.y)} evaluations",),
                    conditions["oscillation"].advice,
                    step=first,
                    named_at=int(curve.x[int(np.flatnonzero(turns)[FEWEST_SWINGS - 1]) + 2]),
                    values={"share": share, "swing": swing},
                )
            ]
    return []


def detect_replicas(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Weights that were the same on all ranks and no longer are. Shards differ from the first."""
    tolerance = conditions.thresholds["replica_difference"]
    worst: tuple[int, str, list[str], float] | None = None
    judged = False
    for layer, curves in measured.rank_weights.items():
        for (one, first), (other, second) in combinations(sorted(curves.items()), 2):
            x, at, there = np.intersect1d(first.x, second.x, return_indices=True)
            apart = _relative(first.y[at], second.y[there])
            if len(x) < 2 or not apart[0] < tolerance / 100:
                continue
            judged = True
            differ = np.flatnonzero(apart > tolerance)
            if len(differ) and (worst is None or x[differ[0]] < worst[0]):
                worst = (int(x[differ[0]]), layer, [one.title, other.title], float(apart[-1]))
    if worst is None and not judged:
        raise NotJudged("weight norms of at least two ranks that hold the same weights (trainvitals.watch)")
    if worst is None:
        return []
    step, layer, who, apart_now = worst
    return [
        Finding(
            "replica.mismatch",
            "critical",
            f"The weights of {who[0]} and {who[1]} differ since step {step:,}",
            (f"first in {layer}; its norm differs by {percent(apart_now, 2)} now",),
            conditions["replicas_differ"].advice,
            subject=who[1],
            step=step,
            named_at=step,
            values={"difference": apart_now},
        )
    ]


def _relative(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.abs(first - second) / np.maximum(np.maximum(np.abs(first), np.abs(second)), 1e-12))
