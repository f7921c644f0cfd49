"""What our own events say besides their message: the `data` of an `EventRow`, a type for each kind of event.

What the user's program, a source or another version writes there is kept as it is, under whatever name.
Tested in tests/journal/test_documents_events.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.fields import Document, entry, list_of, mapping, mapping_of, real, text, texts, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvent(Document):
    """Of one process: `rank_started`, `rank_replaced`, `agent_attached`, `agent_detached`."""

    pid: int | None = entry(whole, None)
    kind: str | None = entry(text, None)
    """How it was registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd(ProcessEvent):
    """`rank_ended`, `rank_lost`, `run_ended`"""

    status: str | None = entry(text, None)
    exit_code: int | None = entry(whole, None)
    signal: str | None = entry(text, None)
    reason: Cause | None = entry(Cause.read, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFailure(ProcessEvent):
    """`failed`: what a process writes when an exception ends it, or when it exits with a code of its own."""

    reason: Cause | None = entry(Cause.read, None)
    traceback: str | None = entry(text, None)
    """Of the exception; empty for an exit, None in an event of the same name that the program wrote itself."""
    began: float | None = entry(real, None)
    """When the process started, seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Document):
    """`stalled` and `hung`: a participant that logs no more, and where it is."""

    silent_seconds: float | None = entry(real, None)
    process_state: str | None = entry(text, None)
    phase: str | None = entry(text, None)
    phase_seconds: float | None = entry(real, None)
    phase_longest: float | None = entry(real, None)
    """It took before."""
    dead_children: tuple[str, ...] | None = entry(texts, None)
    step: int | None = entry(whole, None)
    step_seconds: float | None = entry(real, None)
    process: Mapping[str, Any] | None = entry(mapping, None)
    """The newest sample of its processes, and ..."""
    gpus: tuple[Mapping[str, Any], ...] | None = entry(list_of(mapping), None)
    """... of the GPUs."""
    reason: Cause | None = entry(Cause.read, None)
    stacks: str | None = entry(text, None)
    """The file that has the stacks of all threads."""
    main_thread: tuple[str, ...] | None = entry(texts, None)
    main_threads: Mapping[str, tuple[str, ...]] | None = entry(mapping_of(texts), None)
    """Of every participant of the machine: frames, innermost first."""
    workers: Mapping[str, tuple[str, ...]] | None = entry(mapping_of(texts), None)
    note: str | None = entry(text, None)
    """Why there are no stacks."""
    flight_records: tuple[str, ...] | None = entry(texts, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery(Document):
    """`recovered`"""

    was: str | None = entry(text, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesLost(Document):
    """`damage`: lines that could not be read, so far. `lines_dropped`: those of the agent that could not be written."""

    torn: int | None = entry(whole, None)
    foreign: int | None = entry(whole, None)
    lines: int | None = entry(whole, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerBehind(Document):
    """`listener_behind`: a file was sealed before all who read it had."""

    file: str | None = entry(text, None)
    listeners: str | None = entry(text, None)
    files: int | None = entry(whole, None)
    """How often that happened."""
