"""What run.json says when a run begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from trainvitals import runtime, settings
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.encoding import format_time
from trainvitals.redaction import redact_text
from trainvitals.trainer import facts, launch, ranks


def describe(
    place: launch.Place,
    effective: settings.Settings,
    name: str | None,
    config: Any,
    tags: tuple[str, ...] | list[str],
    notes: str,
    rank: ranks.Rank,
) -> dict[str, Any]:
    """run.json of a new run or attempt; what an earlier attempt or `trainvitals run` said of the run is kept."""
    before = runtime.read_json(place.folder / layout.RUN_FILE) or {}
    captured = facts.capture(effective, config=config, argv=sys.orig_argv, environ=os.environ, cwd=_cwd())
    started = format_time()
    attempt = {
        "number": place.attempt,
        "started": started,
        "host": runtime.host_name(),
        "status": run_folder.RUNNING,
    }
    earlier = [item for item in before.get("attempts", []) if item.get("number") != place.attempt]
    lasting = ("id", "name", "project", "created", "correlation_id")
    kept: dict[str, Any] = {key: before[key] for key in lasting if key in before}
    details: dict[str, Any] = {
        "format": 1,
        "id": place.folder.name,
        "project": effective.project,
        "name": name or place.folder.name,
        "created": started,
        **kept,
        "kind": "training",
        "status": run_folder.RUNNING,
        "attempt": place.attempt,
        "started": started,
        "world_size": rank.world_size,
        "process": {
            "pid": os.getpid(),
            "start": runtime.process_start(os.getpid()),
            "host": runtime.host_name(),
        },
        "tags": sorted({*before.get("tags", []), *(redact_text(str(tag)) for tag in tags)}),
        "notes": redact_text(str(notes)) if notes else before.get("notes", ""),
        **captured,
        "attempts": [*earlier, attempt],
    }
    if name:
        details["name"] = name
    if before.get("kind") == "command":
        if effective.origin("project") == "argument":  # the script knows better than the command line did
            details["project"] = effective.project
        details["command"] = before.get("command", details.get("command"))
        details["started"] = before.get("started", started)
    if not details.get("correlation_id"):
        details["correlation_id"] = facts.correlation_id(os.environ)
    above = os.environ.get("TRAINVITALS_RUN_ID")
    if above and above != place.folder.name:  # another program of the same `trainvitals run` has that one
        details["below"] = above
    if place.identity is not None:
        details["launch"] = place.identity
        details["restarts"] = launch.restart_count(os.environ)
    if config is None and "config" in before:
        details["config"] = before["config"]
    if effective.simulate_gpus:
        details["simulated"] = True
    return details


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder was removed under the training
        return Path("/")
