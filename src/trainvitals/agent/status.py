"""What the agent knows of a living run, in the run folder: status.json."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals.agent.run_context import RunContext
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.status import RowExport, Shipment, Status
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.sources import described_gpus

INTERVAL = 2.0
LARGE = 64 << 10
LARGE_INTERVAL = 10.0
"""Thousands of metrics make a large file; it is written less often."""

_changing = threading.Lock()
"""Of the runs that are no longer watched, several threads may have something to say."""


def read_own(folder: Path, host: str) -> Status:
    """What the agent of this host wrote last, an empty one if it never did."""
    return next((status for status in run_folder.read_statuses(folder) if status.host == host), Status())


def write_row_exports(folder: Path, host: str, exports: Mapping[str, RowExport], mode: int) -> None:
    """How far exporters are with a run that is no longer watched. Raises OSError when the folder cannot be
    written."""
    _change(folder, host, mode, lambda known: replace(known, row_exports={**known.row_exports, **exports}))


def write_shipment(folder: Path, host: str, shipment: Shipment, mode: int, *, first: bool = False) -> bool:
    """How far a gateway has a run that is no longer watched. Raises OSError when the folder cannot be written.
    With `first`, False and nothing is written if somebody else has shipped all of it there."""
    is_complete = False

    def change(known: Status) -> Status:
        nonlocal is_complete
        is_complete = first and known.shipment.complete and known.shipment.target == shipment.target
        return known if is_complete else replace(known, shipment=shipment)

    _change(folder, host, mode, change)
    return not is_complete


def _change(folder: Path, host: str, mode: int, change: Callable[[Status], Status]) -> None:
    with _changing:
        known = read_own(folder, host)
        changed = change(known)
        if known.host and changed != known:
            own = run_folder.own_token(folder, host)
            run_folder.write_status(folder, changed, host if own else None, mode)


class StatusFile:
    """Writes status.json, and only when something has changed."""

    def __init__(self, context: RunContext) -> None:
        self._folder = context.folder
        self._host = context.host if context.has_many_hosts else None
        self._mode = context.settings.file_mode
        self._before = b""
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def write(self, status: Status, now: float) -> None:
        """Replace the file unless it already has this. Raises OSError when the folder cannot be written."""
        values = status.as_json()
        line = encode_line(values)
        self._next = now + (LARGE_INTERVAL if len(line) > LARGE else INTERVAL)
        if line != self._before:
            stamped = {"updated": format_time(), **{name: value for name, value in values.items() if name != "updated"}}
            run_folder.write_status_values(self._folder, stamped, self._host, self._mode)
            self._before = line


def visible_gpus(hardware: Mapping[str, Any], registrations: Sequence[Registration]) -> tuple[str, ...] | None:
    """Ids of the GPUs that the ranks may use; None if that is not known. The GPU of a driver that names no processes
    counts only where it was given to a rank: it may be there for the screen alone."""
    found: list[list[str]] = [
        row.visible_devices(registration.visible_devices, gpus)
        for row, gpus in described_gpus(hardware)
        for registration in registrations
        if row.names_processes or row.hides_gpus(registration.visible_devices)
    ]
    return tuple(dict.fromkeys(uuid for uuids in found for uuid in uuids)) if found else None
