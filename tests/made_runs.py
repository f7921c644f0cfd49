"""Run folders made line by line, for tests that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time

START = 1_800_000_000.0


def write(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    stem: str = "training_metrics_20260101_000000",
    at: float = START,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.jsonl"
    with open(path, "ab") as file:
        for number, row in enumerate(rows):
            file.write(encode_line({"timestamp": format_time(at + number), **row}))
    return path


def make_run(folder: Path, **more: Any) -> Path:
    run_folder.create(folder)
    run_folder.write_run(
        folder,
        RunFile.parse({"id": folder.name, "project": folder.parent.name, "name": folder.name, "status": "finished",
         "started": format_time(START), "attempt": 1, **more}),
    )  # fmt: skip
    return folder
