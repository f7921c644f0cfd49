"""Norms of gradients, weights and updates, computed where the tensors are and never waited for.

On a CPU the numbers are there at once; on a device they are one small vector that is copied to the host behind the
work queued so far (`Arrival`) and read when it has come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from typing import Any, NamedTuple

from trainvitals.trainer.watch.device import Arrival

SAMPLE = 512
"""Elements of a parameter that the update ratio is estimated from: a copy of all weights might not fit."""


class Unseen(Exception):
    """Something that cannot be measured, in words."""


@cache
def _ordinary() -> tuple[type, ...]:
    """Classes of tensors that are neither sharded nor wrapped."""
    import torch

    return (torch.Tensor, torch.nn.Parameter)


def plain(tensor: Any) -> Any:
    """A dense real tensor with the same norm, or Unseen. Of a sharded tensor, this rank's part. Called without
    gradients being recorded."""
    if tensor.is_cpu and type(tensor) in _ordinary() and tensor.is_floating_point() and not tensor.is_sparse:
        return tensor  # nearly always, on a CPU
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        if not tensor.is_cpu:
            raise Unseen("sparse gradients on a device: adding them up would wait for the device")
        tensor = tensor.coalesce().values()
    if tensor.device.type == "meta":
        raise Unseen("tensors on the meta device have no values")
    if tensor.is_complex():
        import torch

        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor


def norms(tensors: Sequence[Any]) -> list[Any]:
    """The L2 norm of each tensor, one fused call per device and type; half precision is added up in single."""
    import torch

    groups: dict[tuple[Any, Any], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    found: list[Any] = [None] * len(tensors)
    for (_, dtype), indices in groups.items():
        wide = _wide(dtype)
        members = [tensors[index] for index in indices]
        if not dtype.is_floating_point:
            members = [member.to(wide) for member in members]
        for index, norm in zip(indices, torch._foreach_norm(members, 2.0, dtype=wide), strict=True):
            found[index] = norm
    return found


def total_norm(each: list[Any]) -> Any:
    """The norm of all together from the norm of each, as a tensor of one element."""
    import torch

    if len(each) == 1:
        return each[0]
    try:
        together = torch.stack(each)
    except RuntimeError:  # they are on several devices: asking each for its own first would take half as long again
        together = torch.stack([norm.to(each[0].device, non_blocking=True) for norm in each])
    return torch.linalg.vector_norm(together)


def spread(tensor: Any, count: int) -> Any:
    """`count` elements from all over a tensor, flat; all of a smaller one. A view of it where its memory is dense."""
    size = tensor.numel()
    if not tensor.is_contiguous():
        dense = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
        tensor = dense if dense.is_contiguous() else tensor.contiguous()
    return tensor.as_strided((count,), (size // count,)) if size > count else tensor.view(-1)


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
        self._groups: dict[tuple[Any, Any], _Group] = {}
        self._places: list[list[int]] = []
        self._filled: list[bool] = []
        self._with_gradient: list[bool] = []
        self._arrival: Arrival | None = None
        self.unseen: set[str] = set()

    def begin(self, lengths: Mapping[int, Any]) -> None:
        """Before the optimizer: gradients, weights, and a sample of the weights to compare with. `lengths` are norms of
        gradients that are known already, by the id of their parameter."""
        for name, parameters in self._layers.items():
            for parameter in parameters:
                gradient = parameter.grad
                try:
                    weight = plain(parameter)
                    gradient = None if gradient is None else plain(gradient)
                except Unseen as reason:
                    self.unseen.add(f"{name}: {reason}")
                    self._filled.append(False)
                    self._with_gradient.append(False)
                    continue
                filled = weight.numel() > 0
                if filled:
                    key = (weight.device, weight.dtype)
                    group = self._groups.get(key)
                    if group is None:
                        group = self._groups[key] = _Group()
                    group.add(len(self._filled), weight, gradient, lengths.get(id(parameter)))
                self._filled.append(filled)
                self._with_gradient.append(filled and gradient is not None)
        for group in self._groups.values():
            group.begin()

    def end(self) -> None:
        """After the optimizer: what the step changed."""
        import torch

        found = [group.end() for group in self._groups.values()]
        self._places = [group.places for group in self._groups.values()]
        if len(found) == 1:
            self._arrival = Arrival(found[0].view(-1))
        else:
            device = next((values.device for values in found if not values.is_cpu), torch.device("cpu"))
            flat = [values.view(-1).to(device, torch.float64, non_blocking=True) for values in found]
            self._arrival = Arrival(torch.cat(flat) if flat else torch.zeros(0))
        # Only numbers are kept from here on: a line that waits must not keep a model alive.
        self._sizes = {name: len(parameters) for name, parameters in self._layers.items()}
        self._groups, self._layers = {}, {}

    def ready(self) -> bool:
        return self._arrival is not None and self._arrival.ready()

    def numbers(self) -> dict[str, LayerNumbers]:
        """By layer; only when ready."""
        assert self._arrival is not None
        gradient, highest, weight, change, old, nan, infinite = self._columns(self._arrival.values())
        found, start = {}, 0
        for name, size in self._sizes.items():
            stop = start + size
            span = slice(start, stop)
            start = stop
            if not any(self._filled[span]):
                continue  # what could not be seen, or a shard without elements
            moved, stood = math.hypot(*change[span]), math.hypot(*old[span])
            having = self._with_gradient[span]
            if not any(having):
                found[name] = LayerNumbers(None, None, math.hypot(*weight[span]), None, 0, 0)
                continue
            highs = highest[span]
            found[name] = LayerNumbers(
                gradient_norm=math.hypot(*gradient[span]),
                gradient_max=math.nan if math.isnan(sum(highs)) else max(compress(highs, having)),
                weight_norm=math.hypot(*weight[span]),
                update_ratio=moved / stood if stood else None,
                nan=int(sum(nan[span])),
                infinite=int(sum(infinite[span])),
            )
        return found

    def _columns(self, values: list[float]) -> list[list[float]]:
        """Each of the `_Group.ROWS` for every parameter, in the order of the layers; 0 for what was not seen."""
        if len(self._places) == 1 and len(self._places[0]) == len(self._filled):
            count = len(self._filled)
            return [values[start : start + count] for start in range(0, len(values), count)]
        columns = [[0.0] * len(self._filled) for _ in range(_Group.ROWS)]
        taken = iter(values)
        for places in self._places:
            for column in columns:
                for place in places:
                    column[place] = next(taken)
        return columns


class _Group:
    """Parameters of one device and type, looked at together: a call per parameter costs as much as all its numbers."""

    ROWS = 7
    """What `end` gives: gradient norm, largest gradient, weight norm, change, weight before (both of the sample),
    NaN and infinite elements of the gradient."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self._weights: list[Any] = []
        self._gradients: list[Any] = []
        self._lengths: list[Any] = []
        self._samples: list[Any] = []
        self._tails: list[Any] = []
        self._rows: list[Any] = []
        self._before: Any = None

    def add(self, place: int, weight: Any, gradient: Any, length: Any) -> None:
        self.places.append(place)
        self._weights.append(weight)
        self._gradients.append(gradient)
        self._lengths.append(length)

    def begin(self) -> None:
        import torch

        first = self._weights[0]
        wide = _wide(first.dtype)
        zero = torch.zeros((), dtype=wide, device=first.device)
        gradients = [None if gradient is None or not gradient.numel() else gradient for gradient in self._gradients]
        missing = [
            index
            for index, (gradient, length) in enumerate(zip(gradients, self._lengths, strict=True))
            if gradient is not None and length is None
        ]
        for index, length in zip(missing, norms([gradients[index] for index in missing]), strict=True):
            self._lengths[index] = length
        lengths = torch.stack([zero if length is None else length for length in self._lengths])
        ends = [(zero, zero) if gradient is None else torch.aminmax(gradient) for gradient in gradients]
        lowest, highest = (torch.stack(side).to(wide) for side in zip(*ends, strict=True))
        self._rows = [lengths, torch.maximum(-lowest, highest), torch.stack(norms(self._weights))]
        # On a CPU finite norms say that there is nothing to count; a device is not asked, it just counts.
        if first.is_cpu and bool(lengths.isfinite().all()):
            self._rows.append(torch.zeros((2, len(gradients)), dtype=wide))
        else:
            for count in (torch.isnan, torch.isinf):
                counts = [zero if gradient is None else count(gradient).sum().to(wide) for gradient in gradients]
                self._rows.append(torch.stack(counts))
        width = min(SAMPLE, max(weight.numel() for weight in self._weights))
        padding = torch.zeros(width, dtype=first.dtype, device=first.device)
        self._tails = [padding[weight.numel() :] for weight in self._weights]
        self._samples = [spread(weight, width) for weight in self._weights]
        self._before = self._sampled()

    def _sampled(self) -> Any:
        """A row per parameter; a shorter one ends with zeros, which change no norm."""
        import torch

        pieces = [piece for pair in zip(self._samples, self._tails, strict=True) for piece in pair if piece.numel()]
        return torch.cat(pieces).view(len(self._weights), -1)

    def end(self) -> Any:
        """`ROWS` by parameters."""
        import torch

        width = self._before.shape[1]
        # What is no view of the weight has to be read again.
        self._samples = [
            sample if sample.data_ptr() == weight.data_ptr() else spread(weight, width)
            for sample, weight in zip(self._samples, self._weights, strict=True)
        ]
        wide = _wide(self._before.dtype)
        change = torch.linalg.vector_norm(self._sampled() - self._before, dim=1, dtype=wide)
        before = torch.linalg.vector_norm(self._before, dim=1, dtype=wide)
        lengths, highest, weights, *counts = self._rows
        return torch.vstack([lengths.to(wide), highest, weights, change, before, *counts])


def _wide(dtype: Any) -> Any:
    """The type in which values of `dtype` are added up."""
    import torch

    return torch.float64 if dtype == torch.float64 else torch.float32
