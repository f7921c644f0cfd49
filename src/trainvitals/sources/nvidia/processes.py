"""Which processes use a GPU, how much of its memory, and how much of its SMs."""

from __future__ import annotations

import ctypes
import struct
import time

from trainvitals.sources import GpuProcess
from trainvitals.sources.nvidia.nvml import INSUFFICIENT_SIZE, NvmlDevice, known

MB = 1 << 20


class _Table:
    """A kept buffer for a call of the form f(handle, &count, rows), made larger when the rows do not fit."""

    def __init__(self, layout: str) -> None:
        self.row = struct.Struct(layout)
        self.buffer = ctypes.create_string_buffer(32 * self.row.size)

    def room(self) -> ctypes.c_uint:
        return ctypes.c_uint(len(self.buffer) // self.row.size)

    def grow(self, rows: int) -> None:
        self.buffer = ctypes.create_string_buffer((2 * rows + 5) * self.row.size)

    def rows(self, count: int) -> list[tuple[int, ...]]:
        return list(self.row.iter_unpack(self.buffer.raw[: count * self.row.size]))


# Newest first; the oldest form has no MIG instance ids.
_LISTS = (("_v3", "=I4xQII"), ("_v2", "=I4xQII"), ("", "=I4xQ"))
_UTILIZATION = "=I4xQIIII"  # pid, microseconds, SM, memory, encoder, decoder


class Processes:
    """The processes on one device."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._tables = {suffix: _Table(layout) for suffix, layout in _LISTS}
        self._utilization = _Table(_UTILIZATION)
        self._since = _just_now()

    def read(self) -> tuple[GpuProcess, ...] | None:
        """Everyone with a context now, by pid; None if this device does not report them."""
        lists = [self._list(kind) for kind in ("Compute", "Graphics")]
        if lists == [None, None]:
            return None
        memory: dict[int, int | None] = {}
        for pid, used in (row for rows in lists if rows for row in rows):
            # A process that computes and draws is in both lists with the same memory.
            memory[pid] = max((m for m in (memory.get(pid), used) if m is not None), default=None)
        busy = self._busy() if memory else {}
        return tuple(
            GpuProcess(pid, None if used is None else round(used / MB, 3), busy.get(pid))
            for pid, used in sorted(memory.items())
        )

    def _list(self, kind: str) -> list[tuple[int, int | None]] | None:
        for suffix, _layout in _LISTS:
            rows = self._rows(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", self._tables[suffix])
            if rows is not None:
                return [(row[0], known(row[1], 64)) for row in rows]
        return None

    def _busy(self) -> dict[int, int]:
        """Pid to SM percent, newest sample of each, of those sampled since the last reading."""
        if self._since > time.time() * 1e6:  # the clock was set back: nothing would be new for that long
            self._since = _just_now()
        since = ctypes.c_ulonglong(self._since)
        newest: dict[int, tuple[int, int]] = {}
        # A refusal here is most often "not found", which only means nothing new.
        for pid, stamp, sm, *_ in self._rows("nvmlDeviceGetProcessUtilization", self._utilization, since) or ():
            if stamp >= newest.get(pid, (0, 0))[0]:
                newest[pid] = (stamp, sm)
            self._since = max(self._since, stamp)
        return {pid: sm for pid, (_stamp, sm) in newest.items() if sm <= 100}

    def _rows(
        self, question: str, table: _Table, since: ctypes.c_ulonglong | None = None
    ) -> list[tuple[int, ...]] | None:
        for _attempt in range(2):
            count = table.room()
            rows, room = table.buffer, ctypes.byref(count)
            arguments = (room, rows) if since is None else (rows, room, since)
            if self._device.fill((question,), question, *arguments):
                return table.rows(count.value)
            if self._device.last_code != INSUFFICIENT_SIZE:
                return None
            table.grow(count.value)
        return None


def _just_now() -> int:
    """Where to begin in the history that the driver keeps, in microseconds: else it answers with old numbers."""
    return int((time.time() - 2) * 1e6)
