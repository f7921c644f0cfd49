"""The registrations of this machine: files in the runtime folder, one per process that wants to be watched."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from trainvitals.journal.documents.registration import PhaseNote, Registration
from trainvitals.runtime import runtime_dir, write_atomically


def register(registration: Registration) -> Path:
    """Leave the registration where the agent, now or later, will find it."""
    folder = runtime_dir() / "runs"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / registration.file_name
    _write(path, registration)
    return path


def note_end(path: Path, registration: Registration, status: str) -> Registration:
    """Write how the process ended into its registration, unless the agent has removed it already."""
    return _change(path, replace(registration, goodbye=status))


def note_cell(path: Path, registration: Registration, began: str) -> Registration:
    """Write which cell of a notebook is being run into the registration, unless it was removed."""
    return _change(path, replace(registration, cell=began))


def note_phase(path: Path, registration: Registration, phase: PhaseNote) -> Registration:
    """Write what the process is doing now into the registration, unless it was removed."""
    return _change(path, replace(registration, phase=phase))


def _change(path: Path, registration: Registration) -> Registration:
    if path.exists():
        _write(path, registration)
    return registration


def read_all(run_id: str = "") -> list[tuple[Path, Registration]]:
    """All registrations, or those of one run; files that are not ours are ignored."""
    paths = sorted((runtime_dir() / "runs").glob("[!.]*.json"))
    # An id may begin with another one, and a dot is part of neither.
    mine = (path for path in paths if not run_id or path.name.startswith((f"{run_id}.rank", f"{run_id}.role-")))
    return [(path, item) for path in mine if (item := Registration.read(path)) is not None]


def unregister(path: Path, registration: Registration) -> None:
    """Remove the registration unless another one has taken its place."""
    if not registration.is_same(Registration.read(path)):
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.over")
    try:
        path.rename(aside)
    except OSError:
        return  # removed by another process
    if registration.is_same(Registration.read(aside)) or path.exists():
        aside.unlink(missing_ok=True)
    else:  # it was replaced between the look and the renaming
        aside.rename(path)


def _write(path: Path, registration: Registration) -> None:
    write_atomically(path, json.dumps(registration.as_json()).encode())
