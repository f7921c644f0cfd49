"""Findings in the pace: waiting for data, slow steps, a slower second half, a slow rank.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np

from trainvitals.analysis.findings import Curve, Finding, Floats, Measurements, NotJudged
from trainvitals.analysis.robust import blocks, scale_of, thin
from trainvitals.analysis.wording import count_of, percent, seconds_of, show, span
from trainvitals.conditions import Conditions
from trainvitals.journal.identity import Participant

START = 10
"""Steps at the beginning that are always slow: compilation, caches, the first batches."""


def share_of_step(measured: Measurements, phase: str) -> tuple[float, float, float]:
    """The share of all step time that `phase` took, its median and the median step in seconds."""
    step = measured.need("batch_time", 50)
    part = measured.need(phase, 50)
    if np.array_equal(step.x, part.x):
        whole, piece = step.y[START:], part.y[START:]
    else:
        _, at, other = np.intersect1d(step.x, part.x, return_indices=True)
        whole, piece = step.y[at][START:], part.y[other][START:]
    good = np.isfinite(whole) & np.isfinite(piece) & (whole > 0)
    if good.sum() < 40:
        raise NotJudged(f"steps with both 'batch_time' and '{phase}' (found {int(good.sum())})")
    whole, piece = whole[good], piece[good]
    return float(piece.sum() / whole.sum()), float(np.median(piece)), float(np.median(whole))


def detect_data_bound(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Steps that wait for the next batch."""
    share, wait, step = share_of_step(measured, "data_time")
    if share <= conditions.thresholds["data_share_notable_percent"] / 100:
        return []
    faster = 1 / max(1 - share, 0.001)
    return [
        Finding(
            "data.bound",
            "critical" if share > conditions.thresholds["data_share_percent"] / 100 else "warning",
            f"{percent(share)} of step time is spent waiting for data",
            (
                f"median wait {seconds_of(wait)} of a {seconds_of(step)} step",
                f"without the wait, training would be up to {faster:.2f} times as fast",
            ),
            conditions["data_bound"].advice,
            values={"share": share, "wait_seconds": wait, "step_seconds": step},
        )
    ]


def detect_other_work(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Logging, evaluation and checkpoints between the steps."""
    share, _, step = share_of_step(measured, "other_time")
    if share <= conditions.thresholds["other_work_percent"] / 100:
        return []
    return [
        Finding(
            "step.other",
            "warning" if share > conditions.thresholds["other_work_high_percent"] / 100 else "info",
            f"{percent(share)} of step time is spent on neither data nor the model",
            (f"outside data, transfer, forward, backward and optimizer; median step {seconds_of(step)}",),
            conditions["other_work"].advice,
            values={"share": share, "step_seconds": step},
        )
    ]


def detect_outliers(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Steps that take much longer than the usual, and whether they come at regular intervals."""
    factor = conditions.thresholds["slow_step_factor"]
    step = measured.need("batch_time", 300).finite()
    x, y = step.x[START:], step.y[START:]
    _, middle, spread = blocks(x, y, 100)
    rest = len(y) % 100
    x, y = x[rest:], y[rest:]
    level, scale = np.repeat(middle, 100), np.repeat(spread, 100)
    slow = np.flatnonzero(y > np.maximum(factor * level, level + 6 * scale))
    total = float(y.sum())
    if len(slow) < 3 or total <= 0:
        return []
    lost = float((y - level)[slow].sum()) / total
    if lost < conditions.thresholds["slow_steps_percent"] / 100:
        return []
    worst = int(slow[y[slow].argmax()])
    period = find_period(x[slow])
    times = float(np.mean(y[slow] / np.maximum(level[slow], 1e-12)))
    evidence = [
        f"{count_of(len(slow), 'step')} of {len(y):,} took more than {factor:g} times the usual and cost "
        f"{percent(lost)} of the time",
        f"slowest: step {int(x[worst]):,}, {seconds_of(y[worst])} instead of {seconds_of(level[worst])}",
    ]
    if period is not None:
        evidence.append(f"every {show(period)} steps")
    return [
        Finding(
            "step.outlier" if period is None else "step.periodic",
            "warning" if lost > conditions.thresholds["slow_steps_high_percent"] / 100 else "info",
            f"{count_of(len(slow), 'slow step')} cost {percent(lost)} of the time"
            if period is None
            else f"Every {show(period)} steps, one step takes {times:.1f} times as long",
            tuple(evidence),
            conditions["slow_steps"].advice,
            step=int(x[worst]),
            values={"count": float(len(slow)), "lost": lost},
        )
    ]


def find_period(places: Floats) -> float | None:
    """The distance at which at least 8 of these come, if that explains 80 % of the slots; else None."""
    starts = places[np.concatenate([[True], np.diff(places) > 2])]
    if len(starts) < 8:
        return None
    period = float(np.median(np.diff(starts)))
    slots = np.round((starts - starts[0]) / period)
    near = np.abs(starts - starts[0] - slots * period) <= max(2.0, 0.05 * period)
    filled = len(np.unique(slots[near]))
    return period if filled >= 0.8 * (slots[-1] + 1) and near.mean() >= 0.8 else None


def detect_fail_slow(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The pace changed for the worse at one moment and stayed so (Pettitt's test on medians of 50 steps)."""
    step = measured.need("batch_time", 600).finite()
    x, y = step.x[START:], step.y[START:]
    x, middle, _ = blocks(x, y, max(50, len(y) // 300))
    count = len(middle)
    ranks = np.argsort(np.argsort(middle)) + 1.0
    places = np.arange(1, count + 1)
    distance = 2 * np.cumsum(ranks) - places * (count + 1)
    split = int(np.abs(distance).argmax())
    chance = 2 * float(np.exp(-6 * distance[split] ** 2 / (count**3 + count**2)))
    before, after = middle[: split + 1], middle[split + 1 :]
    if chance > 0.01 or len(after) < 2 or len(before) < 2:
        return []
    old, new = float(np.median(before)), float(np.median(after))
    last = float(np.median(middle[-max(2, count // 10) :]))
    slow = old * (1 + conditions.thresholds["step_slowdown_percent"] / 100)
    if new < slow or new - old < 3 * scale_of(before) or last < slow:
        return []
    slower = new / old - 1
    return [
        Finding(
            "step.fail_slow",
            "warning",
            f"Steps have been {percent(slower)} slower since about step {int(x[split + 1]):,}",
            (
                f"median step: {seconds_of(old)} before, {seconds_of(new)} after (p = {chance:.1e})",
                f"cost: {span(86_400 * (1 - old / new))} per day",
            ),
            conditions["steps_slower"].advice,
            step=int(x[split + 1]),
            values={"before_seconds": old, "after_seconds": new},
        )
    ]


def detect_stragglers(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """A rank that is slower than the others of its role, which wait for it."""
    roles: dict[str, dict[Participant, Curve]] = {}
    for participant, curve in measured.rank_steps.items():
        if len((finite := curve.finite()).y) >= 50:
            roles.setdefault(participant.role, {})[participant] = finite
    several = [ranks for ranks in roles.values() if len(ranks) > 1]
    if not several:
        raise NotJudged("step times of at least two ranks")
    judged = [(ranks, shared) for ranks in several if len(shared := _shared_steps(ranks.values())) >= 40]
    if not judged:
        raise NotJudged("40 steps common to all ranks")
    return [finding for ranks, shared in judged for finding in _compare_ranks(ranks, shared, conditions)]


def _shared_steps(curves: Iterable[Curve]) -> Floats:
    """The newest steps that all have."""
    return reduce(np.intersect1d, (curve.x for curve in curves))[START:][-5000:]


def _compare_ranks(ranks: Mapping[Participant, Curve], shared: Floats, conditions: Conditions) -> list[Finding]:
    factor = conditions.thresholds["straggler_factor"]
    table = np.stack([c.y[np.searchsorted(c.x, shared)] for c in ranks.values()])
    usual = np.median(table, axis=0)
    ratio = table / np.where(usual > 0, usual, np.inf)
    found = []
    for place, participant in enumerate(ranks):
        title = participant.title
        slow = ratio[place] > factor
        _, recent = thin(shared, slow.astype(float), 200)
        often = float(slow.mean())
        middle = float(np.median(ratio[place]))
        if middle <= factor and often < conditions.thresholds["straggler_steps_percent"] / 100:
            continue
        first = int(shared[int(slow.argmax())])
        cost = float((table.max(axis=0) - usual).mean())
        found.append(
            Finding(
                "straggler.rank",
                "warning",
                f"{title.capitalize()} takes {middle:.2f} times as long as the others"
                if middle > factor
                else f"{title.capitalize()} is often slower than the others",
                (
                    f"more than {factor:g} times the median of {len(ranks)} ranks in {percent(often)} of "
                    f"{len(shared):,} steps, first at step {first:,}",
                    f"the other ranks wait about {seconds_of(cost)} per step"
                    + ("; less recently" if len(recent) and recent[-1] < 0.5 else ""),
                ),
                conditions["straggler"].advice,
                subject=title,
                step=first,
                values={"ratio": middle, "share": often, "wait_seconds": cost},
            )
        )
    return found
