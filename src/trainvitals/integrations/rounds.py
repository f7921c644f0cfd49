"""Trainings that are made of rounds, such as boosting: what a library calls back with becomes a line per round.

A program may fit many models one after the other, as a search over parameters does. They share one run: its steps are
counted on, and an event says where each training begins.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from typing import Any

from trainvitals.integrations.attachment import Attachment


class RoundLog:
    """Writes the rounds of one training after another."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._first = 0
        self._ended: int | None = None
        """When the round before ended; None if that is not known."""

    def begin(self, what: str, config: Mapping[str, Any], *, is_timed: bool = True) -> None:
        """A training begins. `is_timed` if its first round begins now."""
        before = self._attachment.run
        run = self._attachment.begin(config)
        self._first = run.step + 1
        self._ended = time.perf_counter_ns() if is_timed else None
        if before is run:
            run.event("training", f"{what} begins at step {self._first}", config=dict(config))

    def end_round(self, number: int, values: Mapping[str, Any]) -> None:
        """The round `number`, counted from 0, is over; `batch_time` is the time since the round before was."""
        run = self._attachment.run
        if run is None:
            return
        times = {} if self._ended is None else {"batch_time": (time.perf_counter_ns() - self._ended) / 1e9}
        run.log({**values, **times}, step=self._first + number)
        self._ended = time.perf_counter_ns()  # without what this cost


def make_automatic() -> Attachment:
    """For what `trainvitals run` places."""
    return Attachment({}, False, automatic=True)


def is_main_process() -> bool:
    """Whether this is the program itself, not a worker that fits one of many models for it."""
    return multiprocessing.current_process().name == "MainProcess"
