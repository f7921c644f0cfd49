"""How far the answers of a variant are from those of the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainvitals.journal.documents.benchmark import Agreement

Arrays = Sequence[NDArray[Any]]


def compare_outputs(reference: Arrays, other: Arrays, tolerance: float) -> Agreement | None:
    """None where there is nothing to compare: a model that returns no numbers. `tolerance` is a relative error."""
    if not reference and not other:
        return None
    shapes = [tuple(item.shape for item in arrays) for arrays in (reference, other)]
    if shapes[0] != shapes[1]:
        return Agreement(max_error=math.inf, relative_error=math.inf, within=False)
    expected = np.concatenate([np.asarray(item, dtype=np.float64).ravel() for item in reference])
    found = np.concatenate([np.asarray(item, dtype=np.float64).ravel() for item in other])
    # The same NaN in both is the reference's own trouble, which the checks report.
    known = np.isfinite(expected) & np.isfinite(found)
    if not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        return Agreement(max_error=math.inf, relative_error=math.inf, within=False)
    expected, found = expected[known], found[known]
    if not len(expected):
        return None
    difference = found - expected
    norm = float(np.linalg.norm(expected))
    relative = float(np.linalg.norm(difference)) / norm if norm else (0.0 if not difference.any() else math.inf)
    first = next(((a, b) for a, b in zip(reference, other, strict=True) if is_logits(a)), None)
    return Agreement(
        max_error=float(np.abs(difference).max()),
        relative_error=relative,
        cosine=_cosine(expected, found),
        kl=_divergence(*first) if first is not None else None,
        top1=_same_first(*first) if first is not None else None,
        within=relative <= tolerance,
    )


def is_logits(array: NDArray[Any]) -> bool:
    """Rows of several real numbers: something that has a largest value."""
    return array.dtype.kind == "f" and array.ndim >= 2 and array.shape[-1] > 1 and bool(np.isfinite(array).all())


def _cosine(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else None


def _divergence(reference: NDArray[Any], other: NDArray[Any]) -> float:
    p, q = _log_softmax(reference), _log_softmax(other)
    return max(float((np.exp(p) * (p - q)).sum(axis=-1).mean()), 0.0)


def _log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), dtype=np.float64)


def _same_first(reference: NDArray[Any], other: NDArray[Any]) -> float:
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())
