"""A real Jupyter kernel, asked as the page of a notebook asks it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import psutil
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from waiting import PATIENCE, free_port


class Kernel:
    """Runs cells, and keeps what they show by the id of its display."""

    def __init__(self) -> None:
        # Not ports that the kernel of the system chooses, which may be others' by the time this one listens on them.
        ports: dict[str, int] = {}
        for name in ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port"):
            ports[name] = next(port for port in iter(free_port, None) if port not in ports.values())
        self._manager = KernelManager(kernel_name="python3", cache_ports=False, **ports)
        self._manager.start_kernel()
        self._client: BlockingKernelClient = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)
        self.displays: dict[str, dict[str, Any]] = {}
        """The newest of each, in the order in which they first appeared."""
        self.text = ""
        """What the cell that was finished last printed."""
        self.run("import os; print(os.getpid())")
        self.pid = int(self.text)

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def start(self, code: str) -> str:
        """The id of the cell."""
        # Else the kernel refuses whatever it finds in its queue after an error: also the next cell, if that is quick.
        return str(self._client.execute(code, stop_on_error=False))

    def finish(self, cell: str) -> str | None:
        """Wait for its end, also of what it shows. The name of the error with which it ended, None if with none."""
        self.text = ""
        errors: list[str] = []

        def is_end(message: dict[str, Any]) -> bool:
            if message["parent_header"].get("msg_id") != cell:
                return False
            if message["msg_type"] == "error":
                errors.append(message["content"]["ename"])
            return bool(message["content"].get("execution_state") == "idle")

        self._hear(is_end)
        return errors[0] if errors else None

    def run(self, code: str) -> str | None:
        """Start and finish."""
        return self.finish(self.start(code))

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def wait_for_picture(self, pattern: str) -> re.Match[str]:
        """Until the newest has it, while a cell is running."""
        self._hear(lambda _: bool(self.pictures and re.search(pattern, self.pictures[-1])))
        found = re.search(pattern, self.pictures[-1])
        assert found is not None
        return found

    def wait_for_output(self, text: str) -> None:
        self._hear(lambda _: text in self.text)

    @property
    def pictures(self) -> list[str]:
        """The texts of the pictures."""
        found = (data.get("image/svg+xml", "") for data in self.displays.values())
        return [" | ".join(re.findall(r"<text[^>]*>([^<]*)", svg)) for svg in found]

    def painters(self) -> list[psutil.Process]:
        """The processes that draw."""
        found = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("inline" in word for word in child.cmdline()):
                    found.append(child)
        return found

    def _hear(self, until: Callable[[dict[str, Any]], bool]) -> None:
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            content = message["content"]
            if message["msg_type"] in ("display_data", "update_display_data"):
                self.displays[content["transient"]["display_id"]] = content["data"]
            self.text += content.get("text", "")
            if until(message):
                return
