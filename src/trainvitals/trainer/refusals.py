"""Values that a run could not log: counted, warned about once, and raised into the user's loop only in strict mode.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

from trainvitals.errors import MetricError
from trainvitals.handlers import is_from_handler
from trainvitals.stderr import print_line

MAX_NAMES = 20
"""Refused names that are told of: a program may make new ones in every step."""


class Refusals:
    """Of one run."""

    def __init__(self, strict: bool) -> None:
        self.count = 0
        """Values that were not numbers and so were not logged."""
        self.is_strict = strict
        self._warned: set[str] = set()
        self._names: set[str] = set()

    def refuse(self, what: str, outcome: str = "not logged", *, name: str = "") -> None:
        """Every `name` is told of once. Raises MetricError in strict mode."""
        self.count += 1
        if self.is_strict:
            raise MetricError(what, hint="log numbers only; put text and lists in config= or run.event()")
        if len(self._names) < MAX_NAMES and name not in self._names:
            self._names.add(name)
            print_line(f"{what}: {outcome} (shown once; further ones are only counted)")

    def survive(self, error: Exception) -> None:
        """A bug of ours. Exceptions of the program's signal handlers are passed on."""
        if is_from_handler(error):
            raise error
        self.count += 1
        self.warn_once("failed", f"log() failed, training continues: {error!r:.300}")

    def warn_once(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            print_line(text)
