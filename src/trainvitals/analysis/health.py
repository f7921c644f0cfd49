"""Health in one word, with the reason and what to do, from a run's status, alerts and newest values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from trainvitals.conditions import Conditions
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
) -> Health:
    """The health of a run. `firing` are the alerts that fire now, the worst first (`alerts.records.current`), without
    those that are silenced; `latest` the newest training values by name."""
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
        return Health(
            "critical",
            "critical",
            f"{broken[0]} is {'NaN' if math.isnan(latest[broken[0]]) else 'infinite'}",
            _NOT_FINITE.advice,
        )
    if status == "finished":
        return Health("finished", "ok", cause)
    return Health("healthy", "ok", "no active alerts, all ranks progressing" if latest else "no values logged yet")
