"""runs/*.json of the runtime folder: "watch this process, write into that folder"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from trainvitals import runtime
from trainvitals.journal.documents.fields import (
    Document,
    document,
    entry,
    finite,
    list_of,
    mapping,
    mapping_of,
    text,
    whole,
)
from trainvitals.journal.documents.run import TRAINING
from trainvitals.journal.identity import TRAINER, Participant

RAY = "ray"
"""The launcher that ends its processes with exit code 1, whatever they have done."""
ESSENTIAL = frozenset({"run_id", "folder", "role", "rank", "pid", "host", "attempt", "kind", "settings"})
"""Without these it is not known which process of which run is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseNote(Document):
    """What a process says it is doing within a step, in frameworks whose steps take minutes: a sign of life."""

    name: str = entry(text, "")
    """Such as `gen`; empty between phases."""
    since: float = entry(finite, 0.0)
    """By CLOCK_MONOTONIC of the machine."""
    longest: float | None = entry(finite, None)
    """The longest that it has taken before, in seconds; None the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleFile(Document):
    """A file that a process prints to."""

    path: str = entry(text, "")
    device: int | None = entry(whole, None)
    inode: int | None = entry(whole, None)
    offset: int | None = entry(whole, None)
    """Where its output began."""
    stream: str = entry(text, "")
    """The suffix of our copy: empty, or `stderr` where that has a file of its own."""
    fds: tuple[int, ...] = entry(list_of(whole), ())
    """The descriptors that lead there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration(Document):
    """One process of a run that wants to be watched."""

    run_id: str = entry(text, "")
    folder: str = entry(text, "")
    role: str = entry(text, TRAINER, implied=True)
    rank: int = entry(whole, 0)
    pid: int = entry(whole, 0)
    pid_start: float | None = entry(finite, None)
    host: str = entry(text, "")
    attempt: int = entry(whole, 1)
    local_rank: int = entry(whole, 0)
    world_size: int = entry(whole, 1)
    local_world_size: int = entry(whole, 1)
    launcher: str = entry(text, "")
    """What started it, where that also ends it in a way to know about: RAY."""
    ray_job: str = entry(text, "")
    """Ray's id of the job that it is part of: other workers of it that hold a GPU are the run's, too."""
    raylet: int | None = entry(whole, None)
    """The parent of those workers, where it is not the parent of this process."""
    kind: str = entry(text, TRAINING)
    correlation_id: str = entry(text, "")
    stack_signal: int | None = entry(whole, None)
    stack_file: str | None = entry(text, None)
    visible_devices: Mapping[str, str] = entry(mapping_of(text), {})
    """The variables that hide GPUs from its program, such as CUDA_VISIBLE_DEVICES, with their values."""
    goodbye: str = entry(text, "")
    """The status that the process reported at its end; its exit code is not visible on every kernel."""
    cell: str | None = entry(text, None)
    """In a notebook: when the cell that is being run began, empty while none is; None anywhere else."""
    phase: PhaseNote | None = entry(document(PhaseNote), None)
    """Where the framework reports its phases."""
    console: tuple[ConsoleFile, ...] = entry(list_of(document(ConsoleFile)), ())
    """The files to which its output goes (`trainer/console.py`)."""
    settings: Mapping[str, Any] = entry(mapping, {})

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The registration in the file; None if it is gone, does not name the process and run, or may be somebody
        else's: its settings name programs to start and files to read."""
        found = cls.parse(runtime.read_json(path, own=True))
        earlier = text(found.rest.get("cuda_visible_devices"))  # the only variable that was kept by the version before
        if earlier is not None and not found.visible_devices:
            found = replace(found, visible_devices={"CUDA_VISIBLE_DEVICES": earlier})
        sound = found.run_id and found.folder and found.pid > 0 and found.damaged.isdisjoint(ESSENTIAL)
        return found if sound else None

    @property
    def participant(self) -> Participant:
        return Participant(self.role, self.rank)

    @property
    def file_name(self) -> str:
        suffix = "" if self.kind == TRAINING else f".{self.kind}"
        return f"{self.run_id}.{self.participant.file_part}{suffix}.json"

    def is_same(self, other: Registration | None) -> bool:
        """Whether both are about the same process and attempt."""
        return other is not None and (other.pid, other.attempt) == (self.pid, self.attempt)


def new_registration(folder: Path, pid: int, *, environ: Mapping[str, str] = os.environ, **more: Any) -> Registration:
    """A process of this machine, of the run in `folder`; `more` are other fields."""
    return Registration(
        **{
            "run_id": folder.name,
            "folder": str(folder),
            "pid": pid,
            "pid_start": runtime.process_start(pid),
            "host": runtime.host_name(),
            "visible_devices": runtime.visible_devices(environ),
            **more,
        }
    )
