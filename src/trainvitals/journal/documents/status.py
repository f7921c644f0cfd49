"""status[.host-H].json: what the agent of a host knows about a run, and what the next agent needs to continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from trainvitals.journal.documents.cause import Caused
from trainvitals.journal.documents.fields import (
    Document,
    document,
    entry,
    finite,
    flag,
    list_of,
    mapping,
    mapping_of,
    text,
    texts,
    whole,
)
from trainvitals.journal.documents.run import ENDED, TRAINING
from trainvitals.journal.identity import Participant
from trainvitals.journal.summaries import MetricSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus(Caused):
    """One process of the run on this host."""

    pid: int | None = entry(whole, None)
    kind: str = entry(text, TRAINING)
    alive: bool | None = entry(flag, None)
    state: str | None = entry(text, None)
    """running, stalled, hung while it lives; how it ended afterwards"""
    lines: int | None = entry(whole, None)
    step: int | None = entry(whole, None)
    last_log: str | None = entry(text, None)
    phase: str | None = entry(text, None)
    """What it is doing within its step, where the framework reports that; of one that is dead, what it was doing."""
    phase_since: str | None = entry(text, None)
    step_seconds: float | None = entry(finite, None)
    longest_pause: float | None = entry(finite, None)
    gpus: tuple[str, ...] = entry(texts, ())
    """Those that it computed on when that was last known, as `gpu_key` names them."""
    exit_code: int | None = entry(whole, None)
    signal: str | None = entry(text, None)
    oom_kills: Mapping[str, Any] | None = entry(mapping, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDamage(Document):
    """Lines that could not be understood."""

    torn: int = entry(whole, 0)
    foreign: int = entry(whole, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertStatus(Document):
    """The alerts of one rule that fire."""

    rule: str = entry(text, "")
    severity: str = entry(text, "warning")
    count: int = entry(whole, 1)
    since: str | None = entry(text, None)
    message: str = entry(text, "")
    acknowledged: bool = entry(flag, False)
    silenced: bool = entry(flag, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExport(Document):
    """What became of the rows of the run that one exporter was given, and how far it is."""

    target: str = entry(text, "")
    """Where they go, without secrets."""
    link: str | None = entry(text, None)
    """Where a person can look at them there."""
    written: int = entry(whole, 0)
    refused: int = entry(whole, 0)
    waiting: int = entry(whole, 0)
    """Read and not accepted yet; while there are many, more wait in the files."""
    failures: int = entry(whole, 0)
    """Calls that raised."""
    trouble: str | None = entry(text, None)
    """What went wrong last, until it goes well again."""
    complete: bool = entry(flag, False)
    """It has every row of the run, and its end."""
    positions: Mapping[str, Any] = entry(mapping, {})
    """Up to where each file needs not be given to it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedConsole(Document):
    """How far a file that the run prints to is copied."""

    source: tuple[int, ...] = entry(list_of(whole), ())
    """Device and inode of the file ..."""
    offset: int | None = entry(whole, None)
    """... and how many bytes of it were taken."""
    inode: int | None = entry(whole, None)
    size: int | None = entry(whole, None)
    """Of the newest file of the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment(Document):
    """How far a gateway has the run, or what this host ships of it."""

    target: str = entry(text, "")
    """The gateway, without secrets; empty where there is none."""
    sent: int = entry(whole, 0)
    """Bytes of files that it has taken."""
    waiting: int = entry(whole, 0)
    """Bytes that it has not taken yet."""
    behind_since: str | None = entry(text, None)
    """When it had everything last, if it does not now."""
    left_out: int = entry(whole, 0)
    """Files that it will not get; `trouble` has the reason."""
    trouble: str | None = entry(text, None)
    """What went wrong last, until it goes well again."""
    complete: bool = entry(flag, False)
    """It has all of the run, which has ended."""
    removed: bool = entry(flag, False)
    """The run was removed there: nothing more is sent."""

    @property
    def is_due(self) -> bool:
        """Whether there is a gateway that does not have all of it."""
        return bool(self.target) and not self.complete and not self.removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Caused):
    """What one agent wrote last."""

    updated: str | None = entry(text, None)
    host: str = entry(text, "")
    rack: str = entry(text, "")
    """Where the host stands, if somebody said so."""
    agent_pid: int | None = entry(whole, None)
    attempt: int | None = entry(whole, None)
    state: str | None = entry(text, None)
    ranks: Mapping[str, RankStatus] = entry(mapping_of(document(RankStatus)), {})
    """By participant, with the kind before it where it is not a training: `0`, `rollout.0`, `command0`."""
    summary: Mapping[str, MetricSummary] = entry(mapping_of(MetricSummary.read), {})
    summary_left_out: int = entry(whole, 0)
    """Values of metrics beyond the most that are summed up."""
    positions: Mapping[str, Any] = entry(mapping, {})
    """How far each training file has been read, in bytes."""
    hardware: Mapping[str, Any] | None = entry(mapping, None)
    visible_gpus: tuple[str, ...] | None = entry(texts, None)
    held_gpus: tuple[str, ...] | None = entry(texts, None)
    gpu_summary: Mapping[str, Mapping[str, Any]] = entry(mapping_of(mapping), {})
    """What each GPU did, by UUID (`analysis.gpu_use`)."""
    alerts: tuple[AlertStatus, ...] = entry(list_of(document(AlertStatus)), ())
    row_exports: Mapping[str, RowExport] = entry(mapping_of(document(RowExport)), {})
    """By the name of the exporter."""
    shipment: Shipment = entry(document(Shipment), Shipment())
    consoles: Mapping[str, CopiedConsole] = entry(mapping_of(document(CopiedConsole)), {})
    """By the name of the copy."""
    damage: LineDamage = entry(document(LineDamage), LineDamage(), always=True)
    dropped_lines: int = entry(whole, 0)

    @property
    def own_gpus(self) -> tuple[str, ...] | None:
        """The GPUs of the run on this host: those that it holds, else all that it can use; None if neither is known."""
        return self.held_gpus if self.held_gpus is not None else self.visible_gpus

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    def participants(self) -> dict[Participant, RankStatus]:
        """Those of the training on this host."""
        found = ((Participant.parse(key), rank) for key, rank in self.ranks.items() if rank.kind == TRAINING)
        return {participant: rank for participant, rank in found if participant is not None}

    @classmethod
    def of_lowest(cls, statuses: Iterable[Self]) -> Self:
        """Of several hosts the one that follows the lowest participant; an empty one if there are none."""

        def order(status: Self) -> tuple[bool, Participant]:
            found = status.participants()
            return not found, min(found, default=Participant())

        return min(statuses, key=order, default=cls())
