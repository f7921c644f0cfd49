"""Where the time of a step goes in TRL's trainers for reinforcement learning, which wrap what they do in profiling
contexts. GRPO and RLOO log no more than the whole `step_time`. Tested in tests/integrations/test_trl.py."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainvitals.integrations.phase_edges import PhaseEdges
from trainvitals.journal.documents.registration import PhaseNote

_MODULE = "trl.extras.profiling"
_PREPARE = "_prepare_inputs"
"""All of a step that is not training: the other contexts are in it."""
_TIMES = {
    "transformers.generate": "rl_generation_time",
    "transformers.generate_batch": "rl_generation_time",
    "vLLM.generate": "rl_generation_time",
    "sync_weights": "rl_weight_sync_time",
    "_calculate_rewards": "rl_reward_time",
    "_get_per_token_logps_and_entropies": "rl_logprob_time",
    "compute_loss": "",  # without the backward pass: training is what is left of the step
}
"""As the catalog calls them, without the class of the trainer before it."""


class _Open(NamedTuple):
    """A context that has not ended."""

    context: Any
    name: str
    phase: list[str]
    since: float
    counts: bool
    """It is in `_TIMES`, and not within another one that is."""


class TrainerPhases:
    """Those of one training, from its beginning to its end."""

    def __init__(self, note: Callable[[PhaseNote], None]) -> None:
        self._edges = PhaseEdges(note, whole=_PREPARE)
        self._thread = threading.get_ident()
        self._open: list[_Open] = []
        self._now: dict[str, float] = {}
        """Seconds of the step that is going on, by metric and `_PREPARE`."""
        self._total: dict[str, float] = {}
        """Of those steps that have ended since the trainer has logged."""
        self._steps = 0
        contexts = getattr(sys.modules.get(_MODULE), "ProfilingContext", None)
        if contexts is not None:
            _observe(contexts)
            _observers.add(self)

    def close(self) -> None:
        _observers.discard(self)

    def begin(self, context: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        name = str(context.name).partition(".")[2]
        counts = name in _TIMES and not any(item.counts for item in self._open)
        self._open.append(_Open(context, name, self._edges.enter(name), time.perf_counter(), counts))

    def end(self, context: Any) -> None:
        for item in [item for item in self._open if item.context is context]:
            self._open.remove(item)
            self._edges.leave(item.phase)
            metric = _TIMES[item.name] if item.counts else item.name if item.name == _PREPARE else ""
            if metric:
                self._now[metric] = self._now.get(metric, 0.0) + time.perf_counter() - item.since

    def end_step(self) -> None:
        for metric, seconds in self._now.items():
            self._total[metric] = self._total.get(metric, 0.0) + seconds
        self._now.clear()
        self._steps += 1

    def discard(self) -> None:
        """What was timed since the last step was an evaluation."""
        self._now.clear()

    def take(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Seconds per step since the last call, as means: so is everything in `logs`, which has the `step_time`."""
        whole = logs.get("step_time")
        if not isinstance(whole, (int, float)) or not self._steps or _PREPARE not in self._total:
            return {}
        means = {metric: seconds / self._steps for metric, seconds in self._total.items()}
        # What has been timed before and was not now has taken no time: responses may be used for several steps.
        self._total, self._steps = dict.fromkeys(self._total, 0.0), 0
        prepared = means.pop(_PREPARE)
        return {"rl_step_time": float(whole), "rl_update_time": max(whole - prepared, 0.0), **means}


_observers: weakref.WeakSet[TrainerPhases] = weakref.WeakSet()


def _observe(contexts: Any) -> None:
    """Have every profiling context report its beginning and end; a second time, nothing happens."""
    if hasattr(contexts.__enter__, "of_trainvitals"):
        return
    enter, leave = contexts.__enter__, contexts.__exit__

    @functools.wraps(enter)
    def entered(context: Any) -> Any:
        result = enter(context)
        _report(TrainerPhases.begin, context)
        return result

    @functools.wraps(leave)
    def left(context: Any, *error: Any) -> Any:
        try:
            return leave(context, *error)
        finally:
            _report(TrainerPhases.end, context)

    entered.of_trainvitals = True  # type: ignore[attr-defined]
    contexts.__enter__, contexts.__exit__ = entered, left


def _report(change: Callable[[TrainerPhases, Any], None], context: Any) -> None:
    for observer in list(_observers):
        try:
            change(observer, context)
        except Exception:  # noqa: BLE001 - a context of another kind; the training comes first
            continue
