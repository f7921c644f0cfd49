"""Ways to notify somebody: one file each, one row in `trainvitals.settings.channels`.

A channel is a module with a function `send(url, outgoing)`. It returns when the message was taken, and raises `NotSent`
when it was not. It runs in a separate process (`courier`), so it may be slow, hang or crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from trainvitals.settings.channels import APPRISE, REGISTRY, find_channel


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


def send(url: str, outgoing: Outgoing) -> None:
    """Send it through the channel of this address."""
    row = find_channel(url)
    broken = REGISTRY.error(url.partition(":")[0].lower()) if row is APPRISE else None
    if broken is not None:
        raise NotSent(f"plugin failed to load: {broken}", final=True)
    import_module(row.module).send(url, outgoing)
