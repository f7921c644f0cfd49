"""Numbers that a run has already: what is watched is also in the event file of a program that logs it there.

A number is a repetition if the run has the same value, under a name that means the same, at the same step or the one
beside it: frameworks count from 0 or from 1. Event files have 32-bit floats, so values are compared as such. What a
name means is told by its words: `train/loss`, `Loss/train` and `loss` are one, `val_loss` and `eval/loss` another.
Tested in tests/trackers/program_files/test_following.py.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

from trainvitals.journal.encoding import number
from trainvitals.trackers.run_writing import RESERVED

MOST_VALUES = 300_000
"""Of the run's own that are remembered: some minutes of a fast loop, and some 50 MB."""
_WORDS = re.compile(r"[a-z0-9]+")
_EMPTY_WORDS = frozenset({"train", "training", "epoch", "epochs", "batch", "step", "mean", "vs", "iterations"})
_SAME_WORDS = {"val": "eval", "validation": "eval", "evaluation": "eval", "grad": "gradient"}
_PER_EPOCH = frozenset({"epoch", "epochs", "evaluation", "validation", "val", "eval"})

Meaning = frozenset[str]
_Number = tuple[Meaning, bytes]
_FLOAT = struct.Struct("<f")


@functools.lru_cache(maxsize=20_000)
def read_meaning(name: str) -> Meaning:
    """The words that tell one metric from another."""
    words = _WORDS.findall(name.lower())
    return frozenset(_SAME_WORDS.get(word, word) for word in words if word not in _EMPTY_WORDS)


@functools.lru_cache(maxsize=20_000)
def is_per_epoch(name: str) -> bool:
    """Whether its steps may be epochs, which the run itself has by steps."""
    return not _PER_EPOCH.isdisjoint(_WORDS.findall(name.lower()))


class Repeats:
    """The newest values of a run."""

    def __init__(self) -> None:
        self._order: deque[tuple[_Number, int | None]] = deque()
        self._steps: dict[_Number, dict[int | None, int]] = {}
        """At which steps each was logged, and how often."""
        self.names: set[str] = set()
        """All metrics that the run itself has."""
        self.meanings: set[Meaning] = set()
        """What they mean."""

    def add_row(self, row: Mapping[str, Any]) -> None:
        """A row that the run itself logged."""
        step = row.get("step")
        for name, item in row.items():
            value = number(item)
            if name in RESERVED or value is None:
                continue
            self.names.add(name)
            found = (read_meaning(name), _shorten(value))
            self.meanings.add(found[0])
            steps = self._steps.setdefault(found, {})
            steps[step] = steps.get(step, 0) + 1
            self._order.append((found, step))
        while len(self._order) > MOST_VALUES:
            self._forget(*self._order.popleft())

    def _forget(self, found: _Number, step: int | None) -> None:
        steps = self._steps[found]
        steps[step] -= 1
        if not steps[step]:
            del steps[step]
        if not steps:
            del self._steps[found]

    def has(self, name: str, step: int | None, value: float, *, by_epoch: bool) -> bool:
        """Whether the run has this number. `by_epoch` if its steps are epochs."""
        if name.rpartition("/")[2] == "epoch" and "epoch" in self.names:
            return True  # where the training is, which some count in whole epochs
        found = self._steps.get((read_meaning(name), _shorten(value)))
        if found is None:
            return False
        if step is None or by_epoch or is_per_epoch(name):
            return True
        return any(other in found for other in (step, step - 1, step + 1))


def _shorten(value: float) -> bytes:
    if value != value:
        return b"nan"
    try:
        return _FLOAT.pack(value)
    except OverflowError:  # infinite there
        return _FLOAT.pack(math.copysign(math.inf, value))
