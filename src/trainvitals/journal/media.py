"""Pictures, histograms, tables and texts of a run: `media/<kind>/<name>/<step>.<suffix>`, and a line for each in
`media/index.jsonl`.

    {"timestamp": ..., "kind": "image", "name": "val/mask", "step": 20, "file": "image/val_mask-1f0c2d3e/20.png", ...}

The index has the name as it was logged; that of the folder is made of it so that it is one on every file system and
leads nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import encode_line, format_time

Kind = Literal["image", "histogram", "table", "text"]
INDEX = "index.jsonl"
MOST_FILES = 10_000
"""Of one run: more would make a folder that nobody can list."""
_LONGEST_NAME = 80


class Media:
    """The media of one run folder, written by one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = {_key(row): str(row.get("file")) for row in list_media(folder)}

    def write(
        self,
        kind: Kind,
        name: str,
        data: bytes,
        suffix: str,
        *,
        step: int | None = None,
        time: float | None = None,
        **more: Any,
    ) -> bool:
        """Keep one; `more` goes into its line of the index. False if the run has too many already. The same data again
        under the same name and step is kept once. Raises OSError."""
        digest = hashlib.sha256(data).hexdigest()[:16]
        key = (kind, name, step, digest)
        if key in self._written:
            return True
        if len(self._written) >= MOST_FILES:
            return False
        place = self._folder
        for part in (layout.MEDIA, kind, safe_name(name)):
            place = run_folder.make_within(place, part)
        stem = "all" if step is None else str(step)
        path = place / f"{stem}.{suffix}"
        for number in range(2, MOST_FILES + 2):  # several of one step
            if not path.exists():
                break
            path = place / f"{stem}.{number}.{suffix}"
        runtime.write_atomically(path, data, run_folder.file_rights(self._folder))
        media = self._folder / layout.MEDIA
        file = path.relative_to(media).as_posix()
        row = {
            "timestamp": format_time(time),
            "kind": kind,
            "name": name,
            **({} if step is None else {"step": step}),
            "file": file,
            "digest": digest,
            **more,
        }
        descriptor = run_folder.open_within(media, INDEX)
        try:
            os.write(descriptor, encode_line(row))
        finally:
            os.close(descriptor)
        self._written[key] = file
        return True


def list_media(folder: Path) -> list[dict[str, Any]]:
    """The lines of the index, in the order of writing."""
    return Cursor(folder / layout.MEDIA / INDEX).read()


def safe_name(name: str) -> str:
    """A name as that of one folder; two names never share one."""
    clean = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:_LONGEST_NAME]
    if clean == name and clean:
        return clean
    return f"{clean}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row.get("kind"), row.get("name"), row.get("step"), row.get("digest")
