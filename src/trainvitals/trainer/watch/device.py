"""Time and memory of the device that the model lives on, without ever waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from trainvitals.trainer.watch.clock import StepMarks


class DeviceTimer:
    """Events on the device's current stream, reused once they have been read.

    An event is queued behind the work launched so far and gets its time when the device reaches it, so marking costs
    a few microseconds and waits for nothing. `query` tells whether it has happened; `synchronize` is never called.
    """

    def __init__(self, record: Callable[[Any], None], make: Callable[[], Any], capturing: Callable[[], bool]) -> None:
        """`make` an event, `record` it on the current stream; `capturing` a graph, into which no event may go."""
        self._record = record
        self._make = make
        self._capturing = capturing
        self._spare: deque[Any] = deque()

    def mark(self) -> Any:
        """An event recorded now; None while a CUDA graph is captured."""
        if self._capturing():
            return None
        event = self._spare.popleft() if self._spare else self._make()
        self._record(event)
        return event

    def is_complete(self, step: StepMarks) -> bool:
        """Every moment of the step was marked, so its phases can be told once they have happened."""
        return step.device_end is not None and bool(step.device) and all(event is not None for _, event in step.device)

    def has_happened(self, step: StepMarks) -> bool:
        """The device has passed the end of the step. The stream may change within a step, so each is asked."""
        return bool(step.device_end.query()) and all(event.query() for _, event in step.device)

    def recycle(self, step: StepMarks) -> None:
        """Events of a step that was read. The last one also begins the next step, so it stays out."""
        self._spare.extend(event for _, event in step.device if event is not None)


def find_timer(device: Any) -> DeviceTimer | None:
    """A timer for a torch device; None where the host's clock is the right one (CPU) or the only one (MPS, meta)."""
    if device is None or device.type not in ("cuda", "xpu"):
        return None
    import torch

    module = getattr(torch, device.type)
    capturing = torch.cuda.is_current_stream_capturing if device.type == "cuda" else bool

    def record(event: Any) -> None:
        event.record(module.current_stream(device))

    return DeviceTimer(record, lambda: module.Event(enable_timing=True), capturing)


class Arrival:
    """Numbers that were computed on a device, on their way to the host."""

    def __init__(self, tensor: Any) -> None:
        """`tensor` is flat; its copy is queued now, so a later change of it does not change what arrives."""
        if tensor.is_cpu:
            self._host, self._event = tensor, None
            return
        import torch

        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
        self._host.copy_(tensor, non_blocking=True)
        # The copy is on the current stream of its own device, which need not be the current device.
        module: Any = getattr(torch, tensor.device.type, None)
        self._event = torch.Event(tensor.device)
        if hasattr(module, "current_stream"):
            self._event.record(module.current_stream(tensor.device))
        else:
            self._event.record()

    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def tensor(self) -> Any:
        """In host memory; only when ready."""
        return self._host

    def values(self) -> list[float]:
        """Only when ready."""
        return [float(value) for value in self._host.tolist()]
