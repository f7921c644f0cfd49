"""Small runs for machines that are asked by others."""

from __future__ import annotations

from pathlib import Path

from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time

START = 1_800_000_000.0


def make_run(root: Path, name: str, *, at: float = START, status: str = "running", **more: object) -> Path:
    """The folder of a run with three steps."""
    folder = root / "p" / name
    folder.mkdir(parents=True)
    file = RunFile.parse(
        {"id": name, "name": name, "project": "p", "status": status, "created": format_time(at)}
        | {"started": format_time(at), "attempt": 1, **more}
    )
    (folder / "run.json").write_bytes(encode_line(file.as_json()))
    log(folder, 0, 1, 2)
    return folder


def log(folder: Path, *steps: int) -> None:
    """A line for each of these steps."""
    with open(folder / "training_metrics_20260115_100000.rank0.jsonl", "ab") as file:
        for step in steps:
            file.write(encode_line({"timestamp": format_time(START + step), "step": step, "loss": 1 / (step + 3)}))
