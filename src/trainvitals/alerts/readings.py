"""What the agent measured, for conditions in Python: the host's readings and those of the GPUs, by name.

`cpu_usage_percent` is the host's. `gpu_0_temperature_celsius` is that of one GPU, and `gpu_temperature_celsius` the
highest of all GPUs of the machine. Tested in tests/alerts/test_agent.py.
"""

from __future__ import annotations

import re
import time

from trainvitals import catalog
from trainvitals.journal.documents.latest import read_agent, read_latest

SECONDS = 1.0
"""Between two looks at what the agent wrote: its own file changes no faster."""
OLDER_GPU_NAMES = {
    "utilization": "utilization_percent",
    "temperature": "temperature_celsius",
    "power_watts": "power_draw_watts",
    "memory_mb": "memory_used_mb",
}
"""As older monitors called them, after `gpu_`."""
_GPU = re.compile(r"gpu_(?:(\d{1,4})_)?(\w+)", re.ASCII)


class Readings:
    """Read when a condition asks for one, and then at most once a second."""

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._host: dict[str, float] = {}
        self._gpus: dict[int, dict[str, float]] = {}

    def find(self, name: str) -> float | None:
        """None if it is not measured, or there is no agent."""
        if catalog.find("system", name) is not None:
            self._refresh()
            return self._host.get(name)
        match = _GPU.fullmatch(name)
        metric = OLDER_GPU_NAMES.get(match[2], match[2]) if match is not None else ""
        if match is None or catalog.find("gpu", metric) is None:
            return None
        self._refresh()
        index = int(match[1]) if match[1] else None
        found = [gpu[metric] for key, gpu in self._gpus.items() if index in (None, key) and metric in gpu]
        return max(found, default=None)

    def gpus(self) -> dict[int, dict[str, float]]:
        """Every reading of every GPU of the machine, by its index."""
        self._refresh()
        return self._gpus

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._read_at is not None and now - self._read_at < SECONDS:
            return
        self._read_at = now
        self._host, self._gpus = {}, {}
        agent = read_agent()
        latest = read_latest(agent) if agent is not None else None
        for sample in latest.samples.values() if latest is not None else ():
            index = sample.labels.get("gpu_index")
            if sample.table == "system":
                values = self._host  # the host is read in several parts
            elif sample.table == "gpu" and isinstance(index, int):
                values = self._gpus.setdefault(index, {})
            else:
                continue
            values.update({key: value for key, value in sample.values.items() if isinstance(value, (int, float))})
