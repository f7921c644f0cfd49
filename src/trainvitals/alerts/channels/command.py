"""`command:PROGRAM ARGUMENTS`: run a program, the message as JSON on its standard input. No shell is involved."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

from trainvitals.alerts.channels import NotSent, Outgoing
from trainvitals.journal.encoding import spell_all


def send(url: str, outgoing: Outgoing) -> None:
    try:
        words = shlex.split(url.partition(":")[2])
    except ValueError as error:
        raise NotSent(f"invalid command: {error}", final=True) from None
    if not words:
        raise NotSent("command: missing program", final=True)
    body = outgoing.body
    environment = {
        **os.environ,
        "TRAINVITALS_ALERT_RULE": str(body["rule"]),
        "TRAINVITALS_ALERT_STATE": str(body["state"]),
        "TRAINVITALS_ALERT_SEVERITY": str(body["severity"]),
        "TRAINVITALS_ALERT_TITLE": outgoing.title,
        "TRAINVITALS_ALERT_RUN": str(body.get("run", "")),
    }
    data = json.dumps(spell_all({**body, "text": outgoing.text}), default=str)
    try:
        done = subprocess.run(
            words,
            input=data,
            env=environment,
            timeout=outgoing.timeout,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise NotSent(f"program not found: {words[0]}", final=True) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSent(f"{words[0]}: {type(error).__name__}") from None
    if done.returncode:
        raise NotSent(f"{words[0]} exited with {done.returncode}: {done.stderr.strip()[-200:]}")
