"""How far a run is and when it ends, from its configuration. Tested in tests/analysis/test_health.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainvitals import catalog

TOTAL_KEYS = ("total_steps", "max_steps", "num_training_steps", "train_steps", "num_steps", "steps")
PACE_STEPS = 120
"""How many of the newest steps determine the pace."""
EPOCH_KEYS = ("epochs", "num_epochs", "max_epochs", "num_train_epochs")


class Progress(NamedTuple):
    """`share` is between 0 and 1; what is not known is None."""

    step: int | None = None
    total_steps: int | None = None
    share: float | None = None
    seconds_left: float | None = None


def find_total(config: Mapping[str, Any], keys: tuple[str, ...] = TOTAL_KEYS) -> float | None:
    """The end by the configuration, at the top or one level down; None if it has none."""
    inner = [value for value in config.values() if isinstance(value, Mapping)]
    for place in (config, *inner):
        for key in keys:
            value = place.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                return float(value)
    return None


def find_pace(steps: Sequence[tuple[int, float]]) -> float | None:
    """Seconds per step from (step, seconds since 1970) of the newest lines, oldest first; None before there are two
    steps. What was logged before a step that went back does not count."""
    if len(steps) < 2:
        return None
    last = steps[-1]
    first = last
    for known in reversed(steps):
        if known[0] > first[0] or known[1] > first[1]:
            break
        first = known
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] and last[1] > first[1] else None


def find_step_time(latest: Mapping[str, float], pace: float | None) -> float | None:
    """Seconds of the newest step: what was logged as `batch_time`, or as that of reinforcement learning, else the
    pace."""
    for name in ("batch_time", "rl_step_time"):
        logged = latest.get(catalog.find_spelling("training", name, latest) or "")
        if logged is not None and math.isfinite(logged) and logged > 0:
            return logged
    return pace


def find_progress(
    config: Mapping[str, Any], step: int | None, epoch: float | None, step_seconds: float | None, live: bool
) -> Progress:
    """From the number of steps if it is known, else from the number of epochs. The first step is 0, or 1: then the
    last one is the total itself."""
    total = find_total(config)
    if total is not None and step is not None and step <= total:
        done = min(step + 1, total)
        left = (total - done) * step_seconds if step_seconds and live else None
        return Progress(step, int(total), done / total, left)
    epochs = find_total(config, EPOCH_KEYS)
    if epochs is not None and epoch is not None and step and 0 < epoch <= epochs:
        share = epoch / epochs
        left = (1 - share) / share * step * step_seconds if step_seconds and live else None
        return Progress(step, None, share, left)
    return Progress(step)
