"""The door to the driver: every question to NVML, and every way it can refuse, goes through here.

The library is loaded and initialized once per process, not per sample. No lock is held while a GPU is asked,
so a GPU that hangs harms nobody else. Numbers below are NVML's public ABI; they are spelled out because an
older `nvidia-ml-py` lacks the newer names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
NO_DATA = 21
ARGUMENT_VERSION_MISMATCH = 25
GPU_NOT_FOUND = 28
UNKNOWN = 999

_WORDS = {
    UNINITIALIZED: "the library is not initialized",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission",
    NOT_FOUND: "not found",
    INSUFFICIENT_SIZE: "buffer too small",
    8: "a power cable is not connected",
    DRIVER_NOT_LOADED: "the driver is not loaded",
    TIMEOUT: "timed out",
    11: "interrupt problem",
    LIBRARY_NOT_FOUND: "the driver library was not found",
    FUNCTION_NOT_FOUND: "not available in this driver",
    14: "the card's infoROM is corrupted",
    GPU_IS_LOST: "the GPU has fallen off the bus",
    RESET_REQUIRED: "the GPU needs a reset",
    17: "the operating system blocked the request",
    VERSION_MISMATCH: "driver and library versions differ",
    19: "in use",
    20: "out of memory",
    NO_DATA: "no data",
    22: "ECC is not supported on this virtual GPU",
    23: "out of resources",
    24: "not supported at this frequency",
    ARGUMENT_VERSION_MISMATCH: "structure version mismatch with this driver",
    26: "deprecated",
    27: "not ready",
    GPU_NOT_FOUND: "no such GPU",
    29: "invalid state",
    UNKNOWN: "unknown error",
}

# A refusal that will not change by itself soon: not asked again for REFUSAL_SECONDS.
_LASTING = frozenset(
    (
        INVALID_ARGUMENT,
        NOT_SUPPORTED,
        NO_PERMISSION,
        FUNCTION_NOT_FOUND,
        14,
        22,
        24,
        ARGUMENT_VERSION_MISMATCH,
        26,
    )
)
REFUSAL_SECONDS = 300.0

# Called without the binding's wrapper, to keep one buffer instead of making one per call.
_DIRECT = frozenset(
    (
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
    )
)


class NvmlRefused(Exception):
    """NVML answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(_WORDS.get(code, f"NVML error {code}"))
        self.code = code


class DriverRestarted(Exception):
    """The library lost its initialization (the driver was reloaded): handles of before are void."""


class GpuLost(Exception):
    """This GPU fell off the bus; the others are not touched by that."""


class GpuSilent(Exception):
    """Not one question of a whole reading was answered."""

    def __init__(self, last: NvmlRefused | None) -> None:
        super().__init__(str(last or "no answer"))
        self.code = last.code if last else 0


class Driver:
    """NVML in this process. `generation` grows with every initialization; a handle is good for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # around initialization and shutdown only, never around a GPU call
        self._binding: Any = None
        self._connected = False
        self._holders = 0
        self.generation = 0

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def binding(self) -> Any:
        """The `pynvml` module, for its structure types; import it only through `connect`."""
        return self._binding

    def connect(self) -> int:
        """Initialise NVML unless it is. Raises Refused with nvmlInit's code, or ImportError."""
        with self._lock:
            if not self._connected:
                self._start()
            return self.generation

    def reconnect(self, seen: int) -> bool:
        """Reinitialize NVML unless that was done since generation `seen`; True if this call did it."""
        with self._lock:
            if self._connected and self.generation != seen:
                return False
            self._stop()
            self._start()
            return True

    def hold(self) -> None:
        """Keep NVML initialized until the matching `release`."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """The last one out shuts NVML down, so that a laptop's GPU may fall asleep."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._stop()

    def _start(self) -> None:
        import pynvml  # tens of milliseconds, and of no use on a machine without NVIDIA

        self._binding = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlRefused(error.value) from None
        self._connected = True
        self.generation += 1

    def _stop(self) -> None:
        if not self._connected:
            return
        self._connected = False
        try:
            self._binding.nvmlShutdown()
        except self._binding.NVMLError:
            pass  # a driver that was unloaded cannot be shut down; reinitializing is what matters

    def ask(self, question: str, *arguments: Any) -> Any:
        """One call of the NVML function named `question`: its answer (True for a call that fills a buffer).
        Raises Refused with the code otherwise."""
        binding = self._binding
        if question in _DIRECT:
            try:
                function = getattr(binding.nvmlLib, question)
            except AttributeError:
                raise NvmlRefused(FUNCTION_NOT_FOUND) from None
            code = function(*arguments)
            if code:
                raise NvmlRefused(code)
            return True
        function = getattr(binding, question, None)
        if function is None:
            raise NvmlRefused(FUNCTION_NOT_FOUND)
        try:
            return function(*arguments)
        except binding.NVMLError as error:
            raise NvmlRefused(error.value) from None
        except UnicodeDecodeError:  # a name that is not text, seen on broken virtual GPUs
            raise NvmlRefused(NO_DATA) from None

    def answers(self) -> bool:
        """Whether the library itself, no GPU involved, still answers."""
        try:
            self.ask("nvmlSystemGetDriverVersion")
        except NvmlRefused:
            return False
        return True


DRIVER = Driver()
"""The one of this process: NVML's own state is process-wide too."""


class NvmlDevice:
    """One GPU or MIG slice in one driver generation, and what it has refused so far."""

    def __init__(self, driver: Driver, handle: Any, generation: int, clock: Callable[[], float]) -> None:
        self.driver = driver
        self.handle = handle
        self.generation = generation
        self.reset_required = False
        self.last_code = 0
        """The code of the last refusal, 0 after an answer."""
        self._clock = clock
        self._refused: dict[tuple[Any, ...], float] = {}
        self._answered = 0
        self._last_refusal: NvmlRefused | None = None

    def ask(self, question: str, *arguments: Any) -> Any:
        """The answer, or None when this GPU does not give it; what it refused is not asked for a while.

        Raises GpuLost and DriverRestarted, the two refusals that are about more than one value.
        """
        key = (question, *arguments)
        return self.fill(key, question, *arguments)

    def fill(self, key: tuple[Any, ...], question: str, *arguments: Any) -> Any:
        """Like `ask`, with a separate name under which a refusal is remembered: buffers make poor keys."""
        self.last_code = 0
        until = self._refused.get(key)
        if until is not None:
            if self._clock() < until:
                return None
            del self._refused[key]
        try:
            answer = self.driver.ask(question, self.handle, *arguments)
        except NvmlRefused as refusal:
            self._take(key, refusal)
            return None
        self._answered += 1
        return answer

    def first(self, *questions: tuple[Any, ...]) -> Any:
        """The first answer of several ways to ask for the same thing, newest first."""
        for question in questions:
            answer = self.ask(*question)
            if answer is not None:
                return answer
        return None

    def _take(self, key: tuple[Any, ...], refusal: NvmlRefused) -> None:
        code = refusal.code
        if code == UNINITIALIZED:
            raise DriverRestarted from None
        if code in (GPU_IS_LOST, GPU_NOT_FOUND):
            raise GpuLost from None
        if code == RESET_REQUIRED:
            self.reset_required = True
        elif code in _LASTING:
            self._refused[key] = self._clock() + REFUSAL_SECONDS
        self.last_code = code
        self._last_refusal = refusal

    def begin(self) -> None:
        """Start counting answers for one reading."""
        self._answered = 0
        self.reset_required = False

    def finish(self) -> None:
        """Raise GpuSilent if nothing was answered since `begin`: the handle is void or the GPU is stuck."""
        if not self._answered and not self.reset_required:
            raise GpuSilent(self._last_refusal)


def known(value: int, bits: int) -> int | None:
    """`value`, or None for the all-ones marker that NVML uses for an unknown value."""
    return None if value == (1 << bits) - 1 else value
