"""Runs at a glance, for every list of them: run.json and what the agents reported. Imports nothing heavy.
Tested in tests/journal/test_reader.py."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.run import ENDED, UNREADABLE, RunFile


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run at a glance, from run.json and what the agents reported."""

    place: str
    """Where it is kept, for people: its folder, or its address."""
    folder: Path | None
    """None if it is not a folder of this machine."""
    id: str
    project: str
    name: str
    status: str
    cause: Cause | None
    started: str | None
    ended: str | None
    attempt: int
    simulated: bool
    file: RunFile = field(repr=False)

    @property
    def cause_text(self) -> str:
        """Why it ended or stalls, in one sentence; empty if there is no reason."""
        return str(self.cause) if self.cause is not None else ""

    @property
    def is_live(self) -> bool:
        return self.status not in (*ENDED, UNREADABLE)


def default_root() -> Path:
    """Where runs are looked for: TRAINVITALS_DIR, the configuration file, or ./trainvitals_runs."""
    from trainvitals.settings import resolve

    return Path(resolve().dir)


def shorten_path(path: Path) -> str:
    """The path as somebody here would type it."""
    try:
        return f"./{path.absolute().relative_to(Path.cwd())}"
    except (ValueError, OSError):
        return str(path)


def list_runs(root: str | Path | None = None) -> list[RunInfo]:
    """All runs below `root`, oldest first. One that cannot be read is `unreadable`, with the reason as its cause."""
    found = []
    for folder in run_folder.list_folders(Path(root) if root is not None else default_root()):
        try:
            found.append(find_info(folder))
        except RunNotFound:
            continue  # removed between listing and reading
    return found


def find_info(folder: Path) -> RunInfo:
    """The run at a glance; if its run.json cannot be read it is `unreadable`, with the reason as its cause."""
    try:
        return read_info(folder)
    except RunNotFound as error:
        if not (folder / layout.RUN_FILE).exists():
            raise
        why = Cause(detail=error.message.removeprefix(f"{folder}{os.sep}"))
        return _of_folder(folder, RunFile(), UNREADABLE, why)


def read_info(folder: Path) -> RunInfo:
    """The run at a glance."""
    run = run_folder.read_run(folder)
    status, cause = run_folder.read_state(folder, run)
    return _of_folder(folder, run, status, cause)


def _of_folder(folder: Path, run: RunFile, status: str, cause: Cause | None) -> RunInfo:
    return make_info(str(folder), folder, folder.name, folder.parent.name, run, status, cause)


def make_info(
    place: str, folder: Path | None, key: str, project: str, run: RunFile, status: str, cause: Cause | None
) -> RunInfo:
    """A run that is kept at `place`; `key` and `project` are what it is called there, if run.json does not say."""
    return RunInfo(
        place=place,
        folder=folder,
        id=run.id or key,
        project=run.project or project,
        name=run.name or run.id or key,
        status=status,
        cause=cause,
        started=run.started,
        ended=run.ended,
        attempt=run.attempt,
        simulated=run.simulated,
        file=run,
    )
