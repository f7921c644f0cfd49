"""What a scheduler did to a job, written into its runs: they only saw a signal, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.cause import EXIT_CODE, GONE, SHELL_SIGNAL, SIGNAL, UNKNOWN, UNWATCHED, Cause
from trainvitals.journal.documents.rows import new_event
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, parse_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

JOB_ENDED = "job_ended"
_SENT = ("SIGTERM", "SIGKILL", "SIGINT", "SIGCONT", "SIGXCPU")
"""Signals with which a scheduler ends a job."""


def find_runs_of(job: str, folders: Iterable[Path]) -> list[Path]:
    """Those of a Slurm job, each once."""
    found = {}
    for folder in folders:
        run = run_folder.find_run(folder)
        if run is not None and run.placed.slurm == job:
            found[folder.resolve()] = folder
    return list(found.values())


def note_job_end(folder: Path, cause: Cause, ended: float | None = None) -> bool:
    """Write why its job ended into the run; whether it was. A run that ended by itself keeps its end, as does
    an attempt that began after the job `ended` (seconds since 1970): it is that of the requeued job. Raises OSError."""
    is_noted = False

    def end(run: RunFile) -> RunFile | None:
        nonlocal is_noted
        is_noted = (ended is None or (parse_time(run.started) or 0.0) <= ended) and _is_open(run)
        if not is_noted:
            return None
        if run.is_over and not run.tentative:
            return run.correct("killed", cause)
        return run.end("killed", cause)

    mode = (folder / layout.RUN_FILE).stat().st_mode & 0o777
    run_folder.change_run(folder, end, mode)
    if is_noted:
        (folder / layout.FINDINGS_FILE).unlink(missing_ok=True)  # made of the end that it had
        event = new_event(JOB_ENDED, str(cause), severity="critical", host=runtime.host_name())
        writer = LineWriter(folder, FileName("events", 1, "", pid=os.getpid()), mode=mode)
        writer.append(encode_line(event.as_json()))
        writer.close()
    return is_noted


def _is_open(run: RunFile) -> bool:
    """Whether it has no end, or one of which no more is known than that somebody else ended it."""
    if not run.is_over or run.tentative:
        return True
    cause = run.cause
    if cause is None:
        return False
    if cause.kind == SIGNAL:
        return cause.signal in _SENT
    if cause.kind == EXIT_CODE:  # of a shell or a launcher, whose program died of a signal
        return (cause.exit_code or 0) > SHELL_SIGNAL
    return cause.kind in (UNKNOWN, UNWATCHED, GONE)
