"""Trainings in rounds, such as boosting: a library's callbacks become a line per round.

A program may fit many models one after the other, as a search over parameters does. They share one run: its steps
continue, and an event marks where each training begins.
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
        """When the previous round ended; None if unknown."""

    def begin(self, what: str, config: Mapping[str, Any], *, is_timed: bool = True) -> None:
        """A training begins. `is_timed` if its first round begins now."""
        before = self._attachment.run
        run = self._attachment.begin(config)
        self._first = run.step + 1
        self._ended = time.perf_counter_ns() if is_timed else None
        if before is run:
            run.event("training", f"{what} starts at step {self._first}", config=dict(config))

    def end_round(self, number: int, values: Mapping[str, Any]) -> None:
        """The round `number`, counted from 0, is over; `batch_time` is the time since the end of the previous one."""
        run = self._attachment.run
        if run is None:
            return
        times = {} if self._ended is None else {"batch_time": (time.perf_counter_ns() - self._ended) / 1e9}
        run.log({**values, **times}, step=self._first + number)
        self._ended = time.perf_counter_ns()  # without our own overhead


def make_automatic() -> Attachment:
    """For the callbacks that `trainvitals run` installs."""
    return Attachment({}, False, automatic=True)


def is_main_process() -> bool:
    """Whether this is the program itself, not a worker that fits one of many models for it."""
    return multiprocessing.current_process().name == "MainProcess"
