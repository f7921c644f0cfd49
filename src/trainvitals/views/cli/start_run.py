"""A run that a command starts: written down, and registered with the agent. Errors name the place and what changes it.
Tested in tests/views/cli/test_monitor.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.errors import AgentError, JournalError, no_such_gpu
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.documents.latest import read_agent, read_latest
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.identity import is_gpu_named
from trainvitals.settings import Settings

FLAG = "--dir or TRAINVITALS_DIR"
"""What names another place for all runs."""


def create_folder(folder: Path, settings: Settings, flag: str) -> None:
    """Make the run folder. `flag` is what names another place."""
    try:
        run_folder.create(folder, settings.shared)
    except JournalError as error:
        raise JournalError(error.message, hint=_another(flag)) from None


def check_place(folder: Path, settings: Settings, flag: str) -> None:
    """Make a folder for runs, unless it is there, and see that something can be written into it."""
    create_folder(folder, settings, flag)
    try:
        _write_probe(folder)
    except OSError as error:
        text = f"cannot write to {folder}: {error.strerror or error}"
        raise JournalError(text, hint=_another(flag)) from None


def _write_probe(folder: Path) -> None:
    probe = folder / f".probe.{os.getpid()}"
    runtime.write_atomically(probe, b"x")
    probe.unlink(missing_ok=True)


def write_run(folder: Path, run: RunFile, settings: Settings, flag: str, before: RunFile | None = None) -> None:
    """Write run.json, which was last known as `before`."""
    try:
        run_folder.replace_run(folder, run, before, settings.file_mode)
    except OSError as error:
        text = f"cannot write {folder / layout.RUN_FILE}: {error.strerror or error}"
        raise JournalError(text, hint=_another(flag)) from None


def _another(flag: str) -> str:
    return f"choose another folder: {flag}"


def register(registration: Registration) -> Path:
    """Tell the agent, now or later."""
    try:
        return registrations.register(registration)
    except OSError as error:
        raise _unwritable(error) from None


def check_runtime() -> None:
    """AgentError if nothing can be written where the agent is met."""
    try:
        _write_probe(runtime.runtime_dir())
    except OSError as error:
        raise _unwritable(error) from None


def _unwritable(error: OSError) -> AgentError:
    return AgentError(
        f"cannot write to the runtime folder {runtime.runtime_dir()}: {error.strerror or error}",
        hint="set TRAINVITALS_RUNTIME_DIR to another local folder",
    )


# -- the GPUs that were asked for


def explain_unknown_gpus(settings: Settings) -> str:
    """`no GPU 7; available: 0, 1`. Empty if none is missing, or if the agent has seen no GPU yet."""
    present = _read_gpus(settings) if settings.gpus else ()
    missing = [item for item in settings.gpus or () if not any(is_gpu_named(item, labels) for labels in present)]
    indices = {labels["gpu_index"] for labels in present if isinstance(labels.get("gpu_index"), int)}
    return no_such_gpu(missing, sorted(indices)) if missing and indices else ""


def _read_gpus(settings: Settings) -> Sequence[Mapping[str, Any]]:
    """The labels of every GPU that the living agent samples and that may be of this run."""
    agent = read_agent()
    latest = read_latest(agent) if agent is not None else None
    found = [sample.labels for sample in latest.of_table("gpu")] if latest is not None else []
    return [labels for labels in found if not labels.get("simulated") or labels["gpu_index"] < settings.simulate_gpus]
