"""`trainvitals import acme FILE`: lines of `step loss`."""

from pathlib import Path

from trainvitals.journal.segment_writer import Lines
from trainvitals.trackers.importing import Piece, SourceEnd
from trainvitals.trackers.registry import ImporterRow
from trainvitals.trackers.run_writing import NO_TIME, About

IMPORTER = ImporterRow("acme", __name__, "FILE", "text files of Acme")


def open_source(target):
    return AcmeSource(Path(target).resolve())


class AcmeSource:
    unended = SourceEnd("finished")

    def __init__(self, path):
        self._run = AcmeRun(path)

    def runs(self):
        return [self._run]


class AcmeRun:
    key = ""

    def __init__(self, path):
        self._path = path
        self.place = str(path)
        self.title = path.stem

    def about(self):
        return About(name=self.title, has_times=False)

    def read(self, position):
        done = position.get("rows", 0)
        rows = self._path.read_text().splitlines()
        lines = Lines("training")
        for row in rows[done:]:
            step, loss = row.split()
            lines.add_row(NO_TIME, int(step), {"loss": float(loss)})
        if len(rows) > done:
            yield Piece(position={"rows": len(rows)}, lines=lines)

    def end(self):
        return None
