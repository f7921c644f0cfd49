"""Findings in the pace: waiting for data, slow steps, a slower second half, a slow rank.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals import catalog
from trainvitals.analysis.episodes import find_shifts, stride_of
from trainvitals.analysis.findings import INTERVALS, Curve, Device, Finding, Floats, Measurements, NotJudged, RankPlace
from trainvitals.analysis.robust import blocks, holding_since, scale_of
from trainvitals.analysis.wording import count_of, growth, percent, seconds_of, show, span
from trainvitals.conditions import Conditions, Severity
from trainvitals.episodes import Episode
from trainvitals.journal.identity import Participant

Places = NDArray[np.intp]
PHASES = {
    "data_time": "data loading",
    "transfer_time": "the transfer to the GPU",
    "forward_time": "the forward pass",
    "backward_time": "the backward pass",
    "optimizer_time": "the optimizer",
    "other_time": "outside the model",
}
MAX_PERIODS = 3
FEWEST_SLOTS = 8
"""Slow steps that make a period."""
HOST_SIGNS = {
    "cpu_usage_percent": "CPU use",
    "cpu_iowait_percent": "I/O wait",
    "pressure_cpu_percent": "CPU pressure",
    "pressure_io_percent": "I/O pressure",
    "memory_usage_percent": "memory use",
}
ODD_PERCENT = 20.0
"""Percentage points by which a host differs from the others where that is worth telling ..."""
ODD_CLOCK = 0.05
"""... and the share of the clocks of its GPUs."""
FEWEST_SELDOM = 3
"""Times that something must have happened, of what does not happen at every step."""
FEWEST_PAIRS = 40
"""Steps with a step time and its part that are judged."""
FEWEST_SHARED = 10
"""Steps in which ranks are compared."""
SLOW_IN_A_ROW = 5
"""Steps in a row that a rank is slow, after which it is named."""
MAX_OVER = 2
"""Slowdowns that are over, the newest of which are told."""
ACCUMULATION = 16
"""Steps between two updates where gradients are accumulated, at most: the step with the update takes longer."""
RARE = 0.1
"""Share of the steps above which slow ones are usual: batches of two lengths, say."""
SLOT_WIDTH = 0.05
"""Share of a period that a slot covers at most on either side: a wider one is met by chance."""
NO_CHANCE = 12.0
"""Minus the logarithm of a probability: of the thousand periods that are tried, none is found by chance."""
REGULAR = 0.3
"""Share of the cost that slow steps must have, where they come at regular intervals: that is no accident."""
MOSTLY_SLOWER = 0.8
"""Share of the steps in which rank 0 must be slower than all others."""
MOSTLY = 0.6
"""Share of the lost time that a single phase must have to be named."""
START = 10
"""Steps at the beginning that are always slow: compilation, caches, the first batches."""


def choose_intervals(logged: Curve | None, clock: Curve) -> Curve | None:
    """The step times by the clock, where there are no others, or not every step is logged and they are the quieter
    ones; else None."""
    if logged is None:
        return clock
    if len(clock.x) < START or stride_of(clock.x) < 2:
        return None
    known = logged.finite().y
    known = known[known > 0]
    if len(known) < START or not 0.5 < np.median(clock.y) / np.median(known) < 2:
        return None
    noises = [scale_of(np.diff(np.log(values))) for values in (clock.y, known)]
    return clock if noises[0] <= noises[1] else None


class Bound(NamedTuple):
    """A part of the step time, of which too much is a finding."""

    rule: str
    condition: str
    part: str
    """The training curve that has its seconds."""
    doing: str
    """Completes 'of step time is spent ...'."""
    usually: str
    """Evidence: `{part}` and `{step}` are medians, `{often}` is how often it was."""
    notable: str
    """The threshold from which on it is a finding ..."""
    warning: str
    """... a warning ..."""
    critical: str = ""
    """... and critical, if it ever is."""
    seldom: bool = False
    """It is logged where it happens, and not with every step."""
    can_go: bool = True
    """Without it the rest would be the same, so that the gain is known."""
    with_data: bool | None = None
    """Judged only where waiting for data is seen (True), or is not (False)."""
    as_cause: str = ""
    """What GPUs wait for meanwhile, where that is said in other words."""

    @property
    def cause(self) -> str:
        return self.as_cause or self.doing

    def is_logged(self, measured: Measurements) -> bool:
        return catalog.find_spelling("training", self.part, measured.training.names()) is not None


_PART_OF = "median {part} of a {step} step"
_OFTEN = "{often}, {part} each; median step {step}"

DATA = Bound(
    *("data.bound", "data_bound", "data_time", "waiting for data", "median wait {part} of a {step} step"),
    *("data_share_notable_percent", "data_share_notable_percent", "data_share_critical_percent"),
)
TRANSFER = Bound(
    *("transfer.bound", "transfer_bound", "transfer_time", "getting the batch to the GPU"),
    "median {part} of a {step} step between the batch and the forward pass",
    *("transfer_share_notable_percent", "transfer_share_percent"),
)
COMMUNICATION = Bound(
    *("comm.bound", "communication_bound", "communication_time", "waiting for other ranks or the network", _PART_OF),
    *("communication_notable_percent", "communication_percent"),
)
CHECKPOINT = Bound(
    *("checkpoint.bound", "checkpoint_bound", "checkpoint_time", "saving checkpoints", _OFTEN),
    *("checkpoint_notable_percent", "checkpoint_percent"),
    seldom=True,
)
EVALUATION = Bound(
    *("evaluation.bound", "evaluation_bound", "evaluation_time", "evaluating", _OFTEN, "evaluation_percent"),
    "evaluation_high_percent",
    seldom=True,
)
LOGGING = Bound(
    *("logging.bound", "logging_bound", "logging_time", "logging", _OFTEN, "logging_notable_percent"),
    "logging_percent",
    seldom=True,
)
OTHER = Bound(
    *("step.other", "other_work", "other_time", "on neither data nor the model"),
    "outside data, transfer, forward, backward and optimizer; median step {step}",
    *("other_work_percent", "other_work_high_percent"),
    can_go=False,
    with_data=True,
    as_cause="work between steps, such as logging, evaluation and checkpoints",
)
UNSEEN = Bound(
    *("data.unseen", "data_unseen", "other_time", "outside the model, and data loading is not visible"),
    "no DataLoader and no watch.batches: data_time is missing; median step {step}",
    *("other_work_percent", "other_work_high_percent"),
    can_go=False,
    with_data=False,
    as_cause=OTHER.as_cause,
)
BOUNDS = (DATA, TRANSFER, COMMUNICATION, CHECKPOINT, EVALUATION, LOGGING, OTHER, UNSEEN)
"""The more specific first."""


class Share(NamedTuple):
    """A part of the step time."""

    share: float
    part: float
    """Its median, and that of a step, in seconds."""
    step: float
    times: int
    """Of the values of the part."""


def share_of_step(measured: Measurements, bound: Bound) -> Share:
    """How much of all step time a part took."""
    step = measured.need("batch_time", 50)
    part = measured.need(bound.part, FEWEST_SELDOM if bound.seldom else 50)
    found = _share_of_all(step, part) if bound.seldom else _share_of_each(step, part, bound.part)
    if found.share > 1 and not bound.seldom:
        raise NotJudged(f"'{bound.part}' in seconds (found more than a whole step)")
    return found


def _share_of_each(step: Curve, part: Curve, name: str) -> Share:
    x, whole, piece = _pair(step, part)
    if len(x) < FEWEST_PAIRS:
        raise NotJudged(f"steps with both 'batch_time' and '{name}' (found {len(x)})")
    return Share(float(piece.sum() / whole.sum()), float(np.median(piece)), float(np.median(whole)), len(x))


def _pair(step: Curve, part: Curve) -> tuple[Floats, Floats, Floats]:
    """Of the steps that have both, which they are, how long they took and how long the part of them."""
    if np.array_equal(step.x, part.x):
        x, whole, piece = step.x[START:], step.y[START:], part.y[START:]
    else:
        x, at, other = np.intersect1d(step.x, part.x, return_indices=True)
        x, whole, piece = x[START:], step.y[at][START:], part.y[other][START:]
    good = np.isfinite(whole) & np.isfinite(piece) & (whole > 0)
    return x[good], whole[good], piece[good]


def _when_bound(measured: Measurements, bound: Bound, limit: float) -> tuple[int | None, int | None]:
    """The step since which the part has not been much smaller than that, and the one from which on it was too much of
    all steps until then."""
    x, whole, piece = _pair(measured.need("batch_time"), measured.need(bound.part))
    shares = piece.cumsum() / whole.cumsum()
    low = np.flatnonzero(shares <= limit)
    named = max(int(low[-1]) + 1 if len(low) else 0, FEWEST_PAIRS - 1)
    size = FEWEST_PAIRS
    rest = len(x) % size
    parts = piece[rest:].reshape(-1, size).sum(axis=1) / whole[rest:].reshape(-1, size).sum(axis=1)
    small = np.flatnonzero(parts < limit / 2)
    since = rest + (int(small[-1]) + 1) * size if len(small) else 0
    # What is done between the steps comes now and then: a stretch without it is no beginning.
    dated = bound.with_data is None and since < len(x)
    return int(x[since]) if dated else None, int(x[named]) if named < len(x) else None


def _share_of_all(step: Curve, part: Curve) -> Share:
    """Of what is logged seldom: step times may include it or not, which its own steps show."""
    step, part = step.finite(), part.finite()
    shared, at, other = np.intersect1d(step.x, part.x, return_indices=True)
    total, spent = float(step.y.sum()) * stride_of(step.x), float(part.y.sum())
    inside = len(shared) > 0 and bool(np.median(part.y[other] / np.maximum(step.y[at], 1e-12)) <= 1)
    whole = total if inside else total + spent
    return Share(spent / whole if whole > 0 else 0.0, float(np.median(part.y)), float(np.median(step.y)), len(part.y))


def detect_bound(bound: Bound, measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Steps of which one part takes too much."""
    found = share_of_step(measured, bound)
    limits = {
        name: conditions.thresholds[name] / 100 for name in (bound.notable, bound.warning, bound.critical) if name
    }
    if bound.with_data is not None and bound.with_data != (measured.training.get("data_time") is not None):
        return []
    if not found.share > limits[bound.notable]:  # nor of what is too large to be added up
        return []
    severity: Severity = "info"
    if bound.critical and found.share > limits[bound.critical]:
        severity = "critical"
    elif found.share > limits[bound.warning]:
        severity = "warning"
    since, named = (None, None) if bound.seldom else _when_bound(measured, bound, limits[bound.notable])
    part, step, often = seconds_of(found.part), seconds_of(found.step), count_of(found.times, "time")
    evidence = [bound.usually.format(part=part, step=step, often=often)]
    if bound.can_go and found.share < 1:
        faster = 1 / max(1 - found.share, 0.001)
        evidence.append(f"without it, training would be up to {faster:.2f} times as fast")
    return [
        Finding(
            bound.rule,
            severity,
            f"{percent(found.share)} of step time is spent {bound.doing}",
            tuple(evidence),
            conditions[bound.condition].advice,
            step=since,
            named_at=named,
            values={"share": found.share, "part_seconds": found.part, "step_seconds": found.step},
        )
    ]


def detect_outliers(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Steps that take much longer than the usual, and whether they come at regular intervals."""
    factor = conditions.thresholds["slow_step_factor"]
    by_clock, step = _step_times(measured, 150, 50)
    # Of an average over several steps, one slow step is a small part.
    spans = np.diff(step.x, prepend=step.x[0] - stride_of(step.x)) if by_clock else np.ones(len(step.x))
    size = 50 if stride_of(step.x) >= 2 else 100
    rest = START + (len(step.y) - START) % size
    x, y, spans = step.x[rest:], step.y[rest:], spans[rest:]
    _, middle, spread = blocks(x, y, size)
    level, scale = np.repeat(middle, size), np.repeat(spread, size)
    slow = np.flatnonzero(y > np.maximum((1 + (factor - 1) / spans) * level, level + 6 * scale))
    total = float((y * spans).sum())
    if len(slow) < 3 or total <= 0:
        return []
    costs = ((y - level) * spans)[slow]
    lost = float(costs.sum()) / total
    periods = find_periods(x[slow], float(np.median(spans)))
    least = conditions.thresholds["slow_steps_percent"] / 100 * (REGULAR if periods else 1)
    if lost < least:
        return []
    worst = int(slow[y[slow].argmax()])
    times = float(np.mean(1 + costs / np.maximum(level[slow], 1e-12)))
    moments = _coincide(measured, x[slow], float(np.median(spans)))
    evidence = [
        f"{count_of(len(slow), 'step')} of {len(y):,} took more than {factor:g} times the usual and cost "
        f"{percent(lost)} of the time",
        f"slowest: step {int(x[worst]):,}, {seconds_of(y[worst])} instead of {seconds_of(level[worst])}",
    ]
    every = " and every ".join(show(period) for period in periods)
    if periods:
        evidence.append(f"every {every} steps")
    evidence += [f"{what}: at {count} of the {len(slow)} slow steps" for what, count in moments.items()]
    evidence += _slow_phase(measured, x, slow)
    return [
        Finding(
            "step.periodic" if periods else "step.outlier",
            "warning"
            if lost > conditions.thresholds["slow_steps_high_percent"] / 100
            and not _are_meant(x, slow, by_clock, periods, moments)
            else "info",
            f"Every {every} steps, one step takes {times:.1f} times as long"
            if periods
            else f"{count_of(len(slow), 'slow step')} cost {percent(lost)} of the time",
            tuple(evidence),
            conditions["slow_steps"].advice,
            step=int(x[slow[0]]),
            named_at=_when_costly(x, (y * spans).cumsum(), slow, costs, least, FEWEST_SLOTS if periods else 3),
            values={"count": float(len(slow)), "lost": lost},
        )
    ]


def _step_times(measured: Measurements, points: int, averages: int) -> tuple[bool, Curve]:
    """Whether they are by the clock, and the step times: so many, or so many averages over several steps."""
    clock = measured.training.get(INTERVALS)
    # An average over several steps is quieter than one of them.
    few = averages if clock is not None and stride_of(clock.x) >= 2 else points
    return clock is not None, measured.need("batch_time" if clock is None else INTERVALS, few).finite()


def _are_meant(x: Floats, slow: Places, by_clock: bool, periods: Sequence[float], moments: Mapping[str, int]) -> bool:
    """Whether slow steps belong to the training, as far as is known: evaluations, updates, batches of other lengths."""
    if "evaluation" in moments:
        return True
    if by_clock and "checkpoint" not in moments:
        return True  # whatever the program did between two lines
    if periods:
        return max(periods) <= ACCUMULATION
    apart = 1 + int((np.diff(slow) > 2).sum())
    return apart < FEWEST_SLOTS or len(slow) > RARE * len(x)


def _when_costly(x: Floats, total: Floats, slow: Places, costs: Floats, least: float, fewest: int) -> int:
    """The step of the slow one with which there were enough of them, and enough was lost."""
    enough = np.flatnonzero(costs.cumsum() >= least * total[slow])
    first = int(enough[enough >= fewest - 1][0]) if (enough >= fewest - 1).any() else len(slow) - 1
    return int(x[slow[first]])


def _coincide(measured: Measurements, slow: Floats, span: float) -> dict[str, int]:
    """What was done at most of the slow steps, or just before them, and at how many."""
    found = {}
    for what, steps in measured.moments.items():
        before = np.searchsorted(np.sort(steps), slow, side="right")
        near = (before > 0) & (slow - np.sort(steps)[np.maximum(before - 1, 0)] <= span) if len(steps) else slow < 0
        if near.mean() >= 0.6:
            found[what] = int(near.sum())
    return found


def _slow_phase(measured: Measurements, x: Floats, slow: Places) -> list[str]:
    """The phase of a step in which most of the time is lost."""
    extra = {}
    for phase, title in PHASES.items():
        curve = measured.training.get(phase)
        if curve is not None and np.isin(x[slow], curve.x).all():
            extra[title] = float(curve.y[np.searchsorted(curve.x, x[slow])].mean() - np.median(curve.finite().y))
    lost = sum(max(seconds, 0.0) for seconds in extra.values())
    if not lost or not np.isfinite(lost):
        return []
    title, seconds = max(extra.items(), key=lambda item: item[1])
    return [f"{percent(seconds / lost)} of what they take longer is {title}"] if seconds > MOSTLY * lost else []


def find_periods(places: Floats, span: float = 1.0) -> list[float]:
    """The distances at which these come, each with at least 8 of them that fill 80 % of its slots; the longest first.

    Several at once are found one after the other, each among what the others leave. `span` is how many steps a place
    stands for.
    """
    starts = places[np.concatenate([[True], np.diff(places) > 2])]
    found: list[float] = []
    while len(starts) >= FEWEST_SLOTS and len(found) < MAX_PERIODS:
        best: tuple[float, NDArray[np.bool_]] | None = None
        apart = np.concatenate([starts[gap:] - starts[:-gap] for gap in range(1, min(7, len(starts)))])
        lengths, counts = np.unique(np.round(apart), return_counts=True)
        likely = lengths[np.argsort(-counts, kind="stable")[:20]]
        # Places that stand for several steps have no distances but multiples of them: on average they do.
        likely = likely if span <= 1 else np.append(np.mean(np.diff(starts)), likely)
        for length in likely:
            near = slots_of(starts, float(length), FEWEST_SLOTS, span) if length > 2 * span else None
            if near is None or (best is not None and near.sum() <= best[1].sum()):
                continue
            if span > 1 or not _may_be_chance(starts, near, float(length)):
                best = (float(length), near)
        if best is None:
            break
        found.append(best[0])
        starts = starts[~best[1]]
    # Without a period for nearly all of them they come as they like.
    return sorted(found, reverse=True) if found and len(starts) <= 0.2 * len(places) else []


def _may_be_chance(starts: Floats, near: NDArray[np.bool_], length: float) -> bool:
    """Whether so many of the slots could be filled by places that come as they like, of which there are as many."""
    reach = starts[-1] - starts[0] + 1
    by_chance = min(len(starts) * (2 * _slack_of(length, 1.0) + 1) / reach, 1.0)
    slots = (starts[near][-1] - starts[near][0]) // length + 1
    filled = min(float(near.sum()) / slots, 1.0)
    if filled <= by_chance:
        return True
    # By how much the logarithm of the probability falls, at least.
    unlikely = filled * np.log(filled / by_chance)
    unlikely += (1 - filled) * np.log((1 - filled) / (1 - by_chance)) if filled < 1 else 0.0
    return bool(slots * unlikely < NO_CHANCE)


def _slack_of(length: float, span: float) -> float:
    return max(min(max(2.0, 0.02 * length), SLOT_WIDTH * length), span if span > 1 else 0.0)


def slots_of(starts: Floats, length: float, fewest: int, span: float = 1.0) -> NDArray[np.bool_] | None:
    """Which of these come at this distance, if that is a period: `fewest` of them fill 80 % of its slots."""
    slack = _slack_of(length, span)
    phases = starts % length
    phase = phases[int(np.argmax([np.sum(_around(phases - p, length) <= slack) for p in phases[:40]]))]
    near = _around(phases - phase, length) <= slack
    slots = np.unique(np.round((starts[near] - phase) / length))
    if len(slots) < fewest or len(slots) < 0.8 * (slots[-1] - slots[0] + 1):
        return None
    return np.asarray(near)


def _around(distance: Floats, length: float) -> Floats:
    """The distance on a circle."""
    return np.abs(distance - length * np.round(distance / length))


def detect_fail_slow(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The pace changed for the worse and stayed so."""
    _, step = _step_times(measured, 100, 30)
    episodes = find_shifts(step, conditions.thresholds["step_slowdown_percent"] / 100)
    lasting = [episode for episode in episodes if episode.until is None]
    over = [episode for episode in episodes if episode.until is not None]
    return [_describe_slowdown(episode, conditions) for episode in [*lasting, *over[-MAX_OVER:]]]


def _describe_slowdown(episode: Episode, conditions: Conditions) -> Finding:
    ratio = episode.after / episode.before
    slower = f"{growth(episode.before, episode.after)} slower"
    evidence = [f"median step: {seconds_of(episode.before)} before, {seconds_of(episode.after)} after"]
    if episode.until is None:
        evidence.append(f"cost: {span(86_400 * (1 - 1 / ratio))} per day")
        title = f"Steps have been {slower} since about step {episode.since:,}"
    else:
        title = f"Steps were {slower} from about step {episode.since:,} to {episode.until:,}"
    return Finding(
        "step.fail_slow",
        "warning" if episode.until is None else "info",
        title,
        tuple(evidence),
        conditions["steps_slower"].advice,
        step=episode.since,
        named_at=episode.named_at,
        until=episode.until,
        values={"before_seconds": episode.before, "after_seconds": episode.after},
    )


def detect_stragglers(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """A rank that is slower than the others of its role, which wait for it."""
    roles: dict[str, dict[Participant, Curve]] = {}
    for participant, curve in measured.rank_steps.items():
        if len((finite := curve.finite()).y) >= FEWEST_SHARED:
            roles.setdefault(participant.role, {})[participant] = finite
    several = [ranks for ranks in roles.values() if len(ranks) > 1]
    if not several:
        few = sum(len(curve.finite().y) > 0 for curve in measured.rank_steps.values()) > 1
        raise NotJudged(f"{FEWEST_SHARED} step times of each rank" if few else "step times of at least two ranks")
    judged = [(ranks, shared) for ranks in several if len(shared := _shared_steps(ranks.values())) >= FEWEST_SHARED]
    if not judged:
        partly = [(ranks, steps) for ranks in several if len(steps := _steps_of_most(ranks.values())) >= FEWEST_SHARED]
        if not partly:
            raise NotJudged(f"{FEWEST_SHARED} steps common to all ranks")
        return [item for ranks, steps in partly for item in _compare_ranks(measured, ranks, steps, conditions)]
    found = [finding for ranks, shared in judged for finding in _compare_hosts(measured, ranks, shared, conditions)]
    known = frozenset(title for finding in found for title in finding.about)
    for ranks, shared in judged:
        found += [item for item in _compare_ranks(measured, ranks, shared, conditions) if item.subject not in known]
    return found or [finding for ranks, shared in judged for finding in _find_skew(ranks, shared, conditions)]


def _shared_steps(curves: Iterable[Curve]) -> Floats:
    """The newest steps that all have."""
    shared = reduce(np.intersect1d, (curve.x for curve in curves))
    # Not the first steps, if there are enough others.
    return _settled(shared)


def _settled(steps: Floats) -> Floats:
    later = steps[steps >= steps[0] + START] if len(steps) else steps
    return (later if len(later) >= FEWEST_SHARED else steps[2:])[-5000:]


def _steps_of_most(curves: Collection[Curve]) -> Floats:
    """The newest steps that more than half of the ranks have: of three at least, or the slow one is the usual."""
    steps, counts = np.unique(np.concatenate([curve.x for curve in curves]), return_counts=True)
    return _settled(steps[counts >= max(len(curves) // 2 + 1, 3)])


def _at(curve: Curve, steps: Floats) -> Floats:
    """The values at these steps, NaN at those that it does not have."""
    places = np.minimum(np.searchsorted(curve.x, steps), len(curve.x) - 1)
    return np.where(curve.x[places] == steps, curve.y[places], np.nan)


def _compare_hosts(
    measured: Measurements, ranks: Mapping[Participant, Curve], shared: Floats, conditions: Conditions
) -> list[Finding]:
    """A host all of whose ranks are slow: half of the ranks may be on it, so that hosts are compared, and not ranks."""
    factor = conditions.thresholds["straggler_factor"]
    hosts: dict[str, list[Participant]] = {}
    for participant in ranks:
        hosts.setdefault(measured.places.get(participant.title, RankPlace()).host, []).append(participant)
    if "" in hosts or len(hosts) < 2 or min(map(len, hosts.values())) < 2:
        return []
    times = {who: curve.y[np.searchsorted(curve.x, shared)] for who, curve in ranks.items()}
    table = {host: np.median([times[who] for who in group], axis=0) for host, group in hosts.items()}
    usual = (np.min if len(table) == 2 else np.median)(list(table.values()), axis=0)
    usual = np.where(usual > 0, usual, np.inf)
    found = []
    for host, group in hosts.items():
        middle = float(np.median(table[host] / usual))
        if middle <= factor or min(float(np.median(times[who] / usual)) for who in group) <= factor:
            continue
        slow = table[host] / usual > factor
        found.append(
            Finding(
                "straggler.host",
                conditions["straggler_host"].severity,
                f"All {len(group)} ranks of {host} take {middle:.2f} times as long as those of other hosts",
                (
                    f"more than {factor:g} times {'the other host' if len(table) == 2 else 'the usual'} in "
                    f"{percent(float(slow.mean()))} of {len(shared):,} steps",
                    *_slowest_phase(measured.rank_phases, group[0], [group[0], *(set(ranks) - set(group))]),
                    *_find_oddities(measured, host),
                ),
                conditions["straggler_host"].advice,
                subject=host,
                step=int(shared[int(slow.argmax())]),
                named_at=_when_named(slow, shared),
                values={"ratio": middle, "share": float(slow.mean())},
                about=tuple(who.title for who in group),
            )
        )
    return found


def _find_oddities(measured: Measurements, host: str) -> list[str]:
    """What is different on a host: its CPUs, storage, memory, or the clocks of its GPUs."""
    found = []
    for name, words in HOST_SIGNS.items():
        levels = {item.title: float(np.median(curve.y)) for item in measured.hosts if (curve := _known(item, name))}
        own = levels.pop(host, None)
        if own is not None and levels and own > (others := float(np.median(list(levels.values())))) + ODD_PERCENT:
            found.append(f"{words} on {host}: {own:.0f} %, on the others {others:.0f} %")
    clocks: dict[bool, list[float]] = {True: [], False: []}
    for gpu in measured.gpus:
        if curve := _known(gpu, "graphics_clock_mhz"):
            clocks[gpu.host == host].append(float(np.median(curve.y)))
    if all(clocks.values()):
        own, others = (float(np.median(clocks[here])) for here in (True, False))
        if own < (1 - ODD_CLOCK) * others:
            found.append(f"GPU clocks on {host}: {own:,.0f} MHz, on the others {others:,.0f} MHz")
    return found


def _known(device: Device, name: str) -> Curve | None:
    curve = device.curves[name].finite() if name in device.curves else None
    return curve if curve is not None and len(curve.y) else None


def _compare_ranks(
    measured: Measurements, ranks: Mapping[Participant, Curve], shared: Floats, conditions: Conditions
) -> list[Finding]:
    factor = conditions.thresholds["straggler_factor"]
    compared = "the other rank" if len(ranks) == 2 else f"the median of {len(ranks)} ranks"
    table = np.stack([_at(curve, shared) for curve in ranks.values()])
    # Of two ranks half of the slow one is in the median: it is compared with the other.
    usual = table.min(axis=0) if len(table) == 2 else np.nanmedian(table, axis=0)
    ratios = table / np.where(usual > 0, usual, np.inf)
    cost = float((np.nanmax(table, axis=0) - usual).mean())
    common = shared
    found = []
    for participant, own in zip(ranks, ratios, strict=True):
        title = participant.title
        known = np.isfinite(own)
        ratio, shared = own[known], common[known]
        if len(shared) < FEWEST_SHARED:
            continue
        slow = ratio > factor
        often, middle = float(slow.mean()), float(np.median(ratio))
        rows = _longest_row(slow)
        usually = middle > factor or often >= conditions.thresholds["straggler_steps_percent"] / 100
        if not usually and rows[1] - rows[0] < SLOW_IN_A_ROW:
            continue
        first = int(slow.argmax()) if usually else rows[0]
        ended = None if usually or rows[1] == len(slow) else int(shared[rows[1]])
        times = middle if usually else float(np.median(ratio[rows[0] : rows[1]]))
        if middle > factor:
            text = f"{title.capitalize()} takes {middle:.2f} times as long as the others"
        elif usually:
            text = f"{title.capitalize()} is often slower than the others"
        else:
            begin, end = int(shared[rows[0]]), int(shared[rows[1] - 1])
            text = f"{title.capitalize()} took {times:.2f} times as long as the others in steps {begin:,} to {end:,}"
        found.append(
            Finding(
                "straggler.rank",
                "warning" if usually else "info",
                text,
                (
                    f"more than {factor:g} times {compared} in {percent(often)} of "
                    f"{len(shared):,} steps, first at step {int(shared[int(slow.argmax())]):,}",
                    f"the other ranks wait about {seconds_of(cost)} per step"
                    + ("; less recently" if usually and not slow[-max(len(slow) // 10, 5) :].mean() >= 0.5 else ""),
                    *(_slowest_phase(measured.rank_phases, participant, ranks) if usually else ()),
                    *_describe_place(measured.places.get(title, RankPlace())),
                ),
                conditions["straggler"].advice,
                subject=title,
                step=int(shared[first]),
                named_at=_when_named(slow, shared),
                until=ended,
                values={"ratio": times, "share": often, "wait_seconds": cost},
            )
        )
    return found


def _slowest_phase(
    phases: Mapping[Participant, Mapping[str, float]], slow: Participant, ranks: Iterable[Participant]
) -> list[str]:
    """The phase in which most of the time is lost that a rank takes longer than the others."""
    others = [phases[who] for who in ranks if who != slow and who in phases]
    extra = {
        phase: seconds - float(np.median([other[phase] for other in others if phase in other]))
        for phase, seconds in phases.get(slow, {}).items()
        if any(phase in other for other in others)
    }
    lost = sum(max(seconds, 0.0) for seconds in extra.values())
    if not lost:
        return []
    phase, seconds = max(extra.items(), key=lambda item: item[1])
    share = seconds / lost
    return [f"{percent(share)} of what it takes longer is {PHASES[phase]}"] if share > MOSTLY else []


def _describe_place(place: RankPlace) -> list[str]:
    where = ", ".join(sorted(place.gpus)) or place.host
    return [f"it ran on {where}"] if where else []


def _find_skew(ranks: Mapping[Participant, Curve], shared: Floats, conditions: Conditions) -> list[Finding]:
    """Rank 0 that is a little slower than all others, step by step."""
    lowest = min(ranks)
    if lowest.rank != 0 or len(ranks) < 3:
        return []
    values = {who: curve.y[np.searchsorted(curve.x, shared)] for who, curve in ranks.items()}
    others = np.stack([values[who] for who in ranks if who != lowest])
    usual = np.median(others, axis=0)
    ratio = values[lowest] / np.where(usual > 0, usual, np.inf)
    middle = float(np.median(ratio))
    above = values[lowest] > others.max(axis=0)
    slower = float(above.mean())
    least = 1 + conditions.thresholds["rank_zero_percent"] / 100
    if middle < least or slower < MOSTLY_SLOWER:
        return []
    return [
        Finding(
            "straggler.rank_zero",
            "info",
            f"{lowest.title.capitalize()} takes {percent(middle - 1)} longer than the others",
            (f"slower than all {len(others)} others in {percent(slower)} of {len(shared):,} steps",),
            conditions["rank_zero_slow"].advice,
            subject=lowest.title,
            step=int(shared[0]),
            named_at=holding_since(
                shared,
                shared[FEWEST_SHARED - 1] - shared[0],
                lambda count: bool(np.median(ratio[:count]) >= least and above[:count].mean() >= MOSTLY_SLOWER),
            ),
            values={"ratio": middle},
        )
    ]


def _longest_row(slow: NDArray[np.bool_]) -> tuple[int, int]:
    """The longest run of slow steps: its first place, and the one after it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], slow.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    longest = int((edges[1::2] - edges[::2]).argmax())
    return int(edges[2 * longest]), int(edges[2 * longest + 1])


def _when_named(slow: NDArray[np.bool_], shared: Floats) -> int:
    """The first step at which so many of the last 20 were slow."""
    recent = np.convolve(slow.astype(np.float64), np.ones(20))[: len(slow)]
    enough = np.flatnonzero(recent >= SLOW_IN_A_ROW)
    return int(shared[int(enough[0]) if len(enough) else -1])
