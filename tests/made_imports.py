"""A source, imported into a root as `trainvitals import` does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainvitals import settings
from trainvitals.journal.reader import RunReader
from trainvitals.trackers.importing import Import, Imported
from trainvitals.trackers.registry import REGISTRY
from trainvitals.trackers.run_writing import TrackedRuns


def take(tool: str, target: str | Path, root: Path, **options: Any) -> list[Imported]:
    """Everything that is there, as a process of its own would take it."""
    source = REGISTRY[tool].open(str(target))
    found = Import(tool, source, TrackedRuns(root, settings.resolve(environ={}, search=False)), **options)
    done = list(found.take())
    found.settle()
    return done


def reader_of(imported: Imported) -> RunReader:
    return RunReader(imported.run.folder)


def points(reader: RunReader, name: str) -> list[tuple[int, float, float]]:
    """(step, seconds since 1970, value) of every point in the order of writing, NaN as the text of it, so that two of
    them are equal."""
    rows = [row for row in reader.rows() if name in row]
    return [(row.get("step"), row["timestamp"], row[name]) for row in rows]


def values(reader: RunReader, name: str) -> Sequence[object]:
    return [value for _, _, value in points(reader, name)]
