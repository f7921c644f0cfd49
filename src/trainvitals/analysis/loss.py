"""Findings in the loss: NaN, divergence, spikes, a plateau, over-fitting.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainvitals.analysis.episodes import find_rises, find_spikes, stride_of
from trainvitals.analysis.findings import Curve, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.gradients import find_origin
from trainvitals.analysis.metric_sense import better, is_held_out, is_reward
from trainvitals.analysis.robust import holding_since, scale_of, thin
from trainvitals.analysis.speed import slots_of
from trainvitals.analysis.wording import count_of, growth, percent, show
from trainvitals.conditions import Conditions, Severity
from trainvitals.episodes import DEVIATION, Episode

SPIKES_APART = 3
"""Spikes that are told one by one; more are told together."""
FEWEST_RECURRING = 3
"""Spikes at the same distance that are no accident."""
FEWEST_REWARDS = 9
OVERFIT_CLEAR = 3.5
"""Times the noise of an evaluation by which the last ones must exceed the best."""
OVERFIT_VALUES = 200
"""Newest evaluations that show this noise."""
MAX_LENGTHS = 200
MIN_PASS = 50
"""Steps that a pass over the data takes at least."""
RESUME_BEFORE = 20
"""Values of the loss before a resume ..."""
RESUME_AFTER = 5
"""... and after it whose medians are compared."""
RESUME_CLEAR = 4.0
"""Times the noise of a value by which the loss is higher after a resume."""
RESUME_NEAR = 10
"""Values between a resume and a rise that it explains."""
WARM_UP = 100
"""Values before which nothing is judged but NaN: every loss is wild at first."""


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
    origin = find_origin(measured, loss, loss.x[first])
    evidence += [origin.text] if origin is not None else []
    began = f", first in {origin.layer}" if origin is not None and origin.layer else ""
    word = "NaN" if np.isnan(loss.y[first]) else "infinite"
    return [
        Finding(
            "loss.nonfinite",
            "critical" if lasting or share > conditions.thresholds["loss_not_finite_percent"] / 100 else "warning",
            f"The loss became {word} at step {step:,}{began}" + ("" if lasting else " and recovered"),
            tuple(evidence),
            conditions["loss_not_finite"].advice,
            step=step,
            named_at=step,
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
    """The loss rose from its best, or from where it began, and stays there."""
    loss = measured.need("loss", 30).finite()
    if _crosses_zero(loss.y):
        raise NotJudged("a loss that does not repeatedly cross zero, as in policy gradients")
    limits = conditions.thresholds
    episodes = find_rises(loss, limits["loss_divergence_percent"] / 100)
    if not episodes:
        return []
    lasting = next((episode for episode in reversed(episodes) if episode.until is None), None)
    shown = lasting or max(episodes, key=lambda episode: episode.deviations)
    rise = (shown.after - shown.before) / abs(shown.before) if shown.before else float("inf")
    grown = growth(shown.before, shown.after) if shown.before else ""
    told = "from zero" if not grown else grown if grown.endswith("x") else f"+{grown}"
    evidence = [f"median: best {show(shown.before)} before it, {show(shown.after)} in it ({told})"]
    if len(episodes) > 1:
        evidence.append(f"{len(episodes)} times; at steps {_steps_of(episodes)}")
    rate = measured.training.get("learning_rate")
    if rate is not None and len(at := rate.finite().x):
        place = min(int(np.searchsorted(at, shown.since)), len(at) - 1)
        evidence.append(f"learning rate when it began: {show(rate.finite().y[place])}")
    evidence += _tell_resume(measured, shown.since, stride_of(loss.x))
    reward = _find_rising_reward(measured, shown.since)
    if lasting is None:
        severity: Severity = "info"
        rose = f"rose {grown}" if grown else "rose"
        title = f"The loss {rose} at about step {shown.since:,} and recovered at step {shown.until:,}"
    else:
        # One that has come back to less than what counts is on its way.
        notable = rise > limits["loss_divergence_percent"] / 100
        critical = rise > limits["loss_divergence_critical_percent"] / 100
        severity = "critical" if critical else "warning" if notable else "info"
        if reward is not None:
            # The larger the returns, the larger the errors of whoever estimates them.
            severity = "info"
            evidence.append(f"{reward[0]} rose meanwhile, from {show(reward[1])} to {show(reward[2])}: it learns")
        title = f"The loss has been rising since about step {shown.since:,} without recovering"
    return [
        Finding(
            "loss.divergence",
            severity,
            title,
            tuple(evidence),
            conditions["loss_diverging"].advice,
            step=shown.since,
            named_at=shown.named_at,
            until=shown.until,
            values={"best": shown.before, "now": shown.after, "rise": rise},
        )
    ]


def _find_rising_reward(measured: Measurements, since: int) -> tuple[str, float, float] | None:
    """A reward that is higher than before that step, what it was and what it is."""
    for name in measured.training.names():
        curve = measured.training.get(name) if is_reward(name) else None
        finite = curve.finite() if curve is not None else None
        if finite is None or len(finite.y) < FEWEST_REWARDS:
            continue
        third = len(finite.y) // 3
        before = finite.y[: min(max(int(np.searchsorted(finite.x, since)), third // 3, 3), third)]
        now = finite.y[-third:]
        noise = 1.25 * (scale_of(before) ** 2 / len(before) + scale_of(now) ** 2 / len(now)) ** 0.5
        if np.median(now) - np.median(before) > 3 * noise:
            return name, float(np.median(before)), float(np.median(now))
    return None


def detect_jump_at_resume(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """A loss that is higher after a resume than just before it."""
    loss = measured.need("loss", RESUME_BEFORE + RESUME_AFTER).finite()
    if _crosses_zero(loss.y):
        raise NotJudged("a loss that does not repeatedly cross zero, as in policy gradients")
    share = conditions.thresholds["resume_jump_percent"] / 100
    found = []
    for step in measured.resumes:
        place = int(np.searchsorted(loss.x, step))
        before, after = loss.y[max(place - RESUME_BEFORE, 0) : place], loss.y[place : place + RESUME_AFTER]
        if len(before) < RESUME_BEFORE or len(after) < RESUME_AFTER:
            continue
        usual, level = float(np.median(before)), float(np.median(after))
        noise = max(scale_of(before), scale_of(np.diff(before)) / np.sqrt(2))
        if level - usual <= max(share * abs(usual), RESUME_CLEAR * noise):
            continue
        rest = loss.y[place:]
        middles = np.median(np.lib.stride_tricks.sliding_window_view(rest, RESUME_AFTER), axis=1)
        back = np.flatnonzero(middles <= usual + max(share * abs(usual), noise) / 2)
        until = int(loss.x[place + int(back[0]) + RESUME_AFTER - 1]) if len(back) else None
        grown = growth(usual, level) if usual else ""
        found.append(
            Finding(
                "loss.resume",
                "info" if until is not None else "warning",
                f"The loss was higher after the run was resumed at step {step:,}",
                (
                    f"median: {show(usual)} before ({RESUME_BEFORE} values), {show(level)} after ({RESUME_AFTER})"
                    + (f": {grown if grown.endswith('x') else f'+{grown}'}" if grown else ""),
                    "has not recovered" if until is None else f"recovered at step {until:,}",
                    _cause_at_resume(measured, step),
                ),
                conditions["loss_jumped_at_resume"].advice,
                step=step,
                named_at=int(loss.x[place + RESUME_AFTER - 1]),
                until=until,
                values={"before": usual, "after": level},
            )
        )
    return found


def _cause_at_resume(measured: Measurements, step: int) -> str:
    """What was most likely not restored, by the learning rate on both sides."""
    rate = measured.training.get("learning_rate")
    known = rate.finite() if rate is not None else Curve(np.zeros(0), np.zeros(0))
    place = int(np.searchsorted(known.x, step))
    if not 0 < place < len(known.y):
        return "most likely the state of the optimizer or of the scheduler was not restored"
    before, after = float(known.y[place - 1]), float(known.y[place])
    if abs(after - before) > 0.2 * abs(before):
        return f"learning rate: {show(before)} before, {show(after)} after: most likely the scheduler was not restored"
    return f"learning rate as before ({show(after)}): most likely the state of the optimizer was not restored"


def _tell_resume(measured: Measurements, since: int, stride: float) -> list[str]:
    """Evidence of a rise that began where the run was resumed."""
    step = measured.find_resume(since - RESUME_NEAR * stride - 1, since + RESUME_NEAR * stride)
    return [f"the run was resumed at step {step:,}"] if step is not None else []


def _steps_of(episodes: Sequence[Episode]) -> str:
    return ", ".join(f"{item.since:,}" for item in episodes[:8]) + (" ..." if len(episodes) > 8 else "")


def detect_spikes(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Single values far above their neighbours."""
    loss = measured.need("loss", WARM_UP).finite()
    episodes = find_spikes(loss, conditions.thresholds["loss_spike_deviations"])
    if not episodes or _crosses_zero(loss.y):
        return []
    # A batch that is off alone is the data; what the next values still show has happened to the model.
    alone = stride_of(loss.x)
    starts = np.array([item.since for item in episodes if item.until is None or item.until - item.since > alone])
    within = [int(np.searchsorted(starts, start + 500, side="right")) - at for at, start in enumerate(starts)]
    crowded = max(within, default=0)
    unstable = crowded >= conditions.thresholds["loss_spike_count"]
    apart = [[episode] for episode in episodes] if len(episodes) <= SPIKES_APART and not unstable else [episodes]
    return [
        *(_describe_spikes(measured, group, crowded if unstable else 0, conditions) for group in apart),
        *_find_bad_batches(episodes, conditions),
    ]


def _describe_spikes(
    measured: Measurements, episodes: Sequence[Episode], crowded: int, conditions: Conditions
) -> Finding:
    """One finding; `crowded` is how many are within 500 steps, if they are too many."""
    # What does not come back is a rise first of all.
    worst = max(episodes, key=lambda episode: (episode.until is not None, episode.deviations))
    recovered = [episode.until - episode.since for episode in episodes if episode.until is not None]
    evidence = [
        f"max {show(worst.after)}{f' at step {worst.since:,}' if len(episodes) > 1 else ''}, "
        f"{worst.deviations:,.0f} robust deviations above the median {show(worst.before)}",
        f"recovered within {count_of(max(recovered), 'step')}"
        if len(recovered) == len(episodes)
        else "has not recovered"
        if len(episodes) == 1
        else "the last one did not recover",
    ]
    if len(episodes) > 1:
        evidence.append(f"at steps {_steps_of(episodes)}")
    evidence += _tell_resume(measured, worst.since, 1.0)
    title = f"Loss spike at step {worst.since:,}" if len(episodes) == 1 else count_of(len(episodes), "loss spike")
    return Finding(
        "loss.spike",
        "warning" if crowded else "info",
        title + (f", {crowded} within 500 steps" if crowded else ""),
        tuple(evidence),
        conditions["loss_spike"].advice,
        step=episodes[0].since,
        named_at=episodes[0].named_at,
        until=episodes[-1].until,
        values={"count": float(len(episodes)), "height_scales": worst.deviations},
    )


def _find_bad_batches(episodes: Sequence[Episode], conditions: Conditions) -> list[Finding]:
    """Spikes that come back at the same distance: in each pass over the data."""
    if len(episodes) < FEWEST_RECURRING:
        return []
    starts = np.array([episode.since for episode in episodes], dtype=np.float64)
    lengths = np.unique((starts[None, :] - starts[:, None])[np.triu_indices(len(starts), 1)])[:MAX_LENGTHS]
    passes = [(length, slots_of(starts, float(length), FEWEST_RECURRING)) for length in lengths if length >= MIN_PASS]
    known = [(int(near.sum()), length, near) for length, near in passes if near is not None]
    count, usual, near = max(known, key=lambda item: item[:2], default=(0, 0.0, None))
    if near is None or count < min(len(episodes), max(FEWEST_RECURRING + 1, 0.6 * len(episodes))):
        return []  # as many come as they like
    episodes = [episode for episode, recurs in zip(episodes, near, strict=True) if recurs]
    return [
        Finding(
            "data.bad_batch",
            "info",
            f"The loss spikes every {show(usual)} steps",
            (
                f"{len(episodes)} times; at steps {_steps_of(episodes)}",
                "if this is one pass over the data, the data is the cause",
            ),
            conditions["bad_batch"].advice,
            step=episodes[0].since,
            named_at=episodes[FEWEST_RECURRING - 1].named_at,
            values={"period": usual, "count": float(len(episodes))},
        )
    ]


def _crosses_zero(y: Floats) -> bool:
    """Again and again, not once on its way down: the loss of a policy gradient, which has no floor and no trend."""
    signs = np.sign(y[y != 0])
    return 20 * int((signs[1:] != signs[:-1]).sum()) > len(signs)


def detect_plateau(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """No progress for half of the run."""
    steps = int(conditions.thresholds["loss_plateau_steps"])
    loss = measured.need("loss", 2 * WARM_UP).finite()
    if loss.x[-1] - loss.x[0] < steps:
        raise NotJudged(f"{steps:,} steps (found {int(loss.x[-1] - loss.x[0]):,})")
    rate = measured.training.get("learning_rate")
    if rate is not None and len(rates := rate.finite().y) and rates[-1] < 0.1 * rates.max():
        return []  # the learning rate has decayed: the loss is meant to settle
    small = conditions.thresholds["loss_plateau_gain"]
    found = _find_plateau(loss, small)
    if found is None:
        return []
    x, y = thin(loss.x, loss.y, 4000)
    named = holding_since(x, steps, lambda count: _find_plateau(Curve(x[:count], y[:count]), small) is not None)
    since, before, after = found
    gain = (before - after) / abs(before) if before else 0.0
    return [
        Finding(
            "loss.plateau",
            "info",
            f"No progress since about step {since:,}",
            (
                f"median loss: {show(before)} then, {show(after)} later ({percent(gain, 2)} better)",
                f"that is {int(loss.x[-1]) - since:,} of {int(loss.x[-1] - loss.x[0]):,} steps",
            ),
            conditions["loss_plateau"].advice,
            step=since,
            named_at=named,
            values={"gain": gain},
        )
    ]


def _find_plateau(loss: Curve, small: float) -> tuple[int, float, float] | None:
    """Where the loss ceased to fall, its level there and later, if that is half of the run or more."""
    x, y = thin(loss.x, loss.y, 200)
    begin, middle = (int(np.searchsorted(x, x[0] + (x[-1] - x[0]) * share)) for share in (0.4, 0.6))
    if begin == middle:
        return None  # nothing was logged there
    # Medians, not the best: of more values the best of the noise is always better.
    before = float(np.median(y[begin:middle]))
    later = [float(np.median(part)) for part in np.array_split(y[middle:], 2)]
    noise = scale_of(np.diff(y[begin:])) / np.sqrt(2) * 1.25 * np.sqrt(2 / max(middle - begin, 1))
    if before - min(later) >= max(small * abs(before), 3 * noise):
        return None
    if max(later) - before > max(0.1 * abs(before), 3 * scale_of(y[begin:])):
        return None  # rising: that is a divergence
    level = min(before, *later)
    high = np.flatnonzero(y[:middle] > level + max(10 * small * abs(level), 1.5 * scale_of(y[begin:] - level)))
    return int(x[min(int(high[-1]) + 1, begin) if len(high) else 0]), before, min(later)


def detect_overfit(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The loss on held-out data rises while the training loss falls."""
    names = [name for name in measured.training.names() if is_held_out(name) and "loss" in name.lower()]
    if not names:
        raise NotJudged("a validation loss such as 'val_loss'")
    name = min(names, key=len)
    held = measured.need(name, 6).finite()
    best_at = int(held.y.argmin())
    best = float(held.y[best_at])
    share = conditions.thresholds["loss_overfit_percent"] / 100
    if len(held.y) - best_at <= 3 or not _three_above(held.y, share):
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
            named_at=_when_three_above(held, best_at, share),
            values={"best": best, "last": float(held.y[-1]), "gap": gap},
        )
    ]


def _roughness(y: Floats) -> float:
    """How far an evaluation is off by chance: from how far each is off the middle of its neighbours."""
    off = y[1:-1] - (y[:-2] + y[2:]) / 2
    return float(DEVIATION * np.median(np.abs(off)) / np.sqrt(1.5))


def _three_above(y: Floats, share: float) -> bool:
    """Whether the last three are above the best by that share, and by more than chance: the best of many is lucky."""
    best = float(y.min())
    limit = best + max(abs(best) * share, OVERFIT_CLEAR * _roughness(y[-OVERFIT_VALUES:]))
    return bool((y[-3:] > limit).all())


def _when_three_above(held: Curve, best_at: int, share: float) -> int:
    """The first evaluation after the best that was the third in a row above the limit, as it was known then."""
    known = (count for count in range(max(best_at + 4, 6), len(held.y)) if _three_above(held.y[:count], share))
    return int(held.x[next(known, len(held.y)) - 1])


def _still_improves(measured: Measurements, since: int) -> str | None:
    """The name of a held-out metric, higher is better, whose best is in the last quarter since then."""
    for name in measured.training.names():
        if not is_held_out(name) or better(name) != "higher":
            continue
        found = measured.training.get(name)
        curve: Curve | None = found.finite() if found is not None else None
        if curve is not None and len(curve.y) > 4:
            best = float(curve.x[int(curve.y.argmax())])
            if best > since + 0.75 * (float(curve.x[-1]) - since):
                return name
    return None
