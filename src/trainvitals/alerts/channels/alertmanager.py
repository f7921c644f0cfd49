"""`alertmanager://host:9093`: Prometheus Alertmanager's own API, `/api/v2/alerts`. `alertmanagers://` is https.

The labels of an alert identify it, so a message that comes twice, or from two hosts, is one alert there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from trainvitals.alerts.channels import Outgoing
from trainvitals.alerts.channels.webhook import post

LASTS = timedelta(hours=24)
"""How long Alertmanager keeps an alert that nobody resolved: we do not send it again every minute."""
BRIEF = timedelta(minutes=10)
"""The same where no end will be sent, of a test or a run that is over: time to be noticed, and no more."""


def send(url: str, outgoing: Outgoing) -> None:
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "alertmanagers" else "http"
    path = f"{parts.path.rstrip('/')}/api/v2/alerts"
    post(urlunsplit((scheme, parts.netloc, path, parts.query, "")), build(outgoing), outgoing.timeout)


def build(outgoing: Outgoing) -> list[dict[str, Any]]:
    """The body: one entry per alert."""
    body = outgoing.body
    now = datetime.now(UTC)
    entries = []
    for alert in body.get("alerts") or [{}]:
        labels = {
            "alertname": body["rule"],
            "severity": body["severity"],
            "run": body.get("run"),
            "project": body.get("project"),
            **(body.get("job_labels") or {}),
            **(alert.get("labels") or {}),
        }
        if "gpu_index" in labels or not alert.get("labels"):
            labels["host"] = alert.get("host") or body.get("host")
        annotations = {
            "summary": body["title"],
            "description": alert.get("message") or body["message"],
            "advice": body.get("advice"),
            "value": alert.get("value"),
            "threshold": alert.get("threshold"),
            "step": alert.get("step"),
        }
        entry = {
            "labels": {key: str(value) for key, value in labels.items() if value not in (None, "")},
            "annotations": {key: str(value) for key, value in annotations.items() if value not in (None, "")},
            "startsAt": alert.get("since") or body["since"],
            "endsAt": (now + _lasts(body, alert)).isoformat().replace("+00:00", "Z"),
        }
        if body.get("link"):
            entry["generatorURL"] = body["link"]
        entries.append(entry)
    return entries


def _lasts(body: Mapping[str, Any], alert: Mapping[str, Any]) -> timedelta:
    """For how long it is to be kept from now on."""
    if "resolved" in (body["state"], alert.get("state")):
        return timedelta()
    return BRIEF if body["kind"] == "test" or alert.get("reason") else LASTS
