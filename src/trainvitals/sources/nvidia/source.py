"""Finding the NVIDIA GPUs of this machine, and saying why when there are none."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainvitals.sources import SourceUnavailable, Unit, World, pci_vendor
from trainvitals.sources.nvidia import nvml, pci
from trainvitals.sources.nvidia.events import Events, EventsUnit
from trainvitals.sources.nvidia.gpu import GpuUnit, Identity, MissingGpu, find_handle, identify, trouble_state
from trainvitals.sources.nvidia.mig import read_slices
from trainvitals.sources.nvidia.nvml import Driver, DriverRestarted, GpuLost, NvmlDevice, NvmlRefused
from trainvitals.sources.nvidia.values import read_fixed, read_memory
from trainvitals.sources.sysfs import list_displays

# What helps, in words, and what to type.
_HELP: dict[int, tuple[str, str | None]] = {
    nvml.DRIVER_NOT_LOADED: (
        "`sudo modprobe nvidia` loads it; `sudo dmesg | grep -i nvrm` shows what is wrong",
        "sudo modprobe nvidia",
    ),
    nvml.LIBRARY_NOT_FOUND: ("install the NVIDIA driver; in a container start it with `--gpus all`", None),
    nvml.VERSION_MISMATCH: ("the driver was upgraded while loaded: reboot, or reload the nvidia modules", None),
    nvml.NO_PERMISSION: (
        "no permission to open /dev/nvidia*: check `ls -l /dev/nvidia*`",
        "ls -l /dev/nvidia*",
    ),
}


def create(world: World) -> NvidiaSource:
    return NvidiaSource(world)


class NvidiaSource:
    """One unit per GPU, and one for the driver's events.

    `patience` is how many seconds a GPU that hangs may delay the finding of the others.
    """

    name = "nvidia"

    def __init__(
        self,
        world: World,
        driver: Driver = nvml.DRIVER,
        clock: Callable[[], float] = time.monotonic,
        patience: float = 3.0,
    ) -> None:
        self._sysfs_root = world.sysfs_root
        self._driver = driver
        self._clock = clock
        self._patience = patience
        self._events = Events(driver)
        self._known: dict[int | str, Identity] = {}  # by index and by PCI address
        self._addresses: tuple[str, ...] | None = None
        self._busy: dict[int | str, threading.Thread] = {}

    def discover(self) -> Sequence[Unit]:
        addresses = tuple(list_displays(self._sysfs_root, pci_vendor(self.name)))
        asleep = [address for address in addresses if pci.is_asleep(self._sysfs_root, address)]
        if addresses and len(asleep) == len(addresses) and not self._driver.connected:
            raise SourceUnavailable(
                f"the NVIDIA GPU is asleep ({', '.join(asleep)}) and will not be woken up; it is read while in use",
                kind="asleep",
            )
        self._connect(addresses)
        units: list[Unit] = []
        if asleep:
            places: list[int | str] = [address for address in addresses if address not in asleep]
        else:
            places = list(range(self._count(addresses)))
        answers = self._ask_each(places, lambda place: identify(self._driver, place))
        for place in places:
            unit = self._unit(place, answers.get(place))
            if unit is not None:
                units.append(unit)
        for address in asleep:
            known = self._known.get(address)
            if known is not None:
                units.append(self._gpu(known))
            else:
                units.append(self._missing(address, "asleep", "is asleep and will not be woken up"))
        self._known = {
            place: unit.identity
            for unit in units
            if isinstance(unit, GpuUnit)
            for place in (unit.identity.index, unit.identity.address)
            if place is not None
        }
        if not units:
            raise SourceUnavailable(
                "the NVIDIA driver is loaded but reports no GPU; check `nvidia-smi -L`",
                kind="broken",
                command="nvidia-smi -L",
            )
        return [*units, EventsUnit(self._events)]

    def describe(self) -> Mapping[str, object]:
        """Driver and CUDA version, and the fixed facts of each GPU; empty when there is no driver."""
        try:
            self.discover()
        except SourceUnavailable:
            return {}
        known = {identity.uuid: identity for identity in self._known.values()}
        awake = {
            identity.index: identity
            for identity in known.values()
            if not pci.is_asleep(self._sysfs_root, identity.address)
        }
        details = self._ask_each(list(awake), self._details)
        gpus = [
            {
                "index": identity.index,
                "uuid": identity.uuid,
                "name": identity.name,
                "pci": identity.address,
                **(found if isinstance(found := details.get(identity.index), dict) else {}),
            }
            for identity in sorted(known.values(), key=lambda identity: identity.index)
        ]
        facts: dict[str, object] = {"gpus": gpus}
        for name, question in (
            ("driver_version", "nvmlSystemGetDriverVersion"),
            ("cuda_version", "nvmlSystemGetCudaDriverVersion"),
        ):
            try:
                facts[name] = self._driver.ask(question)
            except NvmlRefused:
                continue
        cuda = facts.get("cuda_version")
        if isinstance(cuda, int):
            facts["cuda_version"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return facts

    def _connect(self, addresses: tuple[str, ...]) -> None:
        try:
            generation = self._driver.connect()
            appeared = self._addresses is not None and set(addresses) - set(self._addresses)
            if appeared:  # NVML keeps the list of GPUs that it made when it was initialized
                self._driver.reconnect(generation)
        except (NvmlRefused, ImportError) as error:
            raise _unavailable(error, addresses) from None
        self._addresses = addresses

    def _count(self, addresses: tuple[str, ...]) -> int:
        try:
            return int(self._driver.ask("nvmlDeviceGetCount"))
        except NvmlRefused:
            pass  # the driver was reloaded since the last time
        try:
            self._driver.reconnect(self._driver.generation)
            return int(self._driver.ask("nvmlDeviceGetCount"))
        except NvmlRefused as refusal:
            raise _unavailable(refusal, addresses) from None

    def _unit(self, place: int | str, answer: Any) -> Unit | None:
        if isinstance(answer, Identity):
            return self._gpu(answer)
        if isinstance(answer, NvmlRefused) and answer.code in (nvml.NOT_FOUND, nvml.INVALID_ARGUMENT):
            return None  # a GPU that this container may not see, or one removed this moment
        known = self._known.get(place)
        if known is not None:
            return self._gpu(known)  # its own reading shows what is wrong with it
        if answer is None:
            return self._missing(place, "failing", "is not responding")
        return self._missing(place, trouble_state(answer.code), f"cannot be read: {answer}")

    def _gpu(self, identity: Identity) -> GpuUnit:
        return GpuUnit(self._driver, identity, self._events, self._sysfs_root, self._clock)

    def _missing(self, place: int | str, state: str, why: str) -> MissingGpu:
        return MissingGpu(self._driver, place, state, why, self._sysfs_root)

    def _ask_each(self, places: Sequence[int | str], question: Callable[[int | str], Any]) -> dict[int | str, Any]:
        """The answer (or the Refused) of each place that answers in time, asked side by side.

        A place that hangs keeps its thread and is not asked again before that returns.
        """
        answers: queue.SimpleQueue[tuple[int | str, Any]] = queue.SimpleQueue()

        def work(place: int | str) -> None:
            try:
                answers.put((place, question(place)))
            except NvmlRefused as refusal:
                answers.put((place, refusal))

        waiting = 0
        for place in places:
            if place in self._busy and self._busy[place].is_alive():
                continue
            self._busy[place] = threading.Thread(target=work, args=(place,), name=f"nvidia-find-{place}", daemon=True)
            self._busy[place].start()
            waiting += 1
        found: dict[int | str, Any] = {}
        deadline = time.monotonic() + self._patience
        while len(found) < waiting:
            try:
                place, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            found[place] = answer
        return found

    def _details(self, place: int | str) -> dict[str, object]:
        device = NvmlDevice(self._driver, find_handle(self._driver, place), self._driver.generation, self._clock)
        try:
            return read_details(device, self._clock)
        except (GpuLost, DriverRestarted):
            return {}


def read_details(device: NvmlDevice, clock: Callable[[], float]) -> dict[str, object]:
    """The fixed facts of one GPU: memory, limits, capability, link, MIG slices."""
    facts: dict[str, object] = dict(read_fixed(device))
    memory = read_memory(device)
    if "memory_total_mb" in memory:
        facts["memory_total_mb"] = memory["memory_total_mb"]
    for name, question in (
        ("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit"),
        ("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit"),
    ):
        milliwatts = device.ask(question)
        if milliwatts is not None:
            facts[name] = milliwatts / 1000
    constraints = device.ask("nvmlDeviceGetPowerManagementLimitConstraints")
    if constraints is not None:
        facts["power_limit_min_watts"], facts["power_limit_max_watts"] = (limit / 1000 for limit in constraints)
    capability = device.ask("nvmlDeviceGetCudaComputeCapability")
    if capability is not None:
        facts["compute_capability"] = f"{capability[0]}.{capability[1]}"
    for name, question in (
        ("serial", "nvmlDeviceGetSerial"),
        ("minor", "nvmlDeviceGetMinorNumber"),
        ("vbios", "nvmlDeviceGetVbiosVersion"),
    ):
        answer = device.ask(question)
        if answer is not None:
            facts[name] = answer
    slices = [
        {
            "index": index,
            "uuid": uuid,
            "gpu_instance": part.ask("nvmlDeviceGetGpuInstanceId"),
            "compute_instance": part.ask("nvmlDeviceGetComputeInstanceId"),
        }
        for index, uuid, part in read_slices(device, clock)
    ]
    if slices:
        facts["mig"] = slices
    return facts


def _unavailable(error: NvmlRefused | ImportError, addresses: tuple[str, ...]) -> SourceUnavailable:
    if isinstance(error, ImportError):
        command = "pip install nvidia-ml-py"
        text = f"the Python package nvidia-ml-py is missing; `{command}`"
        return SourceUnavailable(text, kind="broken", command=command)
    advice, to_type = _HELP.get(error.code, ("`nvidia-smi` should show the same error", None))
    if error.code == nvml.LIBRARY_NOT_FOUND and not addresses:
        return SourceUnavailable(f"no NVIDIA GPU or driver found; if there is one: {advice}")
    seen = f" (the machine has an NVIDIA GPU at {', '.join(addresses)})" if addresses else ""
    return SourceUnavailable(f"NVIDIA: {error}{seen}; {advice}", kind="broken", command=to_type)
