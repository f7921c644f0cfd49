"""The contents of run.json when a run begins. Tested in tests/trainer/test_facts.py."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals import settings
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.registration import RAY
from trainvitals.journal.documents.run import COMMAND, TRAINING, RunFile, new_run
from trainvitals.redaction import redact_text
from trainvitals.trainer import facts, join, ranks, ray_job


def describe(
    place: join.WritingPlace,
    effective: settings.Settings,
    name: str | None,
    config: Any,
    tags: tuple[str, ...] | list[str],
    notes: str,
    rank: ranks.Rank,
) -> RunFile:
    """run.json of a new run or attempt; what an earlier attempt or `trainvitals run` wrote about the run is kept."""
    before = run_folder.find_run(place.folder) or RunFile()
    known: dict[str, Any] = {"simulated": effective.simulate_gpus > 0}
    if rank.participant.is_trainer:
        known["world_size"] = rank.world_size
    known["notes"] = redact_text(str(notes)) if notes and "notes" not in before.edited else before.notes
    if name and "name" not in before.edited:
        known["name"] = name
    if before.kind == COMMAND:
        if effective.origin("project") == "argument":  # the script knows better than the command line did
            known["project"] = effective.project
            if before.project not in ("", effective.project):
                known["project_before"] = before.project
        known |= {"command": before.command, "started": before.started}
        if not rank.participant.is_trainer:  # one of several, and it may end first: the program as a whole is the run
            known |= {"process": before.process, "argv": before.argv}
    above = os.environ.get("TRAINVITALS_RUN_ID")
    if above and above != place.folder.name:  # another program of the same `trainvitals run` has that one
        known["below"] = above
    if place.identity is not None:
        known |= {"launch": place.identity, "restarts": join.restart_count(os.environ)}
    if config is None and before.config is not None:
        known["config"] = before.config
    run = new_run(
        place.folder.name,
        kind=TRAINING,
        project=effective.project,
        name=name or place.folder.name,
        facts=facts.capture(
            effective, config=config, argv=_command(rank), environ=os.environ, cwd=_cwd(), modules=sys.modules
        ),
        pid=os.getpid(),
        attempt=place.attempt,
        before=before,
        correlation_id=facts.correlation_id(os.environ),
        tags=[redact_text(str(tag)) for tag in tags],
    )
    if rank.launch:
        known["job"] = replace(run.job, ray=ray_job.job_id_of(rank.launch))
    return replace(run, **{key: value for key, value in known.items() if value is not None})


def _command(rank: ranks.Rank) -> list[str]:
    """As it was typed. That of a process of Ray has only addresses and ports in it."""
    return (ray_job.find_command() if rank.launcher == RAY else []) or sys.orig_argv


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder was removed during the training
        return Path("/")
