"""The inputs of a model, from a specification: `1x3x224x224`, `int64:1x128<50257`, `ids=int64:1x16,mask=bool:1x16`.

The first number of each is the batch. Numbers are made from a seed in every process that needs them, so that all
variants see the same inputs, and the first items of a larger batch are those of a smaller one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.bench.unavailable import Unavailable
from trainvitals.errors import TrainvitalsError, nearest

DTYPES = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float16",
    "bfloat16": "float32",  # numpy has none; the model's process converts
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
}
"""What may be asked for, and what numpy makes of it."""
ALIASES = {"fp32": "float32", "float": "float32", "f32": "float32", "fp16": "float16", "half": "float16"} | {
    "bf16": "bfloat16",
    "long": "int64",
    "int": "int64",
    "double": "float64",
}
DEFAULT_BELOW = 10
"""Integers are indices into something: small ones exist in nearly every table."""

_SPEC = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?:(?P<dtype>[a-z0-9]+):)?(?P<shape>\d+(?:x\d+)*)(?:<(?P<below>\d+))?", re.ASCII
)


class InputSpec(NamedTuple):
    """One input of the model."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str | None = None
    """By keyword; None by position."""
    below: int = DEFAULT_BELOW
    """Integers are from 0 up to this one."""

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        below = f"<{self.below}" if "int" in self.dtype and self.below != DEFAULT_BELOW else ""
        dtype = f"{self.dtype}:" if self.dtype != "float32" else ""
        return f"{name}{dtype}{'x'.join(map(str, self.shape))}{below}"

    def with_batch(self, batch: int) -> InputSpec:
        return self._replace(shape=(batch, *self.shape[1:]))


def parse_inputs(text: str) -> tuple[InputSpec, ...]:
    """The inputs that `text` describes, separated by commas. TrainvitalsError with an example."""
    found = tuple(_parse_one(part.strip()) for part in text.split(","))
    positions = [spec.name is None for spec in found]
    if positions != sorted(positions, reverse=True):
        raise TrainvitalsError(f"'{text}': positional inputs must come before named ones")
    return found


def _parse_one(text: str) -> InputSpec:
    match = _SPEC.fullmatch(text)
    if match is None:
        raise TrainvitalsError(
            f"'{text}' is not an input: separate sizes with x, batch first",
            hint="such as: 1x3x224x224, int64:1x128<50257, or ids=int64:1x16,mask=bool:1x16",
        )
    dtype = ALIASES.get(match["dtype"] or "float32", match["dtype"] or "float32")
    if dtype not in DTYPES:
        raise TrainvitalsError(
            f"'{match['dtype']}' is not a data type of an input{nearest(dtype, DTYPES)}",
            hint=f"one of: {', '.join(DTYPES)}",
        )
    shape = tuple(int(size) for size in match["shape"].split("x"))
    if 0 in shape:
        raise TrainvitalsError(f"'{text}' has no elements")
    return InputSpec(shape, dtype, match["name"], int(match["below"] or DEFAULT_BELOW))


def require_batch(batch: int, only: int | None) -> None:
    """Unavailable, with what to do, if the model's file is for batches of `only` and this is another."""
    if only not in (None, batch):
        raise Unavailable(
            f"the model was exported for batches of {only} only: use --batch {only}, "
            "or export it with a dynamic batch dimension"
        )


def make_arrays(specs: Sequence[InputSpec], batch: int, seed: int = 0) -> list[NDArray[Any]]:
    """Numbers for each input: normally distributed, or integers below the limit."""
    return [_make(spec.with_batch(batch), np.random.default_rng([seed, at])) for at, spec in enumerate(specs)]


def _make(spec: InputSpec, random: np.random.Generator) -> NDArray[Any]:
    kind = np.dtype(DTYPES[spec.dtype])
    if spec.dtype == "bool":
        return np.ones(spec.shape, dtype=kind)  # a mask that hides nothing
    if kind.kind in "iu":
        below = min(spec.below, int(np.iinfo(kind).max) + 1)
        # One draw per number, whatever their type: a bounded draw would skip some, and batches would differ.
        return (random.random(spec.shape) * below).astype(kind)
    return random.standard_normal(spec.shape).astype(kind)


def describe_inputs(specs: Iterable[InputSpec]) -> str:
    """As `parse_inputs` takes it."""
    return ",".join(map(str, specs))
