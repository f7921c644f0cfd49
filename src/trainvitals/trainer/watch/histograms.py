"""Histograms of parameters and gradients, when asked for: lines in `media/histograms.rankN.jsonl`."""

from __future__ import annotations

import math
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from trainvitals.journal.encoding import encode_line
from trainvitals.trainer.watch.device import Arrival
from trainvitals.trainer.watch.gradients import Unseen, plain

BINS = 64
SAMPLE = 2048
"""Elements of one layer that are counted: every k-th."""


class HistogramSample:
    """One look at the weights and gradients of every layer."""

    def __init__(self, layers: dict[str, list[Any]]) -> None:
        torch = import_module("torch")
        self._arrivals: list[tuple[str, Arrival]] = []
        for name, parameters in layers.items():
            for kind, tensors in (
                ("weights", parameters),
                ("gradients", [p.grad for p in parameters if p.grad is not None]),
            ):
                pieces = []
                for tensor in tensors:
                    try:
                        flat = plain(tensor).reshape(-1)
                    except Unseen:
                        continue  # the look at the layers says so
                    pieces.append(flat[:: max(flat.numel() * len(tensors) // SAMPLE, 1)].float())
                if pieces:
                    joined = torch.cat([piece.to(pieces[0].device, non_blocking=True) for piece in pieces])
                    self._arrivals.append((f"{kind}/{name}", Arrival(joined)))

    def ready(self) -> bool:
        return all(arrival.ready() for _, arrival in self._arrivals)

    def rows(self, stamp: str, step: int) -> list[dict[str, Any]]:
        """One per layer and kind: counts of BINS equal bins from `low` to `high`; what is not finite is counted
        apart. Only when ready."""
        torch = import_module("torch")
        rows = []
        for name, arrival in self._arrivals:
            values = arrival.tensor()
            if not values.numel():
                continue  # a shard without elements
            low, high = (float(end) for end in torch.aminmax(values))
            finite = values
            if not math.isfinite(low + high):
                finite = values[values.isfinite()]
                if not finite.numel():
                    continue
                low, high = (float(end) for end in torch.aminmax(finite))
            counts = [finite.numel()]
            if high > low:
                counts = torch.histc(finite, bins=BINS, min=low, max=high).tolist()
            rows.append(
                {
                    "timestamp": stamp,
                    "step": step,
                    "name": name,
                    "low": low,
                    "high": high,
                    "counts": [int(count) for count in counts],
                    "nonfinite": int(values.numel() - finite.numel()),
                }
            )
        return rows


def append_rows(folder: Path, rank: int, rows: list[dict[str, Any]]) -> None:
    """Add the lines to the rank's file in the run folder."""
    media = folder / "media"
    media.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    descriptor = os.open(media / f"histograms.rank{rank}.jsonl", flags, 0o600)
    try:
        os.write(descriptor, b"".join(encode_line(row) for row in rows))
    finally:
        os.close(descriptor)
