"""Histograms of parameters and gradients, when asked for, in the form of `trainvitals.journal.histograms`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainvitals.journal.histograms import BINS
from trainvitals.trainer.watch.device import Arrival
from trainvitals.trainer.watch.gradients import Unseen, plain, spread

SAMPLE = 2048
"""Elements of one layer that are counted: every k-th."""


class HistogramSample:
    """One look at the weights and gradients of every layer."""

    def __init__(self, layers: dict[str, list[Any]]) -> None:
        import torch

        # Layers of which equally many elements are taken are counted together: a call for each would cost more than
        # the counting.
        alike: dict[tuple[Any, int], tuple[list[str], list[Any]]] = {}
        for name, parameters in layers.items():
            for kind, tensors in (
                ("weights", parameters),
                ("gradients", [p.grad for p in parameters if p.grad is not None]),
            ):
                pieces = _sample(tensors)
                if pieces:
                    key = (pieces[0].device, sum(piece.numel() for piece in pieces))
                    names, samples = alike.setdefault(key, ([], []))
                    names.append(f"{kind}/{name}")
                    samples += pieces
        self._arrivals = [
            (names, Arrival(torch.cat([piece.to(device, non_blocking=True) for piece in pieces]).float()))
            for (device, _), (names, pieces) in alike.items()
        ]

    def ready(self) -> bool:
        return all(arrival.ready() for _, arrival in self._arrivals)

    def rows(self, stamp: str, step: int) -> list[dict[str, Any]]:
        """One per layer and kind: counts of BINS equal bins from `low` to `high`; what is not finite is counted
        apart. Only when ready."""
        return [
            {"timestamp": stamp, "step": step, "name": name, **counted}
            for names, arrival in self._arrivals
            for name, counted in zip(names, _count(arrival.tensor().view(len(names), -1)), strict=True)
            if counted
        ]


def _sample(tensors: Sequence[Any]) -> list[Any]:
    """SAMPLE elements of the tensors together, in proportion to their sizes; all where there are fewer."""
    found = []
    for tensor in tensors:
        try:
            found.append(plain(tensor))
        except Unseen:
            continue  # the look at the layers says so
    found = sorted((tensor for tensor in found if tensor.numel()), key=lambda tensor: int(tensor.numel()))
    total = sum(tensor.numel() for tensor in found)
    if total <= SAMPLE:
        return [spread(tensor, SAMPLE) for tensor in found]
    pieces = []
    left = SAMPLE
    for index, tensor in enumerate(found, 1):
        share = left if index == len(found) else min(max(SAMPLE * tensor.numel() // total, 1), left)
        if share:
            pieces.append(spread(tensor, share))
            left -= share
    return pieces


def _count(values: Any) -> list[dict[str, Any]]:
    """A histogram of each row; an empty one where nothing is finite."""
    import torch

    count, length = values.shape
    lowest, highest = torch.aminmax(values, dim=1)
    if not bool((highest - lowest).isfinite().all()):
        return [_count_finite(row) for row in values]
    width = highest - lowest
    scale = (BINS / width).masked_fill_(width == 0, 0)
    bins = (values - lowest[:, None]).mul_(scale[:, None]).to(torch.int64).clamp_(0, BINS - 1)
    bins += torch.arange(0, count * BINS, BINS)[:, None]
    counts = torch.bincount(bins.view(-1), minlength=count * BINS).view(count, BINS).tolist()
    ends = zip(lowest.tolist(), highest.tolist(), counts, strict=True)
    return [
        {"low": low, "high": high, "counts": row if high > low else [length], "nonfinite": 0} for low, high, row in ends
    ]


def _count_finite(row: Any) -> dict[str, Any]:
    """Of a row in which NaN or infinity may be."""
    import torch

    finite = row[row.isfinite()]
    if not finite.numel():
        return {}
    low, high = (float(end) for end in torch.aminmax(finite))
    counts = [finite.numel()]
    if high > low:
        counts = torch.histc(finite, bins=BINS, min=low, max=high).long().tolist()
    return {"low": low, "high": high, "counts": counts, "nonfinite": int(row.numel() - finite.numel())}
