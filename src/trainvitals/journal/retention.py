"""Giving disk space back: ended runs that are too old, or the oldest while there are too many bytes.

A run that lives is never touched, nor one whose state is unknown. One that a gateway does not have as a whole may grow
twice as old, or take twice as much room.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from trainvitals.errors import JournalError, TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import ENDED

GB = 1 << 30
PATIENCE = 2.0
"""How far beyond a limit a run is kept for a gateway, as a multiple of the limit."""


def clean(
    root: Path,
    *,
    max_age: float | None = None,
    max_size_gb: float | None = None,
    dry_run: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Remove ended runs older than `max_age` seconds, then the oldest until all runs fit in `max_size_gb`.

    Returns the folders removed (or that would be, with `dry_run`), oldest first. `warn` is told of those that are
    kept for a gateway, and of those that are not kept for it any longer.
    """
    doomed: list[Path] = []
    kept: list[tuple[float, Path, int]] = []
    total = 0
    for folder in run_folder.list_folders(root):
        if folder.is_symlink():
            continue  # what it leads to lies elsewhere and is not counted here
        changed, size = measure(folder)
        ended = is_ended(folder)
        age = time.time() - changed
        is_old = ended and max_age is not None and age > max_age
        if is_old and not _is_kept(folder, age > PATIENCE * (max_age or 0.0), "older", warn):
            doomed.append(folder)
            continue
        total += size
        if ended:
            kept.append((changed, folder, size))
    if max_size_gb is not None:
        for _, folder, size in sorted(kept):
            if total <= max_size_gb * GB:
                break
            if _is_kept(folder, total > PATIENCE * max_size_gb * GB, "larger, with the others,", warn):
                continue
            doomed.append(folder)
            total -= size
    if not dry_run:
        for folder in doomed:
            remove(folder)
    return doomed


def _is_kept(folder: Path, is_far_beyond: bool, what: str, warn: Callable[[str], None]) -> bool:
    """Whether a run that is beyond a limit waits for a gateway."""
    target = find_unshipped(folder)
    if target is None:
        return False
    if is_far_beyond:
        warn(
            f"run {folder.name} is {what} than {PATIENCE:g} times the limit and goes, though {target} lacks some of it"
        )
        return False
    warn(
        f"run {folder.name} is {what} than the limit, and kept because {target} lacks some of it; "
        f"at {PATIENCE:g} times the limit it goes"
    )
    return True


def find_unshipped(folder: Path) -> str | None:
    """The gateway to which the run is shipped and which does not have all of it; None if there is none."""
    shipments = (status.shipment for status in run_folder.read_statuses(folder))
    return next((shipment.target for shipment in shipments if shipment.is_due), None)


def remove(folder: Path) -> None:
    """Delete an ended run, all or nothing in the eyes of a reader: it is renamed out of sight first."""
    if not is_ended(folder):
        raise JournalError(
            f"run {folder.name} has not ended, not removing it",
            hint="stop it first, or wait for it to end",
        )
    if folder.is_symlink():
        raise JournalError(f"{folder} is a symbolic link, not removing it", hint="remove the link itself: rm")
    hidden = folder.with_name(f".removing-{folder.name}")
    folder.rename(hidden)
    shutil.rmtree(hidden)


def is_ended(folder: Path) -> bool:
    """Whether the run is over beyond doubt; a folder with a foreign run.json is not a run."""
    try:
        run = run_folder.read_run(folder)
        return run.format is not None and run_folder.read_state(folder, run)[0] in ENDED
    except TrainvitalsError:
        return False


def measure(folder: Path) -> tuple[float, int]:
    """(newest change in seconds since 1970, bytes) of everything in the folder."""
    newest, total = 0.0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = (Path(place) / name).lstat()
            except FileNotFoundError:
                continue
            newest = max(newest, status.st_mtime)
            total += status.st_size
    return newest, total
