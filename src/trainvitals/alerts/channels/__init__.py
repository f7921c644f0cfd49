"""Ways to tell somebody: one file each, one line here. Everything without a line goes through Apprise.

A channel is a function `send(url, message, context)`. It returns when the message was taken, and raises `NotSent` when
it was not. It runs in a process of its own (`courier`), so it may be slow, hang or crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

# scheme -> module with `send`
REGISTRY: tuple[tuple[str, str], ...] = (
    ("http", "trainvitals.alerts.channels.webhook"),
    ("https", "trainvitals.alerts.channels.webhook"),
    ("alertmanager", "trainvitals.alerts.channels.alertmanager"),
    ("alertmanagers", "trainvitals.alerts.channels.alertmanager"),
    ("command", "trainvitals.alerts.channels.command"),
    ("desktop", "trainvitals.alerts.channels.desktop"),
    ("bell", "trainvitals.alerts.channels.bell"),
)

KEEPERS = ("alertmanager", "alertmanagers")
"""Schemes of those that go on saying that an alert fires until they are told that it is over."""


class Outgoing(NamedTuple):
    """A message on its way."""

    body: Mapping[str, Any]
    title: str
    text: str
    late: float
    """Seconds by which it is late; 0 if it is not worth mentioning."""
    picture: str | None = None
    """Path of a PNG, for channels that take one."""
    terminals: tuple[str, ...] = ()
    """Terminals of the training, for the bell."""
    timeout: float = 15.0


class NotSent(Exception):
    """The message was not taken. `retry_after` is what the other side asked for, in seconds; `final` means that
    trying again is of no use."""

    def __init__(self, reason: str, *, retry_after: float | None = None, final: bool = False) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.final = final


def keeps_state(url: str) -> bool:
    """Whether whoever is at this address must be told the end of an alert, even if no person needs to be."""
    return url.partition(":")[0].lower() in KEEPERS


def send(url: str, outgoing: Outgoing) -> None:
    """Tell them."""
    scheme = url.partition(":")[0].lower()
    module = dict(REGISTRY).get(scheme, "trainvitals.alerts.channels.services")
    import_module(module).send(url, outgoing)
