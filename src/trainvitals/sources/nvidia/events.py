"""Xid errors and double bit ECC errors, reported by the driver as they happen.

Every GPU registers itself from its own thread, so one that hangs keeps nobody from being heard; one further
thread waits for events of the driver.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainvitals.conditions.xids import find_xid
from trainvitals.sources import Notice
from trainvitals.sources.nvidia.nvml import TIMEOUT, Driver, NvmlDevice, NvmlRefused

_DOUBLE_BIT_ECC, _XID = 0x2, 0x8
_WAIT_MILLISECONDS = 500


@dataclass(frozen=True, slots=True)
class XidCounts:
    """The Xid errors of one GPU so far."""

    by_code: Mapping[int, int] = field(default_factory=dict)
    last: int | None = None

    @property
    def total(self) -> int:
        return sum(self.by_code.values())

    def add(self, code: int) -> XidCounts:
        return XidCounts({**self.by_code, code: self.by_code.get(code, 0) + 1}, code)


class Events:
    """The events of all GPUs of this machine, counted since the agent started."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._lock = threading.Lock()  # never held during a question to a GPU
        self._set: Any = None
        self._generation = 0
        self._gpus: dict[int, tuple[str, int]] = {}  # address of the handle -> uuid, index
        self._asked: set[str] = set()  # uuids, in this generation
        self._counts: dict[str, XidCounts] = {}
        self._refused: list[int] = []
        self._noticed: set[int] = set()
        self._arrived: deque[Notice] = deque()

    def register(self, device: NvmlDevice, uuid: str, index: int) -> None:
        """Listen to this GPU. Called from the GPU's own thread; a refusal is reported by `drain`, once."""
        try:
            event_set = self._set_for(device.generation)
        except NvmlRefused:
            event_set = None
        with self._lock:
            if uuid in self._asked:
                return  # a second registration may make every event come twice
        wanted = (device.ask("nvmlDeviceGetSupportedEventTypes") or 0) & (_XID | _DOUBLE_BIT_ECC)
        heard = (
            event_set is not None
            and wanted
            and device.fill(("events",), "nvmlDeviceRegisterEvents", ctypes.c_ulonglong(wanted), event_set)
        )
        address = ctypes.cast(device.handle, ctypes.c_void_p).value
        with self._lock:
            self._asked.add(uuid)
            if heard and address is not None:
                self._gpus[address] = (uuid, index)
                self._counts.setdefault(uuid, XidCounts())
            elif index not in self._noticed:
                self._noticed.add(index)
                self._refused.append(index)

    def _set_for(self, generation: int) -> Any:
        with self._lock:
            if self._set is None or self._generation != generation:
                self._set = self.driver.ask("nvmlEventSetCreate")
                self._generation = generation
                self._gpus = {}
                self._asked = set()
            return self._set

    def count(self, uuid: str) -> XidCounts | None:
        """None for a GPU that is not listened to."""
        with self._lock:
            return self._counts.get(uuid)

    def wait(self, stop: threading.Event) -> None:
        """Collect what arrives until `stop`: the body of the listening thread."""
        while not stop.is_set():
            with self._lock:
                event_set = self._set if self._generation == self.driver.generation else None
            if event_set is None:
                stop.wait(0.2)
                continue
            self.driver.hold()  # NVML must not be shut down by other code during the wait
            try:
                event = self.driver.ask("nvmlEventSetWait_v2", event_set, _WAIT_MILLISECONDS)
            except NvmlRefused as refusal:
                if refusal.code != TIMEOUT:
                    stop.wait(1.0)  # a lost GPU or a reloaded driver: the GPUs register again when they are back
                continue
            finally:
                self.driver.release()
            self._arrived.append(self._take(event, time.time()))

    def _take(self, event: Any, now: float) -> Notice:
        address = ctypes.cast(event.device, ctypes.c_void_p).value
        with self._lock:
            uuid, index = self._gpus.get(address or 0, (None, None))
            if uuid is not None and event.eventType == _XID:
                self._counts[uuid] = self._counts[uuid].add(int(event.eventData))
        gpu = "a GPU" if index is None else f"GPU {index}"
        labels = {} if uuid is None else {"gpu_uuid": uuid, "gpu_index": index}
        if event.eventType != _XID:
            return Notice("ecc_error", f"{gpu}: double-bit ECC error", "critical", labels, now)
        code = int(event.eventData)
        xid = find_xid(code)
        return Notice("xid", f"{gpu}: Xid {code}: {xid.meaning}", xid.severity, {**labels, "xid": code}, now)

    def drain(self) -> list[Notice]:
        """What arrived since the last call, oldest first, and once which GPUs cannot be listened to."""
        notices = []
        with self._lock:
            refused, self._refused = sorted(self._refused), []
        if refused:
            gpus = ", ".join(map(str, refused))
            message = f"the driver does not report Xid errors for GPU {gpus}; look for NVRM lines in `dmesg`"
            notices.append(Notice("xid_unavailable", message, "info", {"gpu_index": refused}))
        while self._arrived:
            notices.append(self._arrived.popleft())
        return notices


class EventsUnit:
    """Hands on the events. Its own thread waits for them, so `read` never blocks."""

    key = "nvidia:events"

    def __init__(self, events: Events) -> None:
        self._events = events
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> list[Notice]:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._events.wait, args=(self._stop,), name="nvidia-events", daemon=True
            )
            self._thread.start()
        return self._events.drain()

    def close(self) -> None:
        self._stop.set()
