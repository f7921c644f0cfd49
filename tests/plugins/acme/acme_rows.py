"""The rows of a run, written to a file as JSON lines."""

import json
from pathlib import Path

from trainvitals.exporters.registry import ExporterRow

EXPORTER = ExporterRow("acme_rows", __name__, "rows")


def create(target, settings):
    return AcmeRows(Path(target))


class AcmeRows:
    def __init__(self, path):
        self._path = path

    def open(self, run):
        self._append({"open": run.run_id, "project": run.about.project})

    def write(self, rows):
        for row in rows:
            self._append({"table": row.table, "role": row.role, "rank": row.rank, **row.values})

    def close(self, end):
        self._append({"close": None if end is None else end.status})

    def _append(self, row):
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
