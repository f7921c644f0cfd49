"""Findings in the loss: NaN, divergence, spikes, a plateau, over-fitting.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import re

import numpy as np

from trainvitals.analysis.findings import Curve, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.robust import blocks, moving_median, scale_of, thin, usual_highs
from trainvitals.analysis.wording import count_of, percent, show
from trainvitals.conditions import Conditions

WARM_UP = 100
"""Values before which nothing is judged but NaN: every loss is wild at first."""
WINDOW = 50
LONGEST = 20_000
"""Points that are looked at one by one; longer runs are looked at in medians of neighbours."""


def detect_nonfinite(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Any NaN or infinity in the loss."""
    loss = measured.need("loss", 0)
    broken = np.flatnonzero(~np.isfinite(loss.y))
    if not len(broken):
        return []
    first = int(broken[0])
    step = int(loss.x[first])
    lasting = not np.isfinite(loss.y[-1])
    share = len(broken) / len(loss.y)
    finite = loss.y[:first][np.isfinite(loss.y[:first])]
    evidence = [f"{count_of(len(broken), 'value')} of {len(loss.y):,} not finite ({percent(share, 2)})"]
    if len(finite):
        evidence.append(f"last finite loss before it: {show(finite[-1])}")
    evidence += _just_before(measured, loss.x[first])
    word = "NaN" if np.isnan(loss.y[first]) else "infinite"
    return [
        Finding(
            "loss.nonfinite",
            "critical" if lasting or share > conditions.thresholds["loss_not_finite_percent"] / 100 else "warning",
            f"The loss became {word} at step {step:,}" + ("" if lasting else " and recovered"),
            tuple(evidence),
            conditions["loss_not_finite"].advice,
            step=step,
            values={"nonfinite": float(len(broken)), "share": share},
        )
    ]


def _just_before(measured: Measurements, x: float) -> list[str]:
    lines = []
    for name, title in (("gradient_norm", "gradient norm"), ("learning_rate", "learning rate")):
        found = measured.training.get(name)
        before = found.finite() if found is not None else None
        if before is not None and (place := int(np.searchsorted(before.x, x, side="left"))) > 0:
            earlier = before.y[max(place - 20, 0) : place]
            rose = f" (20 values earlier: {show(earlier[0])})" if name == "gradient_norm" and len(earlier) == 20 else ""
            lines.append(f"{title} just before it: {show(earlier[-1])}{rose}")
    return lines


def detect_divergence(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The loss rose from its best and stays there."""
    loss = measured.need("loss", 2 * WARM_UP).finite()
    x, y = thin(loss.x, loss.y, LONGEST)
    middle = moving_median(y, WINDOW)
    x = x[WINDOW - 1 :]
    best_at = int(middle.argmin())
    best = float(middle[best_at])
    # Two checks 25 values apart, and both must agree.
    now = float(min(middle[-1], middle[-26]))
    noise = scale_of(y[WINDOW - 1 :] - middle)
    limits = conditions.thresholds
    limit = best + max(limits["loss_divergence_percent"] / 100 * abs(best), 3 * noise)
    if now <= limit or best_at > len(middle) - 26:
        return []
    start = int(np.flatnonzero(middle <= best + (limit - best) / 2)[-1])
    rise = (now - best) / abs(best) if best else float("inf")
    rate = measured.training.get("learning_rate")
    evidence = [
        f"median of {WINDOW} values: best {show(best)} (step {int(x[best_at]):,}), {show(now)} at the end "
        f"({'+' + percent(rise) if best else 'from zero'})",
        f"noise of the loss: {show(noise)}",
    ]
    if rate is not None and len(at := rate.finite().x):
        place = min(int(np.searchsorted(at, x[start])), len(at) - 1)
        evidence.append(f"learning rate when it began: {show(rate.finite().y[place])}")
    return [
        Finding(
            "loss.divergence",
            "critical" if rise > limits["loss_divergence_critical_percent"] / 100 else "warning",
            f"The loss has been rising since about step {int(x[start]):,} without recovering",
            tuple(evidence),
            conditions["loss_diverging"].advice,
            step=int(x[start]),
            values={"best": best, "now": now, "rise": rise},
        )
    ]


def detect_spikes(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Single values far above their neighbours."""
    loss = measured.need("loss", 2 * WARM_UP).finite()
    size = WARM_UP
    rest = len(loss.y) % size
    x, y = loss.x[rest + size :], loss.y[rest + size :]
    level, height = _heights(loss.x, loss.y, size)
    if loss.y.min() > 0:
        # The noise of a small loss is multiplicative and leans to one side: a spike stands out on both scales.
        height = np.minimum(height, _heights(loss.x, np.log(loss.y), size)[1])
    often = np.repeat(usual_highs(loss.y, size), size)
    high = np.flatnonzero((height > conditions.thresholds["loss_spike_deviations"]) & (y > often))
    if not len(high):
        return []
    episodes = np.split(high, np.flatnonzero(np.diff(high) > 20) + 1)
    calm = np.flatnonzero(height < 3)
    recoveries = [
        calm[np.searchsorted(calm, e[-1])] - e[0] if len(calm) and calm[-1] > e[-1] else None for e in episodes
    ]
    worst = max(episodes, key=lambda e: float(height[e].max()))
    peak = int(worst[height[worst].argmax()])
    starts = x[[int(e[0]) for e in episodes]]
    crowded = max((int(np.searchsorted(starts, s + 500, side="right") - at) for at, s in enumerate(starts)), default=0)
    known = [int(r) for r in recoveries if r is not None]
    evidence = [
        f"max {show(y[peak])} at step {int(x[peak]):,}, {height[peak]:,.0f} robust deviations above the median "
        f"{show(level[peak])}",
        f"recovered within {count_of(max(known), 'value')}"
        if len(known) == len(episodes)
        else "the last one did not recover",
    ]
    if len(episodes) > 1:
        shown = ", ".join(f"{int(s):,}" for s in starts[:8]) + (" ..." if len(starts) > 8 else "")
        evidence.append(f"at steps {shown}")
    unstable = crowded >= conditions.thresholds["loss_spike_count"]
    return [
        Finding(
            "loss.spike",
            "warning" if unstable else "info",
            f"{count_of(len(episodes), 'loss spike')}" + (f", {crowded} within 500 steps" if unstable else ""),
            tuple(evidence),
            conditions["loss_spike"].advice,
            step=int(x[peak]),
            values={"count": float(len(episodes)), "height_scales": float(height[peak])},
        )
    ]


def _heights(x: Floats, y: Floats, size: int) -> tuple[Floats, Floats]:
    """For all but the first `size` values: the median of the `size` before, and how many scales each is above it.

    The loss falls, so what is above the values before is above its own trend too.
    """
    _, middle, spread = blocks(x, y, size)
    level, scale = np.repeat(middle[:-1], size), np.repeat(np.maximum(spread[:-1], spread[1:]), size)
    return level, (y[len(y) % size + size :] - level) / np.where(scale > 0, scale, np.inf)


def detect_plateau(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """No new best for half of the run."""
    steps = int(conditions.thresholds["loss_plateau_steps"])
    loss = measured.need("loss", 2 * WARM_UP).finite()
    if loss.x[-1] - loss.x[0] < steps:
        raise NotJudged(f"{steps:,} steps (found {int(loss.x[-1] - loss.x[0]):,})")
    rate = measured.training.get("learning_rate")
    if rate is not None and len(rates := rate.finite().y) and rates[-1] < 0.1 * rates.max():
        return []  # the learning rate has decayed: the loss is meant to settle
    x, y = thin(loss.x, loss.y, 200)
    half = int(np.searchsorted(x, x[0] + (x[-1] - x[0]) / 2))
    before, after = float(y[:half].min()), float(y[half:].min())
    gain = (before - after) / abs(before) if before else 0.0
    settled = float(np.median(y[half:]))
    if gain >= conditions.thresholds["loss_plateau_gain"] or abs(settled - before) > max(
        0.1 * abs(before), 3 * scale_of(y[half:])
    ):
        return []  # still falling, or rising: that is a divergence
    since = int(x[int(y[:half].argmin())])
    return [
        Finding(
            "loss.plateau",
            "info",
            f"No progress since about step {since:,}",
            (
                f"best smoothed loss: {show(before)} in the first half, {show(after)} in the second "
                f"({percent(gain, 2)} better)",
                f"that is {int(x[-1]) - since:,} of {int(x[-1] - x[0]):,} steps",
            ),
            conditions["loss_plateau"].advice,
            step=since,
            values={"gain": gain},
        )
    ]


_EVALUATION = re.compile(r"(^|[^a-z])(val|valid|validation|eval|dev|test)([^a-z]|$)")
_BETTER_HIGH = ("acc", "f1", "auc", "map", "bleu", "rouge", "iou", "score")


def detect_overfit(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The loss on held-out data rises while the training loss falls."""
    names = [n for n in measured.training.names() if _EVALUATION.search(n.lower()) and "loss" in n.lower()]
    if not names:
        raise NotJudged("a validation loss such as 'val_loss'")
    name = min(names, key=len)
    held = measured.need(name, 6).finite()
    best_at = int(held.y.argmin())
    best = float(held.y[best_at])
    limit = best + abs(best) * conditions.thresholds["loss_overfit_percent"] / 100
    if len(held.y) - best_at <= 3 or not (held.y[-3:] > limit).all():
        return []
    train = measured.need("loss", 20).finite()
    tail = max(len(train.y) // 10, 5)
    at = int(np.searchsorted(train.x, held.x[best_at]))
    then, now = float(np.median(train.y[max(at - tail, 0) : at + tail])), float(np.median(train.y[-tail:]))
    if now >= then:
        return []
    gap = float(np.median(held.y[-3:])) - now
    metric = _still_improves(measured, int(held.x[best_at]))
    evidence = (
        f"{name}: best {show(best)} (step {int(held.x[best_at]):,}), {show(held.y[-1])} at the end "
        f"(+{percent((held.y[-1] - best) / abs(best)) if best else 'from zero'})",
        f"training loss meanwhile: {show(then)} to {show(now)}; gap at the end {show(gap)}",
        *([f"{metric} is still improving: overconfident rather than overfitted"] if metric else []),
    )
    return [
        Finding(
            "loss.overfit",
            "info" if metric else "warning",
            f"{name} has been rising since step {int(held.x[best_at]):,} while the training loss falls",
            evidence,
            conditions["loss_overfit"].advice,
            step=int(held.x[best_at]),
            values={"best": best, "last": float(held.y[-1]), "gap": gap},
        )
    ]


def _still_improves(measured: Measurements, since: int) -> str | None:
    """The name of a held-out metric, higher is better, whose best is in the last quarter since then."""
    for name in measured.training.names():
        low = name.lower()
        if not _EVALUATION.search(low) or not any(word in low for word in _BETTER_HIGH):
            continue
        found = measured.training.get(name)
        curve: Curve | None = found.finite() if found is not None else None
        if curve is not None and len(curve.y) > 4:
            best = float(curve.x[int(curve.y.argmax())])
            if best > since + 0.75 * (float(curve.x[-1]) - since):
                return name
    return None
