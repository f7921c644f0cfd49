"""The newest value of every training metric of a run. Tested in tests/views/tui/test_shown_run.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainvitals import catalog
from trainvitals.journal.encoding import number
from trainvitals.journal.identity import Participant


class NewestValues:
    """Those of the lowest participant, which represents the run."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.by_name: dict[str, float] = {}
        """Under the names that were logged."""
        self.by_metric: dict[str, float] = {}
        """Under the names of the catalog where they have one."""
        self._lowest: Participant | None = None

    def load(self, values: Mapping[str, float], step: int | None, lowest: Participant | None) -> None:
        """What is known from the files."""
        self.step, self._lowest = step, lowest
        for name, value in values.items():
            self._set(name, value)

    def add(self, participant: Participant, step: int | None, row: Mapping[str, Any]) -> None:
        """Take in a new line."""
        if self._lowest is None or participant < self._lowest:
            self._lowest = participant
        if participant != self._lowest:
            return
        self.step = step if step is not None else self.step
        for name, item in row.items():
            value = number(item)
            if value is not None and name != "step":
                self._set(name, value)

    def _set(self, name: str, value: float) -> None:
        metric = catalog.find("training", name)
        self.by_name[name] = value
        self.by_metric[metric.name if metric is not None else name] = value
