"""What flows through chosen modules: mean, spread, zeros, dead units, kurtosis, entropy of attention.

Modules are looked at only during the forward passes of a step that is due, so other steps pay nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from trainvitals.handlers import is_from_handler
from trainvitals.trainer.watch.device import Arrival
from trainvitals.trainer.watch.layers import matches
from trainvitals.trainer.watch.taps import look_at_parts

ELEMENTS = 1 << 12
"""About as many elements of one output are looked at: every k-th row of a larger one."""
ROWS = 16
"""Of an output with many units more is looked at, for a unit that was 0 only a few times is not dead."""
STATISTICS = ("mean", "std", "zeros", "dead", "kurtosis")


class ActivationSample:
    """One look. `place`, let the model run, `remove`, then `collect`, then `numbers` when `ready`."""

    def __init__(self, modules: Iterable[tuple[str, Any]], patterns: Sequence[str]) -> None:
        self._modules = [(name, module) for name, module in modules if name and matches(name, patterns)]
        self._rows: dict[str, Any] = {}
        self._entropies: dict[str, Any] = {}
        self._names: list[str] = []
        self._attentions: list[str] = []
        self._arrival: Arrival | None = None
        self.unseen: set[str] = set()
        self.collected = False
        self.seconds = 0.0
        """Time spent inside the model's forward."""

    @property
    def found(self) -> int:
        """How many modules the patterns mean."""
        return len(self._modules)

    def place(self) -> None:
        look_at_parts({id(module): partial(self._look, name) for name, module in self._modules})

    def remove(self) -> None:
        look_at_parts({})

    def _look(self, name: str, module: Any, output: Any) -> None:
        began = time.perf_counter()
        try:
            main = output[0] if isinstance(output, (tuple, list)) and output else output
            if hasattr(main, "is_floating_point") and main.is_floating_point() and main.numel():
                self._rows[name] = take_rows(main, units=_units(module, main))
            weights = _attention_weights(module, output)
            if weights is not None:
                self._entropies[name] = entropy(weights)
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's loop: this runs inside their forward.
            self.unseen.add(f"{name}: {error!r:.200}")
        self.seconds += time.perf_counter() - began

    def collect(self) -> None:
        """Work out what was seen, outputs of one shape together, and send it to the host."""
        self.collected = True
        import torch

        alike: dict[tuple[Any, Any], list[str]] = {}
        for name, rows in self._rows.items():
            alike.setdefault((rows.device, rows.shape), []).append(name)
        found = [describe(torch.stack([self._rows[name] for name in names])) for names in alike.values()]
        self._names = [name for names in alike.values() for name in names]
        found += self._entropies.values()
        self._attentions = list(self._entropies)
        self._rows, self._entropies = {}, {}
        if found:
            device = next((values.device for values in found if not values.is_cpu), torch.device("cpu"))
            self._arrival = Arrival(torch.cat([values.view(-1).to(device, non_blocking=True) for values in found]))

    def ready(self) -> bool:
        return self._arrival is None or self._arrival.ready()

    def numbers(self) -> dict[str, float]:
        """`activation_mean/<module>` and so on; only when ready."""
        if self._arrival is None:
            return {}
        values = iter(self._arrival.values())
        found = {f"activation_{statistic}/{name}": next(values) for name in self._names for statistic in STATISTICS}
        return found | {f"attention_entropy/{name}": next(values) for name in self._attentions}


def take_rows(output: Any, units: int) -> Any:
    """A copy of a part of an output, a row for each sample. `units` is the dimension of the units (channels,
    features). The output itself may be changed in place by what follows in the model."""
    import torch

    output = output.detach().movedim(units, -1)
    width = output.shape[-1]
    count = output.numel() // width
    wanted = max(ELEMENTS // width, ROWS)
    if not output.is_contiguous():
        output = _thin(output, wanted * width)
    elif count > wanted:  # one call instead of one per dimension
        output = output.as_strided((wanted, width), (count // wanted * width, 1))
    return output.to(torch.float32, copy=True, memory_format=torch.contiguous_format).view(-1, width)


def describe(outputs: Any) -> Any:
    """The STATISTICS of several outputs, a row for each. `outputs` is their rows; a unit is dead if it is 0 in each of
    an output's rows."""
    import torch

    flat = outputs.flatten(1)
    mean = flat.mean(dim=1, keepdim=True)
    squares = (flat - mean).square_()
    variance = squares.mean(dim=1)  # several times faster on a CPU than torch.var_mean
    # 3 for a normal distribution; NaN if all are the same
    kurtosis = torch.linalg.vector_norm(squares, dim=1).square() / flat.shape[1] / variance.square()
    zero = outputs == 0
    zeros = zero.flatten(1).sum(dim=1) / flat.shape[1]
    dead = zero.all(dim=1).float().mean(dim=1)
    return torch.stack([mean.view(-1), variance.sqrt(), zeros, dead, kurtosis], dim=1)


def entropy(weights: Any) -> Any:
    """Mean entropy of attention in nats: 0 looks at one position, log(n) at all n alike."""
    kept = _thin(weights.detach(), ELEMENTS).float()
    return -(kept * kept.clamp_min(1e-30).log()).sum(dim=-1).mean().reshape(1)


def _thin(tensor: Any, wanted: int) -> Any:
    """Every k-th slice along each dimension but the last, until about `wanted` elements are left."""
    for dimension in range(tensor.dim() - 1):
        excess = tensor.numel() / wanted
        step = min(round(excess ** (1 / (tensor.dim() - 1 - dimension))), tensor.shape[dimension])
        if step > 1:
            tensor = tensor[(slice(None),) * dimension + (slice(None, None, step),)]
    return tensor


def _units(module: Any, output: Any) -> int:
    channels_second = "Conv" in type(module).__name__ or "BatchNorm" in type(module).__name__
    return 1 if output.dim() > 2 and channels_second else output.dim() - 1


def _attention_weights(module: Any, output: Any) -> Any:
    """The weights that an attention module returns second, if it does."""
    if "Attention" not in type(module).__name__ or not isinstance(output, (tuple, list)) or len(output) < 2:
        return None
    weights = output[1]
    fits = hasattr(weights, "is_floating_point") and weights.is_floating_point() and weights.dim() >= 3
    return weights if fits else None
