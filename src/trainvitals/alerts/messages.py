"""What a person reads, and the JSON a program reads. Pure. Tested in tests/alerts/test_channels.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainvitals.journal.documents.rows import SEVERITIES, AlertRow

SHOWN = 10
MOST_QUOTED = 100
VERSION = 1

_WORDS = {
    "firing": "",
    "resolved": "resolved: ",
    "repeat": "still: ",
    "escalation": "escalated, not acknowledged: ",
    "test": "test: ",
}

_QUOTED = ("labels", "state", "message", "value", "threshold", "step", "since", "host", "reason")
"""What the message keeps of each alert."""


def build(
    kind: str,
    rule: str,
    alerts: Sequence[AlertRow],
    about: Mapping[str, Any],
    message_id: str,
    now: str,
) -> dict[str, Any]:
    """The message as it is kept, sent to webhooks and turned into text. `alerts` are lines of alerts_*.jsonl, the
    newest of each; `about` is where they are from: run, project, name, host, job, link.

    The keys are documented in docs/alerts.md and do not change without a new `version`.
    """
    first = alerts[0]
    severity = SEVERITIES[max(alert.weight for alert in alerts)]
    head = first.message or rule
    if len(alerts) > 1:
        head = f"{head}, and {len(alerts) - 1} more"
    body: dict[str, Any] = {
        "version": VERSION,
        "id": message_id,
        "kind": kind,
        "state": "resolved" if kind == "resolved" else "firing",
        "rule": rule,
        "severity": severity,
        "title": f"{_WORDS[kind]}{head} [{about.get('name') or about.get('run')}]",
        "message": first.message or rule,
        "advice": first.advice or None,
        "time": now,
        "since": min(alert.since or alert.timestamp for alert in alerts),
        "run": about.get("run"),
        "project": about.get("project"),
        "name": about.get("name"),
        "host": about.get("host"),
        "job": about.get("job"),
        "job_labels": about.get("job_labels"),
        "step": first.step,
        "value": first.value,
        "threshold": first.threshold,
        "when": first.when,
        "metric": first.metric,
        "link": about.get("link"),
        "alerts": [
            {key: value for key, value in alert.as_json().items() if key in _QUOTED} for alert in alerts[:MOST_QUOTED]
        ],
        "count": len(alerts),
    }
    return {key: value for key, value in body.items() if value is not None}


def title(body: Mapping[str, Any], late: float = 0.0) -> str:
    """One line."""
    mark = f"({_duration(late)} late) " if late else ""
    return f"{mark}{str(body['severity']).upper()} {body['title']}"


def text(body: Mapping[str, Any], late: float = 0.0) -> str:
    """A few lines for a phone or a mail."""
    lines = [str(alert.get("message")) for alert in body.get("alerts", [])[:SHOWN] if alert.get("message")]
    lines = list(dict.fromkeys(lines)) or [str(body["message"])]
    if int(body.get("count", 1)) > SHOWN:
        lines.append(f"... and {int(body['count']) - SHOWN} more")
    if body["kind"] == "firing" and all(alert.get("state") == "resolved" for alert in body.get("alerts", [])):
        lines.append("Already resolved.")
    if body.get("advice") and body["state"] == "firing":
        lines.append(f"What to do: {body['advice']}")
    facts = [
        f"run {body.get('run')}" if body.get("run") else "",
        f"host {body.get('host')}" if body.get("host") else "",
        str(body.get("job") or ""),
        f"step {body['step']}" if "step" in body else "",
        f"value {_number(body['value'])}" if "value" in body else "",
        f"threshold {_number(body['threshold'])}" if "threshold" in body else "",
        f"rule {body['rule']}",
        f"since {str(body['since'])[:19].replace('T', ' ')} UTC",
    ]
    lines.append(", ".join(fact for fact in facts if fact))
    if late:
        lines.append(f"Delivered {_duration(late)} late: the channel was unreachable.")
    if body.get("link"):
        lines.append(str(body["link"]))
    return "\n".join(lines)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.6g}"
    return str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
