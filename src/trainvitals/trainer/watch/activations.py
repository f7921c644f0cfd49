"""What flows through chosen modules: mean, spread, zeros, dead units, kurtosis, entropy of attention.

Hooks are on the modules only during the forward passes of a step that is looked at, so other steps pay nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from trainvitals.trainer.watch.device import Arrival
from trainvitals.trainer.watch.layers import matches

ELEMENTS = 1 << 14
"""About as many elements of one output are looked at: every k-th row of a larger one."""
STATISTICS = ("mean", "std", "zeros", "dead", "kurtosis")


class ActivationSample:
    """One look. `place`, let the model run, `remove`, then `collect`, then `numbers` when `ready`."""

    def __init__(self, modules: Iterable[tuple[str, Any]], patterns: Sequence[str]) -> None:
        self._modules = [(name, module) for name, module in modules if name and matches(name, patterns)]
        self._handles: list[Any] = []
        self._seen: dict[str, Any] = {}
        self._names: list[str] = []
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
        compiler = import_module("torch.compiler")
        for name, module in self._modules:

            def hook(_: Any, __: Any, output: Any, name: str = name, module: Any = module) -> None:
                if not compiler.is_compiling():
                    self._look(name, module, output)

            self._handles.append(module.register_forward_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _look(self, name: str, module: Any, output: Any) -> None:
        began = time.perf_counter()
        try:
            with import_module("torch").no_grad():
                main = output[0] if isinstance(output, (tuple, list)) and output else output
                if hasattr(main, "is_floating_point") and main.is_floating_point() and main.numel():
                    self._seen[f"activation/{name}"] = describe(main, units=_units(module, main))
                weights = _attention_weights(module, output)
                if weights is not None:
                    self._seen[f"attention/{name}"] = entropy(weights)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop: this runs inside their forward
            self.unseen.add(f"{name}: {error!r:.200}")
        self.seconds += time.perf_counter() - began

    def collect(self) -> None:
        """Send what was seen to the host."""
        self.collected = True
        if not self._seen:
            return
        torch = import_module("torch")
        device = next((v.device for v in self._seen.values() if not v.is_cpu), torch.device("cpu"))
        self._names = list(self._seen)
        flat = torch.cat([value.reshape(-1).to(device, non_blocking=True) for value in self._seen.values()])
        self._arrival = Arrival(flat)
        self._seen = {}

    def ready(self) -> bool:
        return self._arrival is None or self._arrival.ready()

    def numbers(self) -> dict[str, float]:
        """`activation_mean/<module>` and so on; only when ready."""
        if self._arrival is None:
            return {}
        values = iter(self._arrival.values())
        found = {}
        for name in self._names:
            kind, _, module = name.partition("/")
            if kind == "attention":
                found[f"attention_entropy/{module}"] = next(values)
            else:
                found |= {f"activation_{statistic}/{module}": next(values) for statistic in STATISTICS}
        return found


def describe(output: Any, units: int) -> Any:
    """The STATISTICS of an output as one vector. `units` is the dimension of the units (channels, features): a unit
    is dead if it is 0 for every sample looked at."""
    torch = import_module("torch")
    rows = _thin(output.detach(), units).float().movedim(units, -1)
    rows = rows.reshape(-1, rows.shape[-1])
    mean = rows.mean()
    squares = (rows - mean).square_()
    variance = squares.mean()  # twice as fast on a CPU as torch.var_mean
    zero = rows == 0
    kurtosis = squares.square().mean() / variance.square()  # 3 for a normal distribution; NaN if all are the same
    return torch.stack([mean, variance.sqrt(), zero.float().mean(), zero.all(dim=0).float().mean(), kurtosis])


def entropy(weights: Any) -> Any:
    """Mean entropy of attention in nats: 0 looks at one position, log(n) at all n alike."""
    kept = _thin(weights.detach(), weights.dim() - 1).float()
    return -(kept * kept.clamp_min(1e-30).log()).sum(dim=-1).mean().reshape(1)


def _thin(tensor: Any, keep: int) -> Any:
    """Every k-th slice along other dimensions than `keep`, until few enough elements are left."""
    for dimension in range(tensor.dim()):
        excess = tensor.numel() // ELEMENTS
        if excess > 1 and dimension != keep:
            step = min(excess, tensor.shape[dimension])
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
