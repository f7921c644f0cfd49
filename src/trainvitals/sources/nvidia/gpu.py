"""One GPU, read on its own: its values, its MIG slices, its processes, and what happens to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainvitals.sources import GpuProcess, Notice, Sample, UnitGone, Value
from trainvitals.sources.nvidia import nvml, pci
from trainvitals.sources.nvidia.events import Events
from trainvitals.sources.nvidia.gpm import Gpm
from trainvitals.sources.nvidia.mig import Slice, read_slices
from trainvitals.sources.nvidia.nvml import Driver, DriverRestarted, GpuLost, GpuSilent, NvmlDevice, NvmlRefused
from trainvitals.sources.nvidia.processes import Processes
from trainvitals.sources.nvidia.values import STEADY_SECONDS, GpuValues, read_fixed

# Slower than the samples, because the answers change slowly or cost the driver more.
_PROCESS_SECONDS = 1.9
_SELDOM_SECONDS = 4.9  # video engines, MIG layout


@dataclass(frozen=True, slots=True)
class Identity:
    """Which GPU: the UUID is what counts, index and address are where it was last seen."""

    uuid: str
    name: str
    index: int
    bus_id: str | None
    """NVML's PCI address, such as `00000000:01:00.0`."""

    @property
    def address(self) -> str | None:
        """The PCI address as sysfs writes it."""
        return None if self.bus_id is None else pci.parse_address(self.bus_id)

    @property
    def labels(self) -> dict[str, Value]:
        return {
            "gpu_index": self.index,
            "gpu_uuid": self.uuid,
            "gpu_name": self.name,
            "vendor": "nvidia",
        }


def find_handle(driver: Driver, place: int | str) -> Any:
    """The handle of the GPU at an index or a PCI address. Raises Refused.

    By address the driver touches that GPU alone; by UUID it may wake or wait for others while it searches.
    """
    by = "nvmlDeviceGetHandleByIndex" if isinstance(place, int) else "nvmlDeviceGetHandleByPciBusId"
    return driver.ask(by, place)


def identify(driver: Driver, place: int | str) -> Identity:
    """Who is at this index or PCI address. Raises Refused."""
    driver.connect()
    return read_identity(driver, find_handle(driver, place))


def read_identity(driver: Driver, handle: Any) -> Identity:
    """Who has this handle. Raises Refused."""
    uuid = driver.ask("nvmlDeviceGetUUID", handle)
    index = driver.ask("nvmlDeviceGetIndex", handle)
    try:
        name = driver.ask("nvmlDeviceGetName", handle)
    except NvmlRefused:
        name = "NVIDIA GPU"
    try:
        bus_id = driver.ask("nvmlDeviceGetPciInfo", handle).busId
    except NvmlRefused:
        bus_id = None
    return Identity(uuid, name, index, bus_id.decode() if isinstance(bus_id, bytes) else bus_id)


def trouble_state(code: int) -> str:
    """The `state` of a GPU that can only answer with this code."""
    return {nvml.GPU_IS_LOST: "lost", nvml.RESET_REQUIRED: "reset required"}.get(code, "failing")


class _Opened:
    """A GPU in one driver generation, with everything that is void when the driver is reloaded."""

    def __init__(self, device: NvmlDevice, clock: Callable[[], float]) -> None:
        self.device = device
        self._clock = clock
        try:
            version = device.driver.ask("nvmlSystemGetDriverVersion")
        except NvmlRefused:
            version = ""
        self.fixed = read_fixed(device)
        self.values = GpuValues(device, version)
        self.gpm = Gpm(device)
        self.processes = Processes(device)
        self.slices: list[Slice] = []

    def refresh_slices(self) -> None:
        """Follow MIG slices that were created or destroyed; the ones that stay keep their history."""
        kept = {part.uuid: part for part in self.slices}
        self.slices = [
            kept.pop(uuid) if uuid in kept else Slice(self.device, device, index, uuid)
            for index, uuid, device in read_slices(self.device, self._clock)
        ]
        for gone in kept.values():
            gone.close()

    def close(self) -> None:
        self.gpm.close()
        for part in self.slices:
            part.close()


class GpuUnit:
    """One physical GPU and its slices.

    A GPU that is lost, asleep or answers nothing gives a sample with its `state` and no values; it is tried
    again at every reading and comes back by itself.
    """

    def __init__(
        self, driver: Driver, identity: Identity, events: Events, sysfs_root: str, clock: Callable[[], float]
    ) -> None:
        self.key = f"nvidia:{identity.uuid}"
        self.identity = identity
        self.processes: tuple[GpuProcess, ...] = ()
        """Who uses the GPU, at most two seconds old; replaced as a whole, so any thread may read it."""
        self._driver = driver
        self._events = events
        self._sysfs_root = sysfs_root
        self._clock = clock
        self._opened: _Opened | None = None
        self._holding = False
        self._state = "ok"
        self._processes_at = self._seldom_at = self._next_look = float("-inf")

    @property
    def gpu_index(self) -> int:
        return self.identity.index

    def read(self) -> list[Sample | Notice]:
        started = time.time()
        if self._fell_asleep():
            self.close()  # an open handle would keep it awake
            return self._without_values(started, "asleep", "is asleep and will not be woken up", "info")
        try:
            try:
                return self._sweep(started)
            except (DriverRestarted, GpuSilent) as trouble:
                notices = self._recover(trouble)
            return [*notices, *self._sweep(started)]
        except GpuLost:
            advice = "check `dmesg | grep -i xid`, power and seating; a reboot usually helps"
            return self._without_values(started, "lost", f"is lost: it has fallen off the bus; {advice}", "critical")
        except DriverRestarted:
            return self._without_values(started, "failing", "is not responding: NVML failed to start", "critical")
        except GpuSilent as trouble:
            state = trouble_state(trouble.code)
            return self._without_values(started, state, f"is not responding: {trouble}", "critical")

    def _fell_asleep(self) -> bool:
        """Looked for once a second: a GPU that was read a moment ago is awake."""
        now = self._clock()
        if self._opened is not None and now < self._next_look:
            return False
        self._next_look = now + STEADY_SECONDS
        return pci.is_asleep(self._sysfs_root, self.identity.address)

    def _recover(self, trouble: Exception) -> list[Notice]:
        """Get ready for a second try: a fresh handle, and a fresh NVML if the old one is dead."""
        generation = self._opened.device.generation if self._opened else self._driver.generation
        self._drop()
        if isinstance(trouble, GpuSilent) and self._driver.answers():
            return []
        try:
            mine = self._driver.reconnect(generation)
        except NvmlRefused as refusal:
            raise UnitGone(f"the NVIDIA driver was unloaded: {refusal}") from None
        message = "the NVIDIA driver was reloaded; its counters restart"
        return [Notice("driver_reloaded", message, "warning")] if mine else []

    def _open(self) -> _Opened:
        if self._opened is not None and self._opened.device.generation == self._driver.generation:
            return self._opened
        self._drop()
        if not self._holding:
            self._holding = True
            self._driver.hold()
        try:
            generation = self._driver.connect()
            if self.identity.bus_id is not None:
                handle = find_handle(self._driver, self.identity.bus_id)
            else:
                handle = self._driver.ask("nvmlDeviceGetHandleByUUID", self.identity.uuid)
            found = read_identity(self._driver, handle)
        except NvmlRefused as refusal:
            raise self._explain(refusal) from None
        if found.uuid != self.identity.uuid:
            raise UnitGone(f"{self.identity.address} is now a different GPU")
        self.identity = found
        device = NvmlDevice(self._driver, handle, generation, self._clock)
        self._opened = _Opened(device, self._clock)
        self._processes_at = self._seldom_at = float("-inf")
        self._events.register(device, found.uuid, found.index)
        return self._opened

    def _explain(self, refusal: NvmlRefused) -> Exception:
        if refusal.code in (nvml.GPU_IS_LOST, nvml.GPU_NOT_FOUND):
            return GpuLost()
        if refusal.code == nvml.UNINITIALIZED:
            return DriverRestarted()
        if refusal.code in (nvml.NOT_FOUND, nvml.INVALID_ARGUMENT):
            return UnitGone(f"GPU {self.identity.index} ({self.identity.uuid}) was removed")
        if refusal.code in (nvml.DRIVER_NOT_LOADED, nvml.LIBRARY_NOT_FOUND, nvml.VERSION_MISMATCH):
            return UnitGone(f"the NVIDIA driver was unloaded: {refusal}")
        return GpuSilent(refusal)

    def _sweep(self, started: float) -> list[Sample | Notice]:
        opened, now = self._open(), self._clock()
        device = opened.device
        device.begin()
        values = {"state": "ok", **opened.fixed, **opened.values.read(now, opened.gpm.read(now))}
        seldom, processes = (
            now - self._seldom_at >= _SELDOM_SECONDS,
            now - self._processes_at >= _PROCESS_SECONDS,
        )
        if seldom:
            self._seldom_at = now
            for name, question in (
                ("encoder_percent", "nvmlDeviceGetEncoderUtilization"),
                ("decoder_percent", "nvmlDeviceGetDecoderUtilization"),
            ):
                answer = device.ask(question)
                if answer is not None:
                    values[name] = answer[0]
            opened.refresh_slices()
        found = None
        if processes:
            self._processes_at = now
            found = opened.processes.read()
            if found is not None:
                values["process_count"] = len(found)
        device.finish()
        counters = dict(opened.values.counters)
        counted = self._events.count(self.identity.uuid)
        if counted is not None:
            values["xid_errors_total"] = counted.total
            if counted.last is not None:
                values["xid_last"] = counted.last
            counters["xid_errors_by_code_total"] = {str(code): count for code, count in counted.by_code.items()}
        state = "reset required" if device.reset_required else "ok"
        values["state"] = state
        samples = [Sample("gpu", self.identity.labels, values, started, counters)]
        samples += self._read_slices(opened, now, processes, started)
        if processes:
            self.processes = _merge(found or (), *(part.processes for part in opened.slices))
        return [*self._change(state, "needs a reset", "critical"), *samples]

    def _read_slices(self, opened: _Opened, now: float, processes: bool, started: float) -> list[Sample]:
        samples = []
        for part in opened.slices:
            try:
                values = part.read(now, processes)
            except GpuSilent:  # destroyed: the layout is read again at the next reading
                self._seldom_at = float("-inf")
                continue
            labels = {
                **self.identity.labels,
                "gpu_uuid": part.uuid,
                "gpu_name": part.name or self.identity.name,
                "mig_parent": self.identity.uuid,
                "mig_index": part.index,
            }
            samples.append(Sample("gpu", labels, values, started))
        return samples

    def _without_values(self, started: float, state: str, what: str, severity: str) -> list[Sample | Notice]:
        self._drop()
        self.processes = ()
        return [
            *self._change(state, what, severity),
            Sample("gpu", self.identity.labels, {"state": state}, started),
        ]

    def _change(self, state: str, what: str, severity: str) -> list[Notice]:
        """One notice when the state becomes another one, none while it stays."""
        if state == self._state:
            return []
        before, self._state = self._state, state
        gpu = f"GPU {self.identity.index} ({self.identity.name})"
        labels = {"gpu_uuid": self.identity.uuid, "gpu_index": self.identity.index}
        if state == "ok":
            return [Notice("gpu_recovered", f"{gpu} is back (was {before})", "info", labels)]
        return [Notice(f"gpu_{state.replace(' ', '_')}", f"{gpu} {what}", severity, labels)]

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def close(self) -> None:
        self._drop()
        if self._holding:
            self._holding = False
            self._driver.release()


class MissingGpu:
    """A GPU that is there but cannot be named yet: lost, asleep or hanging since before the agent started."""

    def __init__(self, driver: Driver, place: int | str, state: str, why: str, sysfs_root: str) -> None:
        self.key = f"nvidia:{place}"
        self._driver = driver
        self._place = place
        self._state = state
        self._why = why
        self._sysfs_root = sysfs_root
        self._noticed = False

    def read(self) -> list[Sample | Notice]:
        started = time.time()
        asleep = isinstance(self._place, str) and pci.is_asleep(self._sysfs_root, pci.parse_address(self._place))
        if not asleep:
            try:
                identify(self._driver, self._place)
            except NvmlRefused:
                pass
            else:
                raise UnitGone(f"GPU {self._place} is responding again")
        labels: dict[str, Value] = {"vendor": "nvidia"}
        if isinstance(self._place, int):
            labels["gpu_index"] = self._place
        else:
            labels["pci"] = self._place
        notices: list[Sample | Notice] = []
        if not self._noticed:
            self._noticed = True
            severity = "info" if asleep else "critical"
            notices.append(
                Notice(f"gpu_{self._state.replace(' ', '_')}", f"GPU {self._place} {self._why}", severity, labels)
            )
        return [*notices, Sample("gpu", labels, {"state": self._state}, started)]

    def close(self) -> None:
        """Holds nothing."""


def _merge(*lists: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """Each process once; the whole GPU's list, given first, knows more than the slices', but not which slice it is."""
    merged: dict[int, GpuProcess] = {}
    for processes in lists:
        for process in processes:
            merged[process.pid] = replace(merged.get(process.pid, process), part=process.part)
    return tuple(merged.values())
