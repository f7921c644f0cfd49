"""`https://host/path`: the message as JSON, by POST. The body is described in docs/alerts.md."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from trainvitals.alerts.channels import NotSent, Outgoing
from trainvitals.journal.encoding import spell_all

# Answers after which the same message will be refused again.
FINAL = (400, 401, 403, 404, 405, 410, 413, 414, 415, 422)


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
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read(1000)
    except urllib.error.HTTPError as error:
        with error:
            wait = _retry_after(error.headers.get("Retry-After"))
            detail = error.read(200).decode("utf-8", "replace").strip()
        reason = f"HTTP {error.code} {error.reason}{f': {detail}' if detail else ''}"
        raise NotSent(reason, retry_after=wait, final=error.code in FINAL) from None
    except (OSError, ValueError) as error:  # URLError is an OSError; a URL that is none is a ValueError
        raise NotSent(str(getattr(error, "reason", error)), final=isinstance(error, ValueError)) from None


def _retry_after(text: str | None) -> float | None:
    """Seconds; the header is a number of them or a date."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass  # then it is a date
    try:
        import time

        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
