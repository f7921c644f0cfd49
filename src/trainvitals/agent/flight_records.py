"""What PyTorch's flight recorder dumped of the last collectives of a rank, where the user has switched it on.

Most dumps are pickles, which run code when they are read: of these only the place is reported. JSON is read.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals import runtime

PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the beginning of the files' names; the rank follows."""
LARGEST = 2 << 20
"""Parsed, a dump takes several times its size of the agent's memory."""


def find_record(environment: Mapping[str, str], rank: int, since: float) -> str | None:
    """One line about the dump of this rank; None if there is none that was written after `since` (seconds since
    1970)."""
    for name in PREFIXES:
        prefix = environment.get(name)
        path = Path(f"{prefix}{rank}") if prefix else None
        try:
            if path is None or path.stat().st_mtime < since:
                continue
            last = _find_last_collective(path)
        except OSError:
            continue
        return f"rank {rank}: {last} ({path})" if last else f"rank {rank}: {path}"
    return None


def _find_last_collective(path: Path) -> str | None:
    """The last collective that was begun, if the dump is JSON."""
    try:
        raw = runtime.read_regular(path, LARGEST, own=True)  # often in /tmp, where others can put a pipe in its place
    except OSError as error:
        if error.errno == errno.EFBIG:
            return None
        raise
    if not raw.lstrip().startswith(b"{"):
        return None
    try:
        entries = json.loads(raw).get("entries")
    except (ValueError, AttributeError, RecursionError):
        return None
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    last = max(known, key=_sequence, default=None)
    if last is None:
        return None
    done = last.get("retired") is True or last.get("state") == "completed"
    return (
        f"last collective {last.get('profiling_name', '?')} number {_sequence(last)}, {'done' if done else 'not done'}"
    )


def _sequence(entry: Mapping[str, Any]) -> int:
    number = entry.get("collective_seq_id")
    return number if type(number) is int else -1
