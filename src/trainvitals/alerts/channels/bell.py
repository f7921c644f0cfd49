"""`bell:`: ring the terminal in which the training runs, and write one line there."""

from __future__ import annotations

import os
from pathlib import Path

from trainvitals.alerts.channels import NotSent, Outgoing
from trainvitals.safe_text import one_line


def send(url: str, outgoing: Outgoing) -> None:
    if not outgoing.terminals:
        raise NotSent("the training process has no terminal", final=True)
    for terminal in outgoing.terminals:
        try:
            descriptor = os.open(terminal, os.O_WRONLY | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise NotSent(f"{terminal}: {error.strerror}", final=True) from None
        try:
            os.write(descriptor, f"\r\n\atrainvitals: {one_line(outgoing.title)}\r\n".encode())
        finally:
            os.close(descriptor)


def find_terminals(pids: list[int]) -> tuple[str, ...]:
    """The terminals these processes write to; none for a job in the background or a container."""
    found = []
    for pid in pids:
        for number in (2, 1):
            try:
                target = str(Path(f"/proc/{pid}/fd/{number}").readlink())
            except OSError:
                continue
            if target.startswith("/dev/pts/") and target not in found:
                found.append(target)
    return tuple(found)
