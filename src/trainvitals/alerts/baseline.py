"""Another run to compare with: its metrics as short curves, read once by a child, because reading a run needs numpy.

python -m trainvitals.alerts.baseline ROOT REFERENCE NOT_THIS_RUN
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainvitals import catalog

PIECES = 200
NAMES = tuple(row.name for row in catalog.TRAINING if row.name not in ("step", "epoch"))

Curves = dict[str, tuple[list[float], list[float]]]


class Baseline:
    """The curves, once they are read. Until then, and for `early`, there is no other run."""

    def __init__(self, reference: str, folder: Path, warn: Callable[[str], None]) -> None:
        self._curves: Curves = {}
        self._warn = warn
        if reference != "early":
            command = [sys.executable, "-P", "-m", "trainvitals.alerts.baseline"]
            words = [*command, str(folder.parent.parent), reference, str(folder)]
            threading.Thread(target=self._read, args=(words,), name="baseline", daemon=True).start()

    @classmethod
    def read(cls, reference: str, folder: Path, warn: Callable[[str], None]) -> Baseline:
        """The same at once, for a process that may load numpy and has nothing else to do."""
        baseline = cls("early", folder, warn)
        if reference != "early":
            baseline._take(read_curves(folder.parent.parent, reference, folder))
        return baseline

    def _read(self, words: list[str]) -> None:
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
            found = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            found = {"error": "cannot read the baseline run"}
        self._take(found)

    def _take(self, found: dict[str, Any]) -> None:
        if "error" in found:
            self._warn(f"alerts.baseline: {found['error']}; using the early part of this run as the baseline")
            return
        self._curves = {name: (list(x), list(y)) for name, (x, y) in found["curves"].items()}

    def value(self, metric: str, step: float) -> float | None:
        """The other run's median around that step; None where it did not get that far or has no such metric."""
        row = catalog.find("training", metric)
        curve = self._curves.get(row.name if row is not None else metric)
        if curve is None or not curve[0] or step > 1.1 * curve[0][-1] + 1:
            return None
        return curve[1][max(bisect_right(curve[0], step) - 1, 0)]


def read_curves(root: Path, reference: str, other_than: Path) -> dict[str, Any]:
    """`{"run": id, "curves": {name: (steps, medians)}}`, or `{"error": why}`."""
    import numpy as np

    from trainvitals.errors import TrainvitalsError
    from trainvitals.journal.reader import RunReader, open_run

    try:
        reader = _find_best(root, other_than) if reference == "best" else open_run(reference, root)
    except TrainvitalsError as error:
        return {"error": error.message}
    if not isinstance(reader, RunReader):
        return {"error": "no finished run in this project"}
    curves = {}
    for series in reader.series(NAMES, participants=reader.participants()[:1]):
        if len(series.x):
            pieces = np.array_split(np.arange(len(series.x)), min(PIECES, len(series.x)))
            finite = [piece[np.isfinite(series.y[piece])] for piece in pieces]
            kept = [piece for piece in finite if len(piece)]
            curves[series.name] = (
                [float(series.x[piece[0]]) for piece in kept],
                [float(np.median(series.y[piece])) for piece in kept],
            )
    return {"run": reader.folder.name, "curves": curves}


def _find_best(root: Path, other_than: Path) -> Any:
    """The finished run of the same project whose loss went lowest; None if there is none."""
    from trainvitals.journal.folder import list_folders
    from trainvitals.journal.reader import RunReader

    best, lowest = None, float("inf")
    for folder in list_folders(root):
        if folder.parent != other_than.parent or folder == other_than:
            continue
        reader = RunReader(folder)
        loss = reader.summary().get("loss") if reader.info.status == "finished" else None
        if loss is not None and loss.low is not None and loss.low < lowest:
            best, lowest = reader, loss.low
    return best


if __name__ == "__main__":
    json.dump(read_curves(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])), sys.stdout)
