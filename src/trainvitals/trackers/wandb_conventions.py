"""What every way in from W&B shares: importer, server and drop-in.
Tested in tests/trackers/test_wandb_files.py and tests/trackers/intake/test_wandb.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import MediaKind
from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.redaction import redact, redact_text
from trainvitals.trackers.intake.uploads import make_place

FILES, ARTIFACTS = "files", "artifacts"
"""Folders of a run, beside that of media."""
SUMMARY = "wandb-summary.json"
SEVERITIES = {"INFO": "info", "WARN": "warning", "ERROR": "critical"}
"""Of an alert, by its level."""
FRAMEWORK_STEPS = ("trainer/global_step", "train/global_step")
"""What Lightning and Transformers count the steps of everything with that they log. They define it as the step metric,
but the client tells definitions 5 to 30 s after the first rows, and an offline run counts its rows."""
_FILE_KINDS: Mapping[str, MediaKind] = {"image-file": "image", "images/separated": "image", "table-file": "table"}


def write_summary(folder: Path, summary: Mapping[str, Any], redacted: Iterable[str]) -> None:
    """Replace the summary of a run. Raises OSError."""
    target = make_place(folder, FILES, SUMMARY)
    cleaned = spell_all(redact(summary, extra=redacted))
    runtime.write_atomically(target, dump_json(cleaned), run_folder.file_rights(folder))


def find_framework_step(values: Mapping[str, Any]) -> int | None:
    """The step of a row that a framework logged; None for any other row."""
    for name in FRAMEWORK_STEPS:
        step = values.get(name)
        if isinstance(step, (int, float)) and abs(step) < 2**53 and step == int(step):
            return int(step)
    return None


class NamedFile(NamedTuple):
    """A file of media that an object in the history names."""

    kind: MediaKind
    path: str
    facts: dict[str, str]
    """Its caption, if it has one."""


def list_files(value: Mapping[str, Any]) -> list[NamedFile]:
    """Empty if the object is neither an image nor a table."""
    kind = _FILE_KINDS.get(str(value.get("_type")))
    paths: Any = [value.get("path")]
    captions: Any = [value.get("caption")]
    if value.get("_type") == "images/separated":
        paths, captions = value.get("filenames"), value.get("captions")
    if kind is None or not isinstance(paths, list):
        return []
    captions = captions if isinstance(captions, list) else []
    return [
        NamedFile(kind, path, {"caption": redact_text(caption)} if caption and isinstance(caption, str) else {})
        for path, caption in itertools.zip_longest(paths, captions[: len(paths)])
        if isinstance(path, str)
    ]
