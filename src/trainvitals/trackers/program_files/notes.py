"""Which files a program writes its numbers to: a line in the run folder for each. Imports nothing heavy: programs below
`trainvitals run` use it.
Tested in tests/trackers/program_files/test_following.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trainvitals import runtime
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.documents.fields import Document, entry, finite, text, whole
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder import open_within

NOTES = ".program_files.jsonl"
EVENTS, EVENT_FOLDER, TABLE = "events", "event_folder", "table"
WANDB, MLFLOW, SENT = "wandb", "mlflow", "sent"
"""What is noted: an event file; the folder in which a process makes one; a table with a row per step; a run in W&B's
file; a run in MLflow's folder or database; what a client has sent to a server (`sent.py`)."""
MOST_FILES = 1000
"""Of one run: a search over many settings may open a writer for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNote(Document):
    """A file that the program opened."""

    timestamp: str = entry(text, "")
    kind: str = entry(text, "")
    path: str = entry(text, "")
    rank: int = entry(whole, 0)
    pid: int = entry(whole, 0)
    host: str = entry(text, "")
    opened: float = entry(finite, 0.0)
    """Seconds since 1970."""
    offset: int = entry(whole, 0)
    """Where its own lines begin in a file that was there before."""
    run: str = entry(text, "")
    """Which one it is, of a store with many."""


def write_note(run: Path, kind: str, path: str, *, rank: int, opened: float, offset: int = 0, of: str = "") -> None:
    """Note a file of this process. Raises OSError."""
    note = FileNote(
        timestamp=format_time(opened),
        kind=kind,
        path=os.path.abspath(path),  # noqa: PTH100 - a link stays the name that the program uses
        rank=rank,
        pid=os.getpid(),
        host=runtime.host_name(),
        opened=opened,
        offset=offset,
        run=of,
    )
    descriptor = open_within(run, NOTES)
    try:
        os.write(descriptor, encode_line(note.as_json()))
    finally:
        os.close(descriptor)


def read_notes(run: Path) -> list[FileNote]:
    """Those of this host, in the order in which the files were opened: the folder may be shared with others."""
    found = [FileNote.parse(row) for row in Cursor(run / NOTES).read()[:MOST_FILES]]
    return [note for note in found if note.path and note.host == runtime.host_name()]
