"""What a protocol answers, before it is HTTP.
Tested in tests/trackers/intake/test_app.py."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainvitals.stderr import print_line

MOST_REPORTS = 100


@dataclass(frozen=True, slots=True)
class IntakeAnswer:
    """A status and a JSON object, or bytes."""

    status: int
    body: Mapping[str, Any] | bytes = field(default_factory=dict)
    media_type: str = "application/json"
    retry_after: int = 0
    """Seconds after which a client that sends too much may send again."""


class BadFilter(ValueError):
    """A client asks for runs in words that are not understood."""


def refuse_trouble(error: Exception) -> IntakeAnswer:
    """The disk does not take what came. The client is to send it again, for a full disk may have room later."""
    text = str(error)[:500]
    return IntakeAnswer(429, {"error_code": "RESOURCE_EXHAUSTED", "message": text, "error": text}, retry_after=1)


class OnceReporter:
    """Prints each line once: what is not supported is named, and a client that asks again and again floods nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: set[str] = set()

    def __call__(self, text: str) -> None:
        with self._lock:
            if text in self._reported or len(self._reported) >= MOST_REPORTS:
                return
            self._reported.add(text)
        print_line(text)
