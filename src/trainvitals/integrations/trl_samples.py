"""Completions of TRL's trainers with their rewards, where `log_completions=True` asks for them: TRL prints them, writes
them to Parquet files and hands them to W&B. Tested in tests/integrations/test_trl.py."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Mapping
from itertools import islice
from typing import Any

from trainvitals.integrations.samples import NAME, TRAINING, log_samples
from trainvitals.trainer.run import Run

MOST_ROWS = 64
"""Of one step."""
TABLES_OF_ALL_STEPS = 100
"""Between two tables are a hundredth of the steps so far: a long training must not fill the media of its run."""
_TRAINERS = (("trl.trainer.grpo_trainer", "GRPOTrainer"), ("trl.trainer.rloo_trainer", "RLOOTrainer"))


class TrainerSamples:
    """Those of one training, from its beginning to its end."""

    def __init__(self, run: Run, state: Any) -> None:
        self._run = run
        self._state = state
        self._last: dict[str, int] = {}
        for module, name in _TRAINERS:
            trainer = getattr(sys.modules.get(module), name, None)
            if trainer is not None:
                _observe(trainer)
        _observers.add(self)

    def close(self) -> None:
        _observers.discard(self)

    def take(self, trainer: Any) -> None:
        """The trainer has logged."""
        if trainer.state is not self._state or not (trainer.log_completions and trainer.accelerator.is_main_process):
            return
        step, logs = int(self._state.global_step), trainer._logs
        name = TRAINING if trainer.model.training else NAME
        last = self._last.get(name)
        if not logs["prompt"] or (last is not None and step - last < max(1, step // TABLES_OF_ALL_STEPS)):
            return
        self._last[name] = step
        columns: dict[str, Any] = {
            "prompt": logs["prompt"],
            "completion": logs["completion"],
            **{reward: values for reward, values in logs["rewards"].items() if reward not in ("prompt", "completion")},
            "advantage": logs["advantages"],
        }
        rows = islice(zip(*columns.values(), strict=False), MOST_ROWS)
        samples = [[_text(prompt), _text(completion), *scores] for prompt, completion, *scores in rows]
        log_samples(self._run, samples, step, name=name, columns=tuple(columns))


def _text(messages: Any) -> Any:
    """A prompt or completion, which is a text or messages; of pictures in them, that there is one."""
    if not isinstance(messages, (list, tuple)):
        return messages
    found = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else message
        if isinstance(content, (list, tuple)):
            parts = (part if isinstance(part, Mapping) else {"text": part} for part in content)
            content = " ".join(str(part.get("text", f"<{part.get('type')}>")) for part in parts)
        role = message.get("role") if isinstance(message, Mapping) else None
        found.append(f"{role}: {content}" if role else str(content))
    return "\n".join(found)


_observers: weakref.WeakSet[TrainerSamples] = weakref.WeakSet()


def _observe(trainer: Any) -> None:
    """Have it say when it has logged; a second time, nothing happens."""
    log = trainer.log
    if hasattr(log, "of_trainvitals"):
        return

    @functools.wraps(log)
    def logged(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = log(self, *args, **kwargs)
        for observer in list(_observers):
            try:
                observer.take(self)
            except Exception:  # noqa: BLE001 - a trainer of another version; the training comes first
                continue
        return result

    logged.of_trainvitals = True  # type: ignore[attr-defined]
    trainer.log = logged
