"""What may be done about an alert, besides notifying: stop, checkpoint, dump_stacks, exec. Off unless a rule asks.

Every action is recorded, with its result, before and after.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainvitals import runtime
from trainvitals.journal.documents.rows import AlertRow, new_alert_row

Record = Callable[[AlertRow], None]


@dataclass(frozen=True, slots=True)
class Target:
    """One process of the run on this machine."""

    pid: int
    start: float | None
    stack_signal: int | None = None

    @property
    def is_alive(self) -> bool:
        return runtime.is_same_process(self.pid, self.start)


@dataclass(frozen=True, slots=True)
class Means:
    """How actions are done, from the settings."""

    kill_after: float | None = None
    """Seconds that a run that was asked to stop has before it is killed; None: as long as it takes."""
    checkpoint_signal: str = "SIGUSR1"


def act(action: str, row: AlertRow, command: str, targets: list[Target], means: Means, record: Record) -> None:
    """Do it. Never waits: what takes time continues in a thread. Never raises."""

    def report(result: str, **more: Any) -> None:
        record(new_alert_row(action=action, rule=row.rule, result=result, **more))

    if action == "exec":
        threading.Thread(target=_run, args=(command, row, report), name="alert command", daemon=True).start()
        return
    alive = [target for target in targets if target.is_alive]
    if not alive:
        report("nothing to do: no process of the run is alive on this host")
    elif action == "stop":
        _stop(alive, means, report)
    elif action == "checkpoint":
        _checkpoint(alive, means, report)
    elif action == "dump_stacks":
        _dump(alive, report)


Report = Callable[..., None]


def _stop(targets: list[Target], means: Means, report: Report) -> None:
    pids = _send(targets, signal.SIGTERM)
    report("SIGTERM sent", pids=pids)
    if means.kill_after is not None and pids:
        arguments = (targets, means.kill_after, report)
        threading.Thread(target=_kill_later, args=arguments, name="alert stop", daemon=True).start()


def _kill_later(targets: list[Target], seconds: float, report: Report) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(target.is_alive for target in targets):
        time.sleep(0.2)
    left = [target for target in targets if target.is_alive]
    if left:
        report(
            "SIGKILL sent: did not stop in time",
            pids=_send(left, getattr(signal, "SIGKILL", signal.SIGTERM)),
        )
    else:
        report("stopped")


def _checkpoint(targets: list[Target], means: Means, report: Report) -> None:
    number = getattr(signal, means.checkpoint_signal, None)
    if not isinstance(number, signal.Signals):
        report(f"skipped: unknown signal {means.checkpoint_signal} (alerts.checkpoint_signal)")
        return
    # A process that does not expect the signal would die of it: that must never be what an alert does.
    ready = [target for target in targets if runtime.catches_signal(target.pid, number)]
    if not ready:
        report(f"skipped: the training process has no handler for {number.name}, so the signal would kill it")
        return
    report(f"{number.name} sent", pids=_send(ready, number))


def _dump(targets: list[Target], report: Report) -> None:
    ready = [
        target for target in targets if target.stack_signal and runtime.catches_signal(target.pid, target.stack_signal)
    ]
    for target in ready:
        _send([target], target.stack_signal or 0)
    if ready:
        report("stacks written to stacks/", pids=[target.pid for target in ready])
    else:
        report("skipped: stack dumps are not enabled in the training process (setting stack_dumps)")


def _send(targets: list[Target], number: int) -> list[int]:
    sent = []
    for target in targets:
        try:
            if target.is_alive:
                os.kill(target.pid, number)
                sent.append(target.pid)
        except (ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or not ours to touch
    return sent


def _run(command: str, row: AlertRow, report: Report) -> None:
    environment = {
        **os.environ,
        "TRAINVITALS_ALERT_RULE": row.rule,
        "TRAINVITALS_ALERT_STATE": row.state or "",
        "TRAINVITALS_ALERT_SEVERITY": row.severity or "",
        "TRAINVITALS_ALERT_MESSAGE": row.message,
    }
    report("started")
    try:
        done = subprocess.run(
            shlex.split(command), env=environment, capture_output=True, timeout=600, check=False, text=True
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        report(f"failed: {type(error).__name__}")
        return
    report(f"exited with {done.returncode}")
