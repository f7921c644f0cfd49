"""Pictures, tables, texts and histograms that a training logs: converted here and written at once, apart from `log()`.

Everything is bounded: the size of a file, that of a run, and how many may come in a second. What is over a limit, or
finds no room on the disk, is counted and warned about once; nothing raises into the loop.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainvitals.errors import MetricError, name_kind
from trainvitals.journal.histograms import BINS, Histogram, from_edges
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import Media, OverLimit
from trainvitals.journal.writer import MIB
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings
from trainvitals.trainer.images import NotAPicture, list_pictures
from trainvitals.trainer.refusals import Refusals
from trainvitals.trainer.tables import MOST_ROWS, NotATable, read_table

BURST = 500
PER_SECOND = 10.0
"""How many may be logged for long; `BURST` at once."""
MOST_BINS = 512
LONGEST_CAPTION = 500


class NotAHistogram(ValueError):
    """What was given cannot be counted; the text says why."""


class RunMedia:
    """What one process of a run logs."""

    def __init__(self, folder: Path, participant: Participant, settings: Settings, refusals: Refusals) -> None:
        self.process = os.getpid()
        self.left_out: Counter[str] = Counter()
        """What was not kept, by reason."""
        self._folder = folder
        self._participant = participant
        self._settings = settings
        self._refusals = refusals
        self._file_bytes = int(settings.media_file_mb * MIB)
        self._media: Media | None = None
        self._lock = threading.RLock()
        self._allowed = float(BURST)
        self._counted = time.monotonic()

    def log_image(self, name: str, image: Any, step: int | None, caption: str) -> None:
        more: dict[str, Any] = {"caption": redact_text(str(caption))[:LONGEST_CAPTION]} if caption else {}

        def write(media: Media) -> None:
            for picture in list_pictures(image, self._file_bytes):
                media.write(
                    "image", name, picture.data, picture.suffix, step=step, participant=self._participant, **more
                )

        self._write("image", name, write)

    def log_table(self, name: str, table: Any, step: int | None, columns: Sequence[Any] | None) -> None:
        def write(media: Media) -> None:
            found = read_table(table, columns, self._settings.redact)
            if found.total > len(found.rows):
                self._leave_out(f"rows of a table beyond {MOST_ROWS:,}", found.total - len(found.rows))
            facts = {"rows": found.total, "columns": len(found.columns)}
            media.write("table", name, found.encode(), "json", step=step, participant=self._participant, **facts)

        self._write("table", name, write)

    def log_text(self, name: str, text: Any, step: int | None) -> None:
        def write(media: Media) -> None:
            data = redact_text(str(text)).encode("utf-8", "backslashreplace")
            media.write("text", name, data, "txt", step=step, participant=self._participant)

        self._write("text", name, write)

    def log_histogram(self, name: str, values: Any, step: int | None, bins: int) -> None:
        def write(media: Media) -> None:
            counted = count(values, bins)
            media.write_histogram(name, counted, step=step, participant=self._participant)

        self._write("histogram", name, write)

    def _write(self, kind: str, name: str, write: Callable[[Media], None]) -> None:
        """Raises MetricError in strict mode, and what foreign code raises."""
        with self._lock:
            try:
                self._check_rate()
                if self._media is None:
                    size = int(self._settings.media_size_mb * MIB)
                    self._media = Media(self._folder, file_bytes=self._file_bytes, run_bytes=size)
                write(self._media)
            except OverLimit as error:
                self._leave_out(f"{kind}s: {error}")
            except OSError as error:
                self._leave_out(f"{kind}s: {error.strerror or type(error).__name__}", detail=str(error))
            except (NotAPicture, NotATable, NotAHistogram) as error:
                if self._refusals.is_strict:
                    raise MetricError(f"log_{kind}('{name:.100}'): {error}") from error
                self._leave_out(f"{kind}s that could not be used", detail=f"'{name:.100}': {error}")

    def _check_rate(self) -> None:
        now = time.monotonic()
        self._allowed = min(self._allowed + (now - self._counted) * PER_SECOND, BURST)
        self._counted = now
        if self._allowed < 1:
            raise OverLimit(f"more than {PER_SECOND:g} a second")
        self._allowed -= 1

    def _leave_out(self, why: str, count: int = 1, detail: str = "") -> None:
        self.left_out[why] += count
        text = f"not kept: {why}{f', {detail:.300}' if detail else ''} (shown once; further ones are only counted)"
        self._refusals.warn_once(f"media {why}", text)


def count(values: Any, bins: int = BINS) -> Histogram:
    """A histogram of numbers in any nesting, or the one that `(counts, edges)`, as numpy makes it, is already."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(values, tuple) and len(values) == 2 and _length(values[1]) == _length(values[0]) + 1 > 1:
        counts, edges = (_flatten(part) for part in values)
        made = from_edges(edges, counts)
        if made is None:
            raise NotAHistogram("its edges are not ascending and finite")
        return made
    bins = min(max(int(bins), 1), MOST_BINS)
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    if numpy is None or isinstance(values, (list, tuple, range)):
        return _count_list(_flatten(values), bins)
    array = numpy.asarray(values)
    if array.dtype.kind not in "buif":
        raise NotAHistogram(f"an array of {array.dtype} has no histogram")
    array = array.astype("float64").ravel()
    finite = array[numpy.isfinite(array)]
    if not finite.size:
        raise NotAHistogram("it has no finite number")
    low, high = float(finite.min()), float(finite.max())
    counted = numpy.histogram(finite, bins if high > low else 1, (low, high))[0].tolist()
    return Histogram(low, high, counted, int(array.size - finite.size))


def _count_list(values: list[float], bins: int) -> Histogram:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        raise NotAHistogram("it has no finite number")
    low, high = min(finite), max(finite)
    counts = [0] * (bins if high > low else 1)
    scale = len(counts) / (high - low) if high > low else 0.0
    for value in finite:
        counts[min(int((value - low) * scale), len(counts) - 1)] += 1
    return Histogram(low, high, counts, len(values) - len(finite))


def _length(values: Any) -> int:
    return len(values) if hasattr(values, "__len__") else -1


def _flatten(values: Any) -> list[float]:
    if hasattr(values, "tolist"):
        values = values.detach().tolist() if hasattr(values, "detach") else values.tolist()
    if isinstance(values, (int, float)):
        return [float(values)]
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise NotAHistogram(f"{name_kind(values)} is not a number")
    return [number for value in values for number in _flatten(value)]
