"""Converting logged values to numbers, without importing their libraries.

Python numbers pass through; numpy and CPU tensors give their item; a value that is still on a device is kept as a
`Waiting` and read when it is ready, so that logging never makes the training wait for the device.
Tested in tests/trainer/test_run.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from trainvitals.errors import name_kind
from trainvitals.handlers import is_from_handler


class Waiting(Protocol):
    """A number that a device has not computed yet."""

    def ready(self) -> bool:
        """Whether `value` can be read without waiting."""

    def value(self) -> float:
        """The number; waits for the device if it is not ready."""


class Refused(NamedTuple):
    """A value that is not a number, with a description."""

    what: str


def flatten(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as flat pairs with `/` between the keys."""
    for key, value in metrics.items():
        word = str.__str__(key) if isinstance(key, str) else key  # of a string enum, the value
        name = f"{prefix}{word}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}/")
        else:
            yield name, value


def convert(value: Any) -> float | int | Waiting | Refused | None:
    """One value as a number, as pending, or as refused. None stays None: nothing was measured."""
    if value is None:
        return None
    kind = type(value)
    if kind is float or kind is int:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return int(value)
    if isinstance(value, (str, bytes)):
        return Refused(f"a string of {len(value)} characters")
    if isinstance(value, (list, tuple, set, frozenset)):
        return Refused(f"{name_kind(value)} of {len(value)} items")
    try:
        return _convert_array(value)
    except Exception as error:
        if is_from_handler(error):
            raise
        # Foreign code (a tensor's own methods) runs here, inside the user's loop.
        return Refused(f"{kind.__module__}.{kind.__qualname__}, which could not be read: {error!r:.200}")


def _convert_array(value: Any) -> float | int | Waiting | Refused:
    kind = type(value)
    shape = getattr(value, "shape", ())
    size = 1
    for length in shape:
        size *= int(length)
    if size != 1:
        return Refused(f"{name_kind(value)} of shape {tuple(int(n) for n in shape)}")
    if kind.__module__.partition(".")[0] == "torch" and hasattr(value, "is_cpu"):
        if value.is_complex():
            return Refused("a complex number")
        if not value.is_cpu:
            return TorchWaiting(value)
    elif hasattr(value, "is_ready") and not value.is_ready():
        return ArrayWaiting(value)  # a JAX array still being computed; it never changes, so it is simply kept
    if hasattr(value, "item"):
        value = value.item()
    elif hasattr(value, "numpy"):
        value = value.numpy().item()
    if isinstance(value, int):
        return int(value)  # of a subclass too: only Python's own numbers are written as numbers
    if isinstance(value, float) or (hasattr(value, "__float__") and not isinstance(value, complex)):
        return float(value)
    return Refused(name_kind(value))


class TorchWaiting:
    """A one-element tensor on a device: copied to the host behind everything queued so far, read when it arrived.

    The copy is queued now, so later in-place changes of the tensor do not change what was logged.
    """

    def __init__(self, tensor: Any) -> None:
        import torch

        source = tensor.detach().reshape(())
        pinned = tensor.device.type == "cuda"
        self._host = torch.empty((), dtype=source.dtype, pin_memory=pinned)
        self._host.copy_(source, non_blocking=True)
        self._event = torch.Event(tensor.device)
        self._event.record()

    def ready(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        self._event.synchronize()
        return float(self._host.item())


class ArrayWaiting:
    """An array whose library reports when it is ready."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def ready(self) -> bool:
        return bool(self._array.is_ready())

    def value(self) -> float:
        return float(self._array.item())
