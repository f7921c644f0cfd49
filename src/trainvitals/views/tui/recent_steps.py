"""The newest steps of every rank: how fast a run is, and which rank slows down the others.
Tested in tests/views/tui/test_shown_run.py."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from trainvitals.analysis.progress import PACE_STEPS, find_pace
from trainvitals.journal.identity import Participant

RECENT_STEPS = PACE_STEPS
MEDIAN_STEPS = 20
"""Number of steps in the median step time of a rank."""


class LoggedStep(NamedTuple):
    """One step of one rank."""

    number: int
    moment: float
    """When it was logged, seconds since 1970."""
    seconds: float | None
    """How long it took, where that was logged."""


class RankPace(NamedTuple):
    """How fast one rank is."""

    last: LoggedStep
    step_time: float | None
    """Median of the newest steps, seconds."""
    ratios: tuple[float | None, ...]
    """Each of the newest steps relative to the usual time; oldest first, None where this rank has no such step."""


class RecentSteps:
    """Bounded: a run of a million steps takes no more memory than a new one."""

    def __init__(self) -> None:
        self._ranks: dict[Participant, deque[LoggedStep]] = {}

    @property
    def lowest(self) -> Participant | None:
        return min(self._ranks, default=None)

    def add(self, participant: Participant, steps: Sequence[LoggedStep]) -> None:
        """Steps in the order in which they were logged. Several lines of one step count as one."""
        for step in steps:
            recent = self._ranks.setdefault(participant, deque(maxlen=RECENT_STEPS))
            if recent and recent[-1].number == step.number:
                before = recent.pop()
                step = step if step.seconds is not None else step._replace(seconds=before.seconds)
            recent.append(step)

    def clear(self) -> None:
        self._ranks.clear()

    def pace(self) -> float | None:
        """Recent seconds per step of the lowest participant."""
        steps = self._ranks[min(self._ranks)] if self._ranks else ()
        return find_pace([(step.number, step.moment) for step in steps])

    def last_moment(self) -> float | None:
        """When any rank logged a step last, seconds since 1970."""
        return max((recent[-1].moment for recent in self._ranks.values()), default=None)

    def compare(self) -> dict[Participant, RankPace]:
        """Every rank relative to all of its role."""
        seconds = {participant: _step_seconds(self._ranks[participant]) for participant in sorted(self._ranks)}
        roles = dict.fromkeys(participant.role for participant in seconds)
        usual = {role: _usual([mine for item, mine in seconds.items() if item.role == role]) for role in roles}
        return {
            participant: RankPace(
                last=self._ranks[participant][-1],
                step_time=median(mine[-MEDIAN_STEPS:]) if mine else None,
                ratios=_against(mine, usual[participant.role]),
            )
            for participant, mine in seconds.items()
        }


def _step_seconds(recent: Iterable[LoggedStep]) -> list[float]:
    """How long each step took: as logged, else the time since the step before."""
    found: dict[int, float] = {}
    before: LoggedStep | None = None
    for step in recent:
        if step.seconds is not None and math.isfinite(step.seconds):
            found[step.number] = step.seconds
        elif step.seconds is None and before is not None:
            steps, seconds = step.number - before.number, step.moment - before.moment
            if steps > 0 and seconds >= 0:
                found[step.number] = seconds / steps
        before = step
    return list(found.values())


def _usual(seconds: Sequence[Sequence[float]]) -> list[float]:
    """The newest last: the median over all ranks of their newest step, of the one before it, and so on. Ranks that
    are out of step can be compared like this, too. With one rank it is the median of its own steps."""
    newest = [mine[-RECENT_STEPS:] for mine in seconds if mine]
    longest = max(map(len, newest), default=0)
    if len(seconds) == 1 and newest:
        return [median(newest[0])] * longest
    return [median([mine[-place] for mine in newest if len(mine) >= place]) for place in range(longest, 0, -1)]


def _against(mine: Sequence[float], usual: Sequence[float]) -> tuple[float | None, ...]:
    """Each of the newest steps as a multiple of what is usual."""
    missing = [None] * (len(usual) - len(mine))
    shown = mine[-len(usual) :] if usual else []
    return (
        *missing,
        *(own / other if other > 0 else None for own, other in zip(shown, usual[-len(shown) :], strict=True)),
    )
