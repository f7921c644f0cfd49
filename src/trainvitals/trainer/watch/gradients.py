"""Norms of gradients, weights and updates, computed where the tensors are and never waited for.

On a CPU the numbers are there at once; on a device they are one small vector that is copied to the host behind the
work queued so far (`Arrival`) and read when it has come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from trainvitals.trainer.watch.device import Arrival

SAMPLE = 1024
"""Elements of a parameter that the update ratio is estimated from: a copy of all weights might not fit."""


class Unseen(Exception):
    """Something that cannot be measured, in words."""


def plain(tensor: Any) -> Any:
    """A dense real tensor with the same norm, or Unseen. Of a sharded tensor, this rank's part."""
    tensor = tensor.detach()
    if tensor.is_cpu and tensor.is_floating_point() and not tensor.is_sparse and not hasattr(tensor, "to_local"):
        return tensor  # nearly always, on a CPU
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        if not tensor.is_cpu:
            raise Unseen("sparse gradients on a device: adding them up would wait for the device")
        tensor = tensor.coalesce().values()
    if tensor.device.type == "meta":
        raise Unseen("tensors on the meta device have no values")
    if tensor.is_complex():
        tensor = import_module("torch").view_as_real(tensor.resolve_conj())
    return tensor


def norms(tensors: Sequence[Any]) -> list[Any]:
    """The L2 norm of each tensor, one fused call per device and type; half precision is added up in single."""
    torch = import_module("torch")
    groups: dict[tuple[Any, Any], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    found: list[Any] = [None] * len(tensors)
    for (_, dtype), indices in groups.items():
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        members = [tensors[index] for index in indices]
        if not dtype.is_floating_point:
            members = [member.to(wide) for member in members]
        for index, norm in zip(indices, torch._foreach_norm(members, 2.0, dtype=wide), strict=True):
            found[index] = norm
    return found


def largest(tensors: Sequence[Any]) -> list[Any]:
    """The largest absolute value in each tensor."""
    torch = import_module("torch")
    found = []
    for tensor in tensors:
        if not tensor.numel():
            found.append(tensor.new_zeros(()))
        else:  # fifteen times faster on a CPU than the infinity norm
            low, high = torch.aminmax(tensor)
            found.append(torch.maximum(-low, high))
    return found


def total_norm(gradients: Sequence[Any]) -> Any:
    """The norm of all together, as a tensor of one element."""
    torch = import_module("torch")
    each = norms(gradients)
    if len(each) == 1:
        return each[0]
    device = each[0].device
    return torch.linalg.vector_norm(torch.stack([norm.to(device, non_blocking=True).float() for norm in each]))


class LayerNumbers(NamedTuple):
    """One layer at one step."""

    gradient_norm: float | None
    """None if no parameter of the layer had a gradient."""
    gradient_max: float | None
    weight_norm: float
    update_ratio: float | None
    nan: int
    infinite: int


class LayerSample:
    """A look at every layer around one optimizer step: `begin` before it, `end` after it, then `numbers`."""

    def __init__(self, layers: dict[str, list[Any]]) -> None:
        self._layers = layers
        self._sizes: dict[str, int] = {}
        self._weights: list[Any] = []
        self._filled: list[bool] = []
        self._with_gradient: list[bool] = []
        self._before: list[Any] = []
        self._columns: list[list[Any]] = []
        self._arrival: Arrival | None = None
        self.unseen: set[str] = set()

    def begin(self) -> None:
        """Before the optimizer: gradients, weights, and a sample of the weights to compare with."""
        torch = import_module("torch")
        gradients: list[Any] = []
        for name, parameters in self._layers.items():
            for parameter in parameters:
                try:
                    weight = plain(parameter)
                    gradient = None if parameter.grad is None else plain(parameter.grad)
                except Unseen as reason:
                    self.unseen.add(f"{name}: {reason}")
                    weight = gradient = torch.zeros(0)
                self._weights.append(weight)
                self._filled.append(weight.numel() > 0)
                self._with_gradient.append(gradient is not None and weight.numel() > 0)
                gradients.append(weight.new_zeros(0) if gradient is None else gradient)
        lengths = norms(gradients)
        self._columns = [lengths, largest(gradients), norms(self._weights)]
        # On a CPU finite norms say that there is nothing to count; a device is not asked, it just counts.
        fine = [length.is_cpu for length in lengths]
        if lengths and all(fine) and not bool(torch.stack(lengths).isfinite().all()):
            fine = [bool(length.isfinite()) for length in lengths]
        if not all(fine):
            zero = torch.zeros(())
            pairs = list(zip(gradients, fine, strict=True))
            self._columns.append([zero if skip else gradient.isnan().sum() for gradient, skip in pairs])
            self._columns.append([zero if skip else gradient.isinf().sum() for gradient, skip in pairs])
        self._before = [_sample(weight).clone() for weight in self._weights]

    def end(self) -> None:
        """After the optimizer: what the step changed."""
        torch = import_module("torch")
        after = [_sample(weight) for weight in self._weights]
        self._columns.append(norms(torch._foreach_sub(after, self._before)))
        self._columns.append(norms(self._before))
        device = next((w.device for w in self._weights if not w.is_cpu), torch.device("cpu"))
        mixed = any(w.device != device for w in self._weights)
        if mixed:
            self._columns = [[v.to(device, non_blocking=True) for v in column] for column in self._columns]
        if len({value.dtype for column in self._columns for value in column}) > 1:
            self._columns = [[value.double() for value in column] for column in self._columns]
        self._arrival = Arrival(torch.stack([value for column in self._columns for value in column]))
        # Only numbers are kept from here on: a line that waits must not keep a model alive.
        self._sizes = {name: len(parameters) for name, parameters in self._layers.items()}
        self._columns, self._before, self._weights, self._layers = [], [], [], {}

    def ready(self) -> bool:
        return self._arrival is not None and self._arrival.ready()

    def numbers(self) -> dict[str, LayerNumbers]:
        """By layer; only when ready."""
        assert self._arrival is not None
        values = self._arrival.values()
        count = sum(self._sizes.values())
        columns = [values[start : start + count] for start in range(0, len(values), count)]
        gradient, highest, weight, *counted, change, old = columns
        nan, infinite = counted or ([0.0] * count, [0.0] * count)
        found, start = {}, 0
        for name, size in self._sizes.items():
            span = range(start, start + size)
            start += size
            if not any(self._filled[index] for index in span):
                continue  # what could not be seen, or a shard without elements
            seen = [index for index in span if self._with_gradient[index]]
            moved, stood = _together(change, span), _together(old, span)
            found[name] = LayerNumbers(
                gradient_norm=_together(gradient, seen) if seen else None,
                gradient_max=_largest(highest, seen) if seen else None,
                weight_norm=_together(weight, span),
                update_ratio=moved / stood if seen and stood else None,
                nan=sum(int(nan[index]) for index in seen),
                infinite=sum(int(infinite[index]) for index in seen),
            )
        return found


def _sample(weight: Any) -> Any:
    flat = weight.reshape(-1)
    return flat[:: max(flat.numel() // SAMPLE, 1)]


def _together(values: Sequence[float], indices: Sequence[int]) -> float:
    return math.sqrt(sum(values[index] * values[index] for index in indices))


def _largest(values: Sequence[float], indices: Sequence[int]) -> float:
    picked = [values[index] for index in indices]
    return math.nan if any(value != value for value in picked) else max(picked)
