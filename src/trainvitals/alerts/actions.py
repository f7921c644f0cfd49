"""What may be done about an alert, besides telling: stop, checkpoint, dump_stacks, exec. Off unless a rule asks for it.

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

    rank: int
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
    """Do it. Waits for nothing: what takes time goes on in a thread. Never raises."""

    def tell(result: str, **more: Any) -> None:
        record(new_alert_row(action=action, rule=row.rule, result=result, **more))

    if action == "exec":
        threading.Thread(target=_run, args=(command, row, tell), name="alert command", daemon=True).start()
        return
    alive = [target for target in targets if target.is_alive]
    if not alive:
        tell("nothing to do: no process of the run is alive here")
    elif action == "stop":
        _stop(alive, means, tell)
    elif action == "checkpoint":
        _checkpoint(alive, means, tell)
    elif action == "dump_stacks":
        _dump(alive, tell)


Tell = Callable[..., None]


def _stop(targets: list[Target], means: Means, tell: Tell) -> None:
    pids = _send(targets, signal.SIGTERM)
    tell("SIGTERM sent", pids=pids)
    if means.kill_after is not None and pids:
        arguments = (targets, means.kill_after, tell)
        threading.Thread(target=_kill_later, args=arguments, name="alert stop", daemon=True).start()


def _kill_later(targets: list[Target], seconds: float, tell: Tell) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(target.is_alive for target in targets):
        time.sleep(0.2)
    left = [target for target in targets if target.is_alive]
    if left:
        tell(
            "SIGKILL sent: it did not stop in time",
            pids=_send(left, getattr(signal, "SIGKILL", signal.SIGTERM)),
        )
    else:
        tell("stopped")


def _checkpoint(targets: list[Target], means: Means, tell: Tell) -> None:
    number = getattr(signal, means.checkpoint_signal, None)
    if not isinstance(number, signal.Signals):
        tell(f"not done: there is no signal {means.checkpoint_signal} (alerts.checkpoint_signal)")
        return
    # A process that does not expect the signal would die of it: that must never be what an alert does.
    ready = [target for target in targets if runtime.catches_signal(target.pid, number)]
    if not ready:
        tell(f"not done: the training has no handler for {number.name}, which would end it")
        return
    tell(f"{number.name} sent", pids=_send(ready, number))


def _dump(targets: list[Target], tell: Tell) -> None:
    ready = [
        target for target in targets if target.stack_signal and runtime.catches_signal(target.pid, target.stack_signal)
    ]
    for target in ready:
        _send([target], target.stack_signal or 0)
    if ready:
        tell("stacks written to stacks/", pids=[target.pid for target in ready])
    else:
        tell("not done: the training does not listen for it (setting stack_dumps)")


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


def _run(command: str, row: AlertRow, tell: Tell) -> None:
    environment = {
        **os.environ,
        "TRAINVITALS_ALERT_RULE": row.rule,
        "TRAINVITALS_ALERT_STATE": row.state or "",
        "TRAINVITALS_ALERT_SEVERITY": row.severity or "",
        "TRAINVITALS_ALERT_MESSAGE": row.message,
    }
    tell("started")
    try:
        done = subprocess.run(
            shlex.split(command), env=environment, capture_output=True, timeout=600, check=False, text=True
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        tell(f"failed: {type(error).__name__}")
        return
    tell(f"ended with {done.returncode}")
