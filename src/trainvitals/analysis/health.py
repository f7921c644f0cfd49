"""Health in one word, with the reason and what to do, from a run's status, alerts, newest values and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from trainvitals.alerts.records import NOTHING_FIRED, Fired
from trainvitals.analysis.wording import count_of
from trainvitals.conditions import Conditions
from trainvitals.journal.documents.findings import Counts
from trainvitals.journal.documents.rows import SEVERITIES, AlertRow
from trainvitals.journal.documents.run import BAD_ENDS

STUCK = ("stalled", "hung")
_ADVICE = {
    "failed": "See the exception in the events, fix it and resume from the latest checkpoint.",
    "crashed": "Check the last events and the console output; resume from the latest checkpoint.",
    "killed": "If it ran out of memory, lower the batch size or request more memory, then resume.",
    "stalled": "The stacks of the ranks show what each one is waiting for.",
    "hung": "The stacks of the ranks show what each one is waiting for. Then stop and resume the run.",
}


_NOT_FINITE = Conditions()["loss_not_finite"]


class Health(NamedTuple):
    """`reason` and `advice` are empty where all is well."""

    word: str
    severity: Literal["ok", "info", "warning", "critical"]
    reason: str = ""
    advice: str = ""


def judge_health(
    status: str,
    cause: str,
    firing: Sequence[AlertRow],
    latest: Mapping[str, float],
    fired: Fired = NOTHING_FIRED,
    findings: Counts | None = None,
) -> Health:
    """The health of a run. `firing` are the alerts that fire now, the worst first (`alerts.records.current`), without
    those that are silenced; `latest` the newest training values by name; `fired` and `findings` what a run that has
    finished came to, None if it was not diagnosed."""
    if status in BAD_ENDS or status in STUCK:
        return Health(status, "critical", cause or f"the run has {status}", _ADVICE[status])
    if firing and status != "finished":
        worst = firing[0]
        severity = SEVERITIES[worst.weight]
        more = f" (and {len(firing) - 1} more)" if len(firing) > 1 else ""
        word = "healthy" if severity == "info" else severity
        return Health(word, severity, (worst.message or worst.rule or "alert firing") + more, worst.advice)
    broken = sorted(name for name, value in latest.items() if "loss" in name and not math.isfinite(value))
    if broken:
        reason = f"{broken[0]} is {'NaN' if math.isnan(latest[broken[0]]) else 'infinite'}"
        if status == "finished":
            reason = ", ".join(filter(None, (reason, format_problems(fired.ever, findings or Counts()))))
        return Health("critical", "critical", reason, _NOT_FINITE.advice)
    if status == "finished":
        return _judge_finished(cause, fired, findings or Counts())
    return Health("healthy", "ok", "no active alerts, all ranks progressing" if latest else "no values logged yet")


def _judge_finished(cause: str, fired: Fired, findings: Counts) -> Health:
    """What was wrong until the end counts in full; a critical alert that was resolved is still worth a look."""
    severity: Literal["ok", "warning", "critical"] = "ok"
    if fired.to_the_end.critical or findings.critical:
        severity = "critical"
    elif fired.ever.critical or fired.to_the_end.warning or findings.warning:
        severity = "warning"
    reason = format_problems(fired.ever, findings) or cause
    counted = (("findings", findings), ("alerts", fired.ever))
    where = " and the ".join(what for what, counts in counted if counts.critical + counts.warning)
    return Health("finished", severity, reason, "" if severity == "ok" else f"See the {where}.")


def format_problems(alerts: Counts, findings: Counts) -> str:
    """`3 alerts (1 critical), 2 findings`; empty if there are none. What is only information is not counted."""
    return ", ".join(filter(None, (_format_counts(alerts, "alert"), _format_counts(findings, "finding"))))


def _format_counts(counts: Counts, noun: str) -> str:
    number = counts.critical + counts.warning
    if not number:
        return ""
    if counts.critical in (0, number):
        return count_of(number, f"{'critical ' if counts.critical else ''}{noun}")
    return f"{count_of(number, noun)} ({counts.critical:,} critical)"
