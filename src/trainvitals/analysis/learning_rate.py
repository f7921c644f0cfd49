"""Findings in the learning rate. Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.findings import Curve, Finding, Floats, Measurements
from trainvitals.analysis.wording import count_of, show
from trainvitals.conditions import Conditions

FEWEST = 20
"""Values before which nothing is judged: a warmup begins with large factors."""
RESTARTED = 0.12
"""A schedule that restarts begins again when the rate has come down below this share of its peak."""
BACK = 1.5
"""Times the last value: a rate that goes back up by as much at once ..."""
NEAR_PEAK = 0.8
"""... to this share of its peak."""
CALM = 5
"""Values before a jump in which the rate hardly changed."""


def detect_jump(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """The rate rose at once to more than it ever was; a restart of a schedule goes back to what it was."""
    factor = conditions.thresholds["learning_rate_jump_factor"]
    rate = measured.need("learning_rate", FEWEST).finite()
    x, y = rate.x, rate.y
    if len(y) <= FEWEST or y.min() < 0:
        return []
    ratio = y[1:] / np.where(y[:-1] > 0, y[:-1], np.inf)
    highest = np.maximum.accumulate(y)[:-1]
    calm = np.convolve(np.abs(np.log(np.where(ratio > 0, ratio, 1.0))) < 0.2, np.ones(CALM))[: len(ratio)]
    steady = np.concatenate([[0.0], calm[:-1]]) >= CALM
    resumed = _find_resumed(measured, rate, ratio, steady, conditions)
    if resumed:
        return resumed
    jumps = np.flatnonzero((ratio > factor) & (y[1:] > 1.5 * highest) & steady)
    jumps = jumps[jumps >= FEWEST - 1]
    if not len(jumps):
        return _find_restart(rate, ratio, highest, steady, conditions)
    place = int(jumps[0])
    step = int(x[place + 1])
    apart = count_of(step - int(x[place]), "step")
    return [
        Finding(
            "lr.jump",
            "warning",
            f"The learning rate jumped from {show(y[place])} to {show(y[place + 1])} at step {step:,}",
            (f"{ratio[place]:.3g} times as high within {apart}, above any before",),
            conditions["learning_rate_jumped"].advice,
            step=step,
            named_at=step,
            values={"before": float(y[place]), "after": float(y[place + 1])},
        )
    ]


def _find_resumed(
    measured: Measurements, rate: Curve, ratio: Floats, steady: NDArray[np.bool_], conditions: Conditions
) -> list[Finding]:
    """Where the run was resumed and the rate is another than just before: it went up, or down to rise once more."""
    x, y = rate
    up = ratio > BACK
    later = np.maximum.accumulate(y[::-1])[::-1][1:]
    down = (y[1:] * BACK < y[:-1]) & (later > BACK * y[1:]) & (later * BACK > y[:-1])
    for place in np.flatnonzero((up | down) & steady):
        step = measured.find_resume(float(x[place]), float(x[place + 1]))
        if step is None:
            continue
        risen = x[place + 1 :][y[place + 1 :] > BACK * y[place + 1]]
        return [
            Finding(
                "lr.jump",
                "warning",
                f"The learning rate went from {show(y[place])} to {show(y[place + 1])} where the run was resumed at "
                f"step {step:,}",
                ("a new attempt began there: most likely the scheduler's state was not restored",),
                conditions["learning_rate_jumped"].advice,
                step=step,
                named_at=int(x[place + 1] if up[place] else risen[0]),
                values={"before": float(y[place]), "after": float(y[place + 1])},
            )
        ]
    return []


def _find_restart(
    rate: Curve, ratio: Floats, highest: Floats, steady: NDArray[np.bool_], conditions: Conditions
) -> list[Finding]:
    """A schedule that begins again before it has come down: as where a run was resumed without its state."""
    x, y = rate
    back = (ratio > BACK) & (y[1:] > NEAR_PEAK * highest) & (y[:-1] > RESTARTED * highest) & steady
    places = np.flatnonzero(back)
    places = places[places >= FEWEST - 1]
    if not len(places):
        return []
    place = int(places[0])
    step = int(x[place + 1])
    return [
        Finding(
            "lr.jump",
            "info",
            f"The learning rate went back up from {show(y[place])} to {show(y[place + 1])} at step {step:,}",
            ("the learning-rate schedule seems to restart before it has decayed",),
            conditions["learning_rate_jumped"].advice,
            step=step,
            named_at=step,
            values={"before": float(y[place]), "after": float(y[place + 1])},
        )
    ]
