"""`desktop:`: a notification on the screen of this machine (notify-send on Linux, osascript on macOS)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from html import escape

from trainvitals.alerts.channels import NotSent, Outgoing

_URGENCY = {"info": "low", "warning": "normal", "critical": "critical"}


def send(url: str, outgoing: Outgoing) -> None:
    words = build(outgoing, sys.platform)
    if shutil.which(words[0]) is None:
        raise NotSent(f"no desktop notifications: {words[0]} is not installed", final=True)
    done = subprocess.run(words, timeout=outgoing.timeout, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotSent(f"{words[0]}: {done.stderr.strip()[-200:]}")


def build(outgoing: Outgoing, platform: str) -> list[str]:
    """The command for that platform. Texts are separate arguments, never part of a script."""
    if platform == "darwin":
        script = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
        return ["osascript", "-e", script, outgoing.title, outgoing.text]
    urgency = _URGENCY[str(outgoing.body["severity"])]
    return [
        "notify-send",
        f"--urgency={urgency}",
        "--app-name=trainvitals",
        "--",
        outgoing.title,
        escape(outgoing.text, quote=False),  # the body is markup there; the title is not
    ]
