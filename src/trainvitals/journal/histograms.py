"""Histograms of a run: lines in `media/histograms[.role-R].rankN.jsonl`.

    {"timestamp": ..., "step": 20, "name": "logits", "low": -1.5, "high": 3.0, "counts": [...], "nonfinite": 0}

`counts` are those of equal bins from `low` to `high`; NaN and infinity are counted apart. What other trackers write has
other forms; `from_other` reads them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import encode_line, number
from trainvitals.journal.identity import Participant

BINS = 64
_FIRST_BYTES = 1 << 20
_EVEN = 0.01
"""How far edges may be off, in widths of a bin, and still make equal bins."""


class Histogram(NamedTuple):
    """Counts of equal bins from `low` to `high`."""

    low: float
    high: float
    counts: Sequence[float]
    nonfinite: int = 0


def file_name(participant: Participant) -> str:
    """Below `media/`."""
    return f"histograms.{participant.file_part}.jsonl"


def append_rows(folder: Path, participant: Participant, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add lines to the participant's file in the run folder. Raises OSError."""
    media = run_folder.make_within(folder, layout.MEDIA)
    run_folder.append_within(media, file_name(participant), b"".join(encode_line(row) for row in rows))


def list_first_names(folder: Path) -> list[str]:
    """Names at the beginning of the lowest participant's file: `watch` writes all of its own at each look."""
    rows = (row for path in _list_files(folder)[:1] for row in Cursor(path).read(_FIRST_BYTES))
    return list(dict.fromkeys(str(row.get("name")) for row in rows))


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Every histogram of one name, as written: of the lowest participant that has any."""
    for path in _list_files(folder):
        found = [row for row in Cursor(path).read() if row.get("name") == name]
        if found:
            return found
    return []


def _list_files(folder: Path) -> list[Path]:
    found = (folder / layout.MEDIA).glob("histograms.*.jsonl")
    return sorted((path for path in found if path.is_file()), key=lambda path: (len(path.name), path.name))


def from_other(content: object) -> Histogram | None:
    """A histogram as TensorBoard's (`right_edges`), W&B's (`bins`, `packedBins`) or our own fields have it; None if it
    is none. Bins that differ in width are split into equal ones in proportion."""
    if not isinstance(content, Mapping):
        return None
    try:
        return _read_fields(content)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, IndexError, KeyError):
        return None


def _read_fields(content: Mapping[str, Any]) -> Histogram | None:
    counts = _numbers(content.get("counts", content.get("values")))
    if not counts:
        return None
    packed = content.get("packedBins")
    if "low" in content:
        low, high = _numbers([content["low"], content["high"]])
        finite = all(map(math.isfinite, (low, high, *counts)))
        return Histogram(low, high, counts, int(content.get("nonfinite") or 0)) if finite else None
    if isinstance(packed, Mapping):
        low, width = _numbers([packed["min"], packed["size"]])
        return Histogram(low, low + width * len(counts), counts)
    if "right_edges" in content:
        return _read_tensorboard(content, counts)
    return from_edges(_numbers(content["bins"]), counts)


def _read_tensorboard(content: Mapping[str, Any], counts: list[float]) -> Histogram | None:
    rights = _numbers(content["right_edges"])
    lefts = _numbers(content["left_edges"]) if "left_edges" in content else [-math.inf, *rights[:-1]]
    # The outermost buckets of the older form reach to the ends of all numbers; the data do not.
    low = number(content.get("min", lefts[0]))
    high = number(content.get("max", rights[-1]))
    if low is None or high is None:
        return None
    edges = [min(max(edge, low), high) for edge in (lefts[0], *rights)]
    return from_edges(edges, counts)


def from_edges(edges: Sequence[float], counts: Sequence[float]) -> Histogram | None:
    """Of `len(counts) + 1` ascending edges; None if they are not."""
    if len(edges) != len(counts) + 1 or not all(map(math.isfinite, (*edges, *counts))):
        return None
    low, high = edges[0], edges[-1]
    if any(right < left for left, right in pairwise(edges)) or not math.isfinite(high - low):
        return None
    width = (high - low) / len(counts)
    if width <= 0:
        return Histogram(low, high, [sum(counts)])
    if all(abs(edge - (low + place * width)) <= width * _EVEN for place, edge in enumerate(edges)):
        return Histogram(low, high, counts)
    return Histogram(low, high, _split(edges, counts, BINS))


def _split(edges: Sequence[float], counts: Sequence[float], bins: int) -> list[float]:
    """The counts in equal bins: one that lies over several is split by how much of it lies in each."""
    low = edges[0]
    width = (edges[-1] - low) / bins
    found = [0.0] * bins
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        first = min(int((left - low) / width), bins - 1)
        last = min(int((right - low) / width), bins - 1)
        for place in range(first, last + 1):
            start, end = max(left, low + place * width), min(right, low + (place + 1) * width)
            share = max(end - start, 0.0) / (right - left) if right > left else 1.0 if place == first else 0.0
            found[place] += count * share
    return found


def _numbers(values: Any) -> list[float]:
    found = [number(value) for value in values] if isinstance(values, list) else []
    if any(value is None for value in found):
        raise ValueError("not all of them are numbers")
    return [value for value in found if value is not None]
