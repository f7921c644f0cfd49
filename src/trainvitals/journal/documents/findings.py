"""findings.json: what was wrong with a run, as it was diagnosed after its end, for whoever lists or shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainvitals.journal.documents.fields import (
    Document,
    document,
    entry,
    finite,
    list_of,
    mapping,
    mapping_of,
    real,
    text,
    texts,
    whole,
)
from trainvitals.journal.documents.rows import SEVERITIES


class Counts(NamedTuple):
    """How many there are of each severity."""

    critical: int = 0
    warning: int = 0
    info: int = 0

    @property
    def total(self) -> int:
        return sum(self)


def _severity(value: object) -> str | None:
    return value if isinstance(value, str) and value in SEVERITIES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFinding(Document):
    """A finding (`analysis.findings.Finding`)."""

    rule: str = entry(text, "")
    severity: str = entry(_severity, "info", always=True)
    title: str = entry(text, "")
    evidence: tuple[str, ...] = entry(texts, ())
    advice: str = entry(text, "")
    subject: str = entry(text, "")
    step: int | None = entry(whole, None)
    time: float | None = entry(finite, None)
    named_at: int | None = entry(whole, None)
    until: int | None = entry(whole, None)
    cause: str | None = entry(text, None)
    values: Mapping[str, float] = entry(mapping_of(real), {})
    about: tuple[str, ...] = entry(texts, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGap(Document):
    """A check that was skipped."""

    rule: str = entry(text, "")
    title: str = entry(text, "")
    needs: str = entry(text, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsFile(Document):
    """The diagnosis of an ended run."""

    attempt: int = entry(whole, 0)
    """The last one that was diagnosed: after another, it is out of date."""
    judged_by: Mapping[str, Any] = entry(mapping, {})
    """Version, thresholds and prices; by others it would have to be made again."""
    findings: tuple[KeptFinding, ...] = entry(list_of(document(KeptFinding)), (), always=True)
    fine: tuple[str, ...] = entry(texts, ())
    not_judged: tuple[KeptGap, ...] = entry(list_of(document(KeptGap)), ())

    @property
    def counts(self) -> Counts:
        found = [finding.severity for finding in self.findings]
        return Counts(*(found.count(severity) for severity in Counts._fields))
