"""The file logger of verl (`trainer.logger=["console","file"]`): `{"step": 1, "data": {...}}` on each line.

It writes NaN as null, and a training that is resumed begins the file again. It keeps no times; followed while it grows,
rows have those of their arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals.trackers.importing import ImportFailed, Piece
from trainvitals.trackers.run_writing import About
from trainvitals.trackers.tables import JsonTable, Row, TablePosition, TableRun, TableSource


def open_source(target: str) -> TableSource:
    path = Path(target)
    if not path.is_file():
        hint = "verl writes <project>/<experiment>.jsonl, or to $VERL_FILE_LOGGER_PATH, once training has begun"
        raise ImportFailed(f"{target} is not a file", hint=hint)
    return VerlSource(VerlTable(path.resolve()))


class VerlTable(JsonTable):
    """Where null is NaN, and a metric may be called `time` or `run`."""

    def columns(self) -> Sequence[str]:
        return ["step"]

    def rows(self, after: TablePosition, mark: str) -> Iterator[tuple[TablePosition, Row]]:
        for place, row in super().rows(after, mark):
            yield place, {name: math.nan if value is None else value for name, value in row.items()}


class VerlSource(TableSource):
    """One run."""

    def __init__(self, table: VerlTable) -> None:
        super().__init__(table)
        self._known[""] = VerlRun(table, "")


class VerlRun(TableRun):
    """Its path has the names of the project and the experiment, unless it was chosen by hand."""

    def about(self) -> About:
        return replace(super().about(), project=self._table.path.parent.name)

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        again = int(position.get("offset", 0)) > self._table.path.stat().st_size if self._table.path.exists() else False
        for piece in super().read(position):
            piece.begins_attempt, again = again, False
            yield piece
