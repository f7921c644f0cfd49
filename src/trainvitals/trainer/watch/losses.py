"""The loss of an iteration, from the tensors that backward was called on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

FEWER = 3
"""Iterations in a row with fewer micro-batches after which fewer are the usual number."""
SCALING = ("DivBackward0", "MulBackward0")
"""What dividing or multiplying a loss leaves in its graph."""
SCALINGS = 4
"""Of a loss, in a row: by the micro-batches, by a weight, by `GradScaler`, and one to spare."""


class Backward(NamedTuple):
    """One call of backward, or one that stands for it."""

    loss: Any
    """A number, or a tensor of one element without its graph that may still be on its way."""
    part: int
    """Number of the micro-batch in its iteration."""
    divisor: float | None
    """What the loss was divided by last, where it was and where that is of interest."""


class LossSum(NamedTuple):
    """`factor` times the sum of the tensors."""

    losses: Sequence[Any]
    factor: float


class Accumulation:
    """How many micro-batches an update of this training takes: the last one of an epoch often has fewer."""

    def __init__(self) -> None:
        self.usual = 1
        self._fewer = 0

    def add_up(self, backwards: Sequence[Backward], *, together: bool = False) -> LossSum:
        """The loss of one optimizer's backwards, comparable from one iteration to the next. `together`: they are of
        one batch, whatever their part.

        | backwards | loss |
        |---|---|
        | one | it |
        | several of one batch (two losses, a kept graph, a batch in chunks) | their sum |
        | one per micro-batch, each divided by their usual number | their mean before the division |
        | one per micro-batch, divided by something else, such as the tokens of all of them | their sum |
        | one per micro-batch, not divided | their mean |
        """
        if len(backwards) == 1 and self.usual == 1:
            return LossSum([backwards[0].loss], 1.0)
        parts = 1 if together else len({backward.part for backward in backwards})
        self._count(parts)
        usual = self.usual
        losses = [backward.loss for backward in backwards]
        if usual == 1:
            return LossSum(losses, 1.0)
        divisors = [backward.divisor for backward in backwards if backward.divisor is not None]
        if not divisors:
            return LossSum(losses, 1 / parts)
        by_usual = all(abs(divisor - usual) < 1e-6 * usual for divisor in divisors)
        return LossSum(losses, usual / parts if by_usual else 1.0)

    def _count(self, parts: int) -> None:
        if parts >= self.usual:
            self.usual, self._fewer = parts, 0
            return
        self._fewer += 1
        if self._fewer >= FEWER:
            self.usual, self._fewer = parts, 0


class LossNames:
    """The losses of a training: one, or one for each optimizer that has its own, by the name of what it trains."""

    def __init__(self) -> None:
        self.accumulates = False
        """Some update took several micro-batches."""
        self._names: dict[int, str] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._accumulations: dict[int, Accumulation] = {}
        self._several = False

    def knows(self, optimizer: Any) -> bool:
        known = self._optimizers.get(id(optimizer))
        return known is not None and known() is optimizer

    def name(self, optimizer: Any, name: str) -> None:
        taken = {self._names[key] for key, known in self._optimizers.items() if known() is not None}
        numbered = (f"{name}{number}" for number in count(2))
        self._names[id(optimizer)] = name if name not in taken else next(n for n in numbered if n not in taken)
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def is_plain(self, optimizer: int) -> bool:
        """The number of a single backward is the `loss` of its step: nothing is to be added up or named."""
        return not self._several and not self.accumulates and optimizer in self._accumulations

    def add_up(self, losses: Mapping[int, Sequence[Backward]], *, together: bool) -> dict[str, LossSum]:
        """By their names, from those by optimizer. `together`: see `Accumulation.add_up`."""
        self._several |= len(losses) > 1
        found = {}
        for key, backwards in losses.items():
            if not backwards:
                continue
            accumulation = self._accumulations.get(key)
            if accumulation is None:
                accumulation = self._accumulations[key] = Accumulation()
            name = f"loss/{self._names[key]}" if self._several and key in self._names else "loss"
            found[name] = accumulation.add_up(backwards, together=together)
            self.accumulates |= accumulation.usual > 1
        return found


class LossReader:
    """Turns what backward is called on into what is kept of it."""

    def __init__(self) -> None:
        self.with_divisors = True
        """What a loss was divided by matters only where several may make one update."""
        self.unscaled: tuple[Any, Any] | None = None
        """(scaled, loss) of the next backward."""
        self._tensor = import_module("torch").Tensor

    def scaled(self, loss: Any, scaled: Any) -> None:
        """`GradScaler` made `scaled` of it; what is reported is the loss before."""
        self.unscaled = (scaled, loss)

    def read_plain(self, tensors: Any) -> float | None:
        """The number of a loss that is there and of which nothing else is of interest, as of nearly all."""
        if self.with_divisors or self.unscaled is not None or type(tensors) is not self._tensor:
            return None
        if tensors.ndim or not tensors.is_cpu:
            return None
        number = tensors.item()  # at once: the program may go on computing in the same place
        return number if type(number) is float else None

    def read(self, tensors: Any, part: int) -> list[Backward]:
        unscaled, self.unscaled = self.unscaled, None
        if unscaled is not None and unscaled[0] is tensors:
            tensors = unscaled[1]
        number = self.read_plain(tensors)
        if number is not None:
            return [Backward(number, part, None)]
        return [
            Backward(loss.detach(), part, read_divisor(loss) if self.with_divisors else None)
            for loss in read_losses(tensors)
        ]


def find_leaves(tensors: Any) -> Iterator[Any]:
    """The parameters that these tensors were computed from."""
    nodes = [tensor.grad_fn for tensor in read_losses(tensors)]
    known = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [before for before, _ in node.next_functions]


def read_losses(tensors: Any) -> list[Any]:
    """The single values among what backward was called on: a tensor, or several in a sequence or mapping."""
    if isinstance(tensors, dict):
        tensors = list(tensors.values())
    given: Iterable[Any] = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
    return [loss for loss in given if _is_single(loss)]


def is_made_before(tensors: Any, operation: int) -> bool:
    """Whether a loss was there before this operation of autograd, by its number, but for scaling it by a number."""
    node = getattr(tensors, "grad_fn", None)
    for _ in range(SCALINGS + 1):
        if node is None:
            return False
        if node._sequence_nr() < operation:
            return True
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if node.name() not in SCALING or len(parents) != 1:
            return False
        (node,) = parents
    return False


def _is_single(loss: Any) -> bool:
    return hasattr(loss, "numel") and loss.numel() == 1 and not loss.is_complex() and loss.device.type != "meta"


def read_divisor(loss: Any) -> float | None:
    """What the loss was divided by in its last operation, by a number; None if it was something else."""
    node = loss.grad_fn
    name = "" if node is None else node.name()
    if name not in SCALING:
        return None
    other = getattr(node, "_saved_other", None)
    if other is None or other.dim() or not other.is_cpu or getattr(other, "requires_grad", False):
        return None  # nothing on a device is waited for
    number = float(other)
    if name == "MulBackward0":
        return 1 / number if number else None
    return number
