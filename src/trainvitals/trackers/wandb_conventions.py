"""What every way in from W&B shares: importer, server and drop-in.
Tested in tests/trackers/test_wandb_files.py and tests/trackers/intake/test_wandb.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import MediaKind
from trainvitals.journal.encoding import dump_json, number, spell, spell_all
from trainvitals.redaction import redact, redact_text
from trainvitals.trackers.intake.uploads import make_place

FILES, ARTIFACTS = "files", "artifacts"
"""Folders of a run, beside that of media."""
SUMMARY = "wandb-summary.json"
SEVERITIES = {"INFO": "info", "WARN": "warning", "ERROR": "critical"}
"""Of an alert, by its level."""
SUMMARY_EVENT = "summary"
"""With what a program has put into the summary itself."""
MOST_OWN_VALUES, MOST_SHOWN, LONGEST_TEXT, MOST_DEPTH = 1000, 8, 200, 8
FRAMEWORK_STEPS = ("trainer/global_step", "train/global_step")
"""What Lightning and Transformers count the steps of everything with that they log. They define it as the step metric,
but the client tells definitions 5 to 30 s after the first rows, and an offline run counts its rows."""
_FILE_KINDS: Mapping[str, MediaKind] = {"image-file": "image", "images/separated": "image", "table-file": "table"}


def write_summary(folder: Path, summary: Mapping[str, Any], redacted: Iterable[str]) -> None:
    """Replace the summary of a run. Raises OSError."""
    target = make_place(folder, FILES, SUMMARY)
    cleaned = spell_all(redact(summary, extra=redacted))
    runtime.write_atomically(target, dump_json(cleaned), run_folder.file_rights(folder))


def find_own_values(summary: Mapping[str, Any], last: Mapping[str, object]) -> dict[str, Any]:
    """What a program has put into its summary: numbers and texts that are not the `last` value of a metric."""
    own = ((name, value) for name, value in _flatten(summary) if not _is_same(value, last.get(name)))
    found: dict[str, Any] = redact(dict(sorted(itertools.islice(own, MOST_OWN_VALUES))))
    return found


def describe_own_values(found: Mapping[str, Any]) -> str:
    """As the message of an event; texts only by name, for they may be long or secret."""
    shown = [name if isinstance(value, str) else f"{name} = {value}" for name, value in found.items()]
    more = [f"{len(shown) - MOST_SHOWN} more"] if len(shown) > MOST_SHOWN else []
    return f"W&B summary: {', '.join(shown[:MOST_SHOWN] + more)}"


def _flatten(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """With dots between the keys, without media and without what W&B adds."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name.startswith("_"):
            continue
        if isinstance(value, Mapping):
            if "_type" not in value and depth < MOST_DEPTH:
                yield from _flatten(value, f"{name}.", depth + 1)
        elif isinstance(value, (int, float)):
            yield name, value
        elif isinstance(value, str):
            yield name, value[:LONGEST_TEXT]


def _is_same(value: object, last: object) -> bool:
    first, second = number(value), number(last)
    return first is not None and second is not None and spell(first) == spell(second)


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
