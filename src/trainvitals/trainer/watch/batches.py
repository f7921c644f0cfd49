"""What a batch says about itself: how many samples and tokens, and whether it still lies in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

_MOST = 64  # tensors looked at: a batch of a thousand tensors is described by the first ones


class BatchSize(NamedTuple):
    """Samples and tokens; 0 where the batch does not tell."""

    samples: int = 0
    tokens: int = 0


@cache
def _tensor_class() -> type:
    return cast("type", import_module("torch").Tensor)  # by its class: a proxy of torch.fx has every attribute


def tensors_in(value: Any, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """(key, tensor) of every tensor inside a batch; the key is empty outside of mappings."""
    if isinstance(value, _tensor_class()):
        yield "", value
    elif depth and isinstance(value, Mapping):
        for key, item in list(value.items())[:_MOST]:
            for _, tensor in tensors_in(item, depth - 1):
                yield str(key), tensor
    elif depth and isinstance(value, (list, tuple)):
        for item in value[:_MOST]:
            yield from tensors_in(item, depth - 1)


def find_first(batch: Any) -> Any:
    """The tensor that tells the size of a batch: `input_ids`, else the first one; None if there is none."""
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], _tensor_class()):
        return batch[0]  # what nearly every loader yields; the walk below would find the same
    first = None
    for key, tensor in tensors_in(batch):
        if key == "input_ids":
            return tensor
        if first is None:
            first = tensor
    return first


def measure(shape: Sequence[int], dtype: Any) -> BatchSize:
    """Samples are the first dimension; tokens are the elements of a matrix of integers."""
    if not len(shape):
        return BatchSize(1)
    if len(shape) != 2 or dtype.is_floating_point or dtype.is_complex:
        return BatchSize(int(shape[0]))
    return BatchSize(int(shape[0]), int(shape[0]) * int(shape[1]))


def lies_on_host(batch: Any) -> bool:
    """The batch is in host memory."""
    first = find_first(batch)
    return first is not None and bool(first.is_cpu)


class BatchListener(Protocol):
    """Who wants to know of batches."""

    def data_begins(self, iterator: Any) -> None: ...
    def data_ends(self, batch: Any, exhausted: bool) -> None: ...


class Batches:
    """Batches of any source, with the time that each took to come."""

    def __init__(self, listener: BatchListener, loader: Iterable[Any]) -> None:
        self._listener = listener
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._loader)
        while True:
            self._listener.data_begins(self)
            batch, exhausted = None, True
            try:
                batch = next(iterator)
                exhausted = False
            except StopIteration:
                return
            finally:
                self._listener.data_ends(batch, exhausted)
            yield batch
