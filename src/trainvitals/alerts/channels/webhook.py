"""`https://host/path`: the message as JSON, by POST. The body is described in docs/alerts.md."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from trainvitals import http_client
from trainvitals.alerts.channels import NotSent, Outgoing
from trainvitals.journal.encoding import spell_all

# Answers after which the same message will be refused again. A redirect is one too: it is not followed.
FINAL = (301, 308, 400, 401, 403, 404, 405, 410, 413, 414, 415, 422)


def send(url: str, outgoing: Outgoing) -> None:
    body = {**outgoing.body, "text": outgoing.text}
    if outgoing.late:
        body["late_seconds"] = round(outgoing.late, 1)
    post(url, body, outgoing.timeout)


def post(url: str, body: Mapping[str, Any] | list[Any], timeout: float) -> None:
    """POST as JSON; anything but 2xx is NotSent."""
    data = json.dumps(spell_all(body), allow_nan=False, default=str).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "trainvitals"}
    try:
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    except ValueError as error:  # not a URL
        raise NotSent(str(error), final=True) from None
    try:
        answer = http_client.send(request, timeout)
    except OSError as error:
        raise NotSent(str(error)) from None
    if not answer.is_good:
        detail = f": {answer.text[:200]}" if answer.text else ""
        reason = f"HTTP {answer.status} {answer.reason}{detail}"
        raise NotSent(reason, retry_after=answer.retry_after, final=answer.status in FINAL)
