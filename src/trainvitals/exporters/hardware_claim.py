"""Which agent of a machine pushes its hardware to a server: the first, for as long as it lives, then the next one.

The agents of several users measure the same GPUs and the same host. Each pushes its own runs; pushed twice, counters
would go back and forth and sums would be too high. They agree through the kernel: an address that only one process of
the machine can have, and that is free again when this process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import socket
import sys


class HardwareClaim:
    """For one server. Where the kernel has no such addresses everybody holds it, as on macOS."""

    def __init__(self, target: str) -> None:
        """`target` is where to: agents that push to different servers are not in each other's way."""
        self._name = f"\0trainvitals-hardware-{hashlib.sha256(target.encode()).hexdigest()[:16]}"
        self._socket: socket.socket | None = None

    def hold(self) -> bool:
        """Whether it is ours, now if not before."""
        if self._socket is None and sys.platform == "linux":
            mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                mine.bind(self._name)
            except OSError:
                mine.close()
                return False
            self._socket = mine
        return True

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
