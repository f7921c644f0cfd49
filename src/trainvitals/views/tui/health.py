"""Health in one word, with the reason: from the run's status and what the alert rules have written down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainvitals.views.tui.snapshot import Gpu, Run

_BAD_ENDS = ("failed", "crashed", "killed", "gone")
_STUCK = ("stalled", "hung")
_RANKS = {"info": 0, "warning": 1, "error": 2, "critical": 2}


class Health(NamedTuple):
    """`severity` is None, `warning` or `critical`; `reason` is empty when there is nothing to say."""

    word: str
    severity: str | None
    reason: str = ""


def newest_states(alerts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each alert once, as its newest line has it, newest first. One rule may be an alert per GPU or rank."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in alerts:
        key = (str(row.get("rule", "")), repr(row.get("labels") or row.get("key") or ""))
        newest.pop(key, None)
        newest[key] = row
    return list(reversed(newest.values()))


def firing(alerts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The alerts that fire now, the worst first; silenced and acknowledged ones are known and left out."""
    active = [row for row in newest_states(alerts) if row.get("state") == "firing"]
    return sorted(active, key=lambda row: -_RANKS.get(str(row.get("severity")), 1))


def judge(run: Run | None, alerts: Sequence[Mapping[str, Any]], gpus: Sequence[Gpu]) -> Health:
    """The health of what is on the screen."""
    if run is not None:
        if run.status in _BAD_ENDS or run.status in _STUCK:
            return Health(run.status, "critical", run.cause)
        if not run.live:
            return Health(run.status, None, run.cause)
    active = firing(alerts)
    if active:
        worst = active[0]
        more = f" (and {len(active) - 1} more)" if len(active) > 1 else ""
        severity = "critical" if _RANKS.get(str(worst.get("severity")), 1) > 1 else "warning"
        return Health(severity, severity, f"{worst.get('message') or worst.get('rule') or ''}{more}")
    loss = run.values.get("loss") if run is not None else None
    if loss is not None and not math.isfinite(loss):
        return Health("critical", "critical", "the loss is not a number any more")
    troubled = [gpu for gpu in gpus if gpu.problem and gpu.problem != "asleep"]
    if troubled:
        first = troubled[0]
        more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
        return Health("warning", "warning", f"GPU {first.index}: {first.problem}{more}")
    return Health("healthy", None)
