"""Carrying messages: a queue and a thread per channel, a child per message, and patience.

A channel that hangs holds up nobody but itself; one that is down gets everything, in order, once it is back, marked
late. What is queued is in the run folder before it is sent, and what was delivered is there after.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.rows import AlertRow, new_alert_row
from trainvitals.ownership import explain_foreign
from trainvitals.redaction import redact_text
from trainvitals.settings.addresses import Address, read_address
from trainvitals.settings.channels import find_channel
from trainvitals.settings.secrets import Environment

SEND_SECONDS = 15.0
"""How long a service may take to answer."""
CHILD_SECONDS = 30.0
"""How long the child may live: it hangs, then."""
LATE_SECONDS = 60.0
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0


class Result(NamedTuple):
    """What became of one attempt."""

    sent: bool
    reason: str = ""
    retry_after: float | None = None
    final: bool = False
    needless: bool = False
    """Nothing had to be sent there."""


def carry(
    url: str,
    body: Mapping[str, Any],
    *,
    late: float = 0.0,
    folder: str | None = None,
    terminals: tuple[str, ...] = (),
    send_seconds: float = SEND_SECONDS,
    child_seconds: float = CHILD_SECONDS,
) -> Result:
    """One attempt, in a child. Never raises; the reason holds no secret."""
    job = {
        "url": url,
        "body": body,
        "late": late,
        "folder": folder,
        "terminals": terminals,
        "timeout": send_seconds,
    }
    command = [sys.executable, "-P", "-m", "trainvitals.alerts.courier"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job, default=str).encode(),
            capture_output=True,
            timeout=child_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(False, f"no response within {child_seconds:g} s")
    except OSError as error:
        return Result(False, f"cannot start a child process: {error.strerror}")
    try:
        answer = json.loads(done.stdout)
        found = Result(
            bool(answer["sent"]),
            str(answer.get("reason") or ""),
            answer.get("retry_after"),
            bool(answer.get("final")),
        )
    except (ValueError, KeyError, TypeError):
        tail = done.stderr.decode("utf-8", "replace").strip()[-300:]
        found = Result(False, f"delivery process exited with {done.returncode}: {tail}")
    return found._replace(reason=hide(found.reason, url))


def hide(text: str, url: str) -> str:
    """The text without the address or any longer part of it: errors like to quote what they failed on."""
    text = text.replace(url, f"{url.partition(':')[0]}:[redacted]")
    rest = url.partition("://")[2]
    for part in sorted((p for p in _split(rest) if len(p) >= 8), key=len, reverse=True):
        if "." not in part:  # a host name may be shown, and helps
            text = text.replace(part, "[redacted]")
    return redact_text(text)


def _split(text: str) -> list[str]:
    for separator in "/?&=@:#,":
        text = text.replace(separator, " ")
    return text.split()


class _Channel:
    """One channel's queue and its thread."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.queue: deque[tuple[AlertRow, float]] = deque()
        """Messages, and when each was made, by the monotonic clock: a clock that is set makes none of them old."""
        self.thread: threading.Thread | None = None
        self.failures = 0
        self.last_reason = ""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that deliveries may take."""

    give_up_after: float = 86400.0
    """After which a message that no try delivered is given up."""
    first_wait: float = FIRST_WAIT
    send_seconds: float = SEND_SECONDS
    child_seconds: float = CHILD_SECONDS


class Outbox:
    """All channels of one run."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        record: Callable[[AlertRow], None],
        *,
        environment: Environment,
        folder: str | None = None,
        terminals: Callable[[], tuple[str, ...]] = tuple,
        patience: Patience | None = None,
    ) -> None:
        """`record` takes the line about a delivery; it is called from the channels' threads."""
        self._channels = {address.name: _Channel(address) for address in addresses}
        self._record = record
        self._environment = environment
        self._folder = folder
        self._terminals = terminals
        self._patience = patience or Patience()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closing = False

    def add(self, row: AlertRow, channels: set[str] | None = None) -> None:
        """Queue a message (a line with `outgoing`) for its channels, or for these of them."""
        names = [name for name in row.channels if channels is None or name in channels]
        born = time.monotonic() - max(0.0, time.time() - row.seconds)
        for name in names:
            channel = self._channels.get(name)
            if channel is None:
                self._write(row, name, "given up", f"unknown channel '{name}' (alerts.notify)", 0)
                continue
            with self._lock:
                channel.queue.append((row, born))
                if channel.thread is None:
                    channel.thread = threading.Thread(
                        target=self._work, args=(channel,), name=f"alerts to {name}", daemon=True
                    )
                    channel.thread.start()
                self._wake.notify_all()

    @property
    def waiting(self) -> int:
        """Messages that have not reached all their channels."""
        with self._lock:
            return sum(len(channel.queue) for channel in self._channels.values())

    def close(self, seconds: float = 0.0) -> bool:
        """Give what waits this long to get out. True if nothing is left; the rest stays in the run folder."""
        deadline = time.monotonic() + seconds
        while self.waiting and time.monotonic() < deadline:
            time.sleep(0.05)
        with self._lock:
            self._closing = True
            self._wake.notify_all()
        return not self.waiting

    # -- in the channel's thread

    def _work(self, channel: _Channel) -> None:
        while True:
            with self._lock:
                while not channel.queue and not self._closing:
                    if not self._wake.wait(30.0) and not channel.queue:
                        channel.thread = None  # nothing for a while: the next message starts a new thread
                        return
                if self._closing:
                    return
                row, born = channel.queue[0]
            wait = self._attempt(channel, row, time.monotonic() - born)
            with self._lock:
                if wait is None:
                    channel.queue.popleft()
                elif not self._closing:
                    self._sleep(wait)

    def _sleep(self, seconds: float) -> None:
        """Wait with the lock released; new messages do not make a broken channel try sooner."""
        end = time.monotonic() + seconds
        while not self._closing and (left := end - time.monotonic()) > 0:
            self._wake.wait(left)

    def _attempt(self, channel: _Channel, row: AlertRow, age: float) -> float | None:
        """None if the message is done with, else how long to wait before the next attempt."""
        result = self._carry(channel, row, age if age > LATE_SECONDS else 0.0)
        if result.sent:
            became = "not needed" if result.needless else "delivered"
            self._write(row, channel.address.name, became, "", channel.failures + 1, age)
            channel.failures, channel.last_reason = 0, ""
            return None
        channel.failures += 1
        first_of_kind = result.reason != channel.last_reason
        channel.last_reason = result.reason
        if result.final or age > self._patience.give_up_after:
            self._write(row, channel.address.name, "given up", result.reason, channel.failures)
            return None
        if first_of_kind:
            self._write(row, channel.address.name, "failed", result.reason, channel.failures)
        wait = min(self._patience.first_wait * 2.0 ** min(channel.failures - 1, 20), LONGEST_WAIT)
        return max(wait, min(result.retry_after or 0.0, 3600.0))

    def _carry(self, channel: _Channel, row: AlertRow, late: float) -> Result:
        if self._folder is not None and (why := explain_foreign(Path(self._folder))) is not None:
            return Result(False, f"not sent because the run folder is not trusted: {why}", final=True)
        try:
            url = read_address(channel.address.url, self._environment)
        except TrainvitalsError as error:
            return Result(False, redact_text(error.message))
        if row.quiet and not find_channel(url).keeps_state:
            return Result(True, needless=True)
        return carry(
            url,
            row.body or {},
            late=late,
            folder=self._folder,
            terminals=self._terminals(),
            send_seconds=self._patience.send_seconds,
            child_seconds=self._patience.child_seconds,
        )

    def _write(self, row: AlertRow, channel: str, result: str, reason: str, attempts: int, age: float = 0.0) -> None:
        self._record(
            new_alert_row(
                delivery=row.outgoing,
                rule=row.rule,
                channel=channel,
                result=result,
                attempts=attempts,
                reason=reason[:500],
                late_seconds=round(age, 1) if age > LATE_SECONDS else None,
            )
        )
