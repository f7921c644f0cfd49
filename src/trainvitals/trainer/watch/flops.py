"""Floating point operations of a forward pass, counted once, and what the card could do at most."""

from __future__ import annotations

from importlib import import_module
from typing import Any

BACKWARD_FACTOR = 3
"""Forward and backward together, in forwards: the backward multiplies twice for every multiplication forward."""

# Dense FLOP/s with 16-bit inputs and 32-bit sums, from the makers' data sheets; the longest name that fits counts.
_PEAKS = {
    "V100": 125e12,
    "T4": 65e12,
    "A10": 125e12,
    "A40": 149.7e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "H100": 989.4e12,
    "H100 PCIe": 756e12,
    "H200": 989.4e12,
    "B200": 2250e12,
    "RTX 3090": 71e12,
    "RTX 4090": 165.2e12,
    "MI250X": 383e12,
    "MI300X": 1307.4e12,
}


def peak_flops(device_name: str) -> float | None:
    """The card's peak, or None for one that is not in the table: say `peak_flops=`."""
    padded = f" {device_name} ".replace("-", " ")
    fitting = [name for name in _PEAKS if f" {name} " in padded]
    return _PEAKS[max(fitting, key=len)] if fitting else None


def read_device_name(device: Any) -> str:
    """The name of a CUDA device, else empty."""
    if device is None or device.type != "cuda":
        return ""
    return str(import_module("torch").cuda.get_device_name(device))


def make_counter() -> Any:
    """A context that adds up the FLOPs of the operations inside it in `.flops`; results are untouched."""
    dispatch = import_module("torch.utils._python_dispatch")
    registry = import_module("torch.utils.flop_counter").flop_registry

    class Counter(dispatch.TorchDispatchMode):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.flops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            formula = registry.get(func._overloadpacket)
            if formula is not None:
                self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
            return result

    return Counter()
