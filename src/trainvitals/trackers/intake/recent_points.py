"""The points of a run that came last: a client that saw no answer sends its request again, also to another server.
Tested in tests/trackers/intake/test_mlflow.py."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor, Row
from trainvitals.journal.encoding import number, parse_time, spell

MOST = 50_000


class RecentPoints:
    """Bounded. Read back from the open files of the run when it is opened."""

    def __init__(self, folder: Path) -> None:
        self._known: OrderedDict[tuple[str, float | str, int, int | None], None] = OrderedDict()
        for row in _read_last_rows(folder):
            moment = round((parse_time(row.get("timestamp")) or 0.0) * 1e6)
            for name, item in row.items():
                value = number(item)
                if name not in ("timestamp", "step") and value is not None:
                    self.add(name, value, moment, row.get("step"))

    def add(self, name: str, value: float, micros: int, step: int | None) -> bool:
        """False if the point is known. `micros` since 1970."""
        point = (name, spell(value), micros, step)
        if point in self._known:
            return False
        self._known[point] = None
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return True


def _read_last_rows(folder: Path) -> list[Row]:
    files = [path for name, suffix, path in layout.list_files(folder) if (name.table, suffix) == ("training", ".jsonl")]
    rows: list[Row] = []
    for path in reversed(files):
        rows = [*Cursor(path).read(), *rows]
        if len(rows) >= MOST:
            break
    return rows[-MOST:]
