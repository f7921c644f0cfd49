"""MIG: the slices of one GPU, each with separate memory and activity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainvitals.sources import GpuProcess, Value
from trainvitals.sources.nvidia import gpm
from trainvitals.sources.nvidia.nvml import NvmlDevice, NvmlRefused
from trainvitals.sources.nvidia.processes import Processes
from trainvitals.sources.nvidia.values import read_memory


class Slice:
    """One MIG device. Its utilization is known through GPM only, so only on Hopper and later."""

    def __init__(self, parent: NvmlDevice, device: NvmlDevice, index: int, uuid: str) -> None:
        self.index = index
        self.uuid = uuid
        self.name: str | None = device.ask("nvmlDeviceGetName")
        self.processes: tuple[GpuProcess, ...] = ()
        self._device = device
        self._processes = Processes(device)
        instance = device.ask("nvmlDeviceGetGpuInstanceId")
        self._gpm = gpm.Gpm(parent, instance) if instance is not None else None

    def read(self, now: float, with_processes: bool) -> dict[str, Value]:
        """Memory, activity, and the processes if asked for. Raises GpuSilent when the slice was destroyed."""
        self._device.begin()
        values = read_memory(self._device)
        activity = self._gpm.read(now) if self._gpm else {}
        if gpm.GRAPHICS_ACTIVE in activity:
            values["utilization_percent"] = round(activity[gpm.GRAPHICS_ACTIVE], 3)
        values.update(
            {name: round(activity[metric], 3) for metric, name in gpm.PERCENTAGES.items() if metric in activity}
        )
        if with_processes:
            found = self._processes.read()
            self.processes = tuple(replace(process, part=(self.index, self.uuid)) for process in found or ())
            if found is not None:
                values["process_count"] = len(found)
        self._device.finish()
        return values

    def close(self) -> None:
        if self._gpm:
            self._gpm.close()


def read_slices(parent: NvmlDevice, clock: Callable[[], float]) -> list[tuple[int, str, NvmlDevice]]:
    """(index, uuid, device) of every slice there is now; empty unless the GPU is in MIG mode."""
    mode = parent.ask("nvmlDeviceGetMigMode")
    if mode is None or not mode[0]:
        return []
    found = []
    for index in range(parent.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        try:
            handle = parent.driver.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent.handle, index)
        except NvmlRefused:  # an empty place, which is not remembered: it may hold a slice the next time
            continue
        device = NvmlDevice(parent.driver, handle, parent.generation, clock)
        uuid = device.ask("nvmlDeviceGetUUID")
        if uuid is not None:
            found.append((index, uuid, device))
    return found
